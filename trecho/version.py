"""`trecho version`: build an index version beside the active one, compare, activate, drop."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from trecho.console import note, print_json
from trecho.db import Connection, connect, connection, find_dsn
from trecho.embed import EmbedReport, VectorParameter, embed_pending, stopped_by_signals, teach_vectors
from trecho.errors import ExitCode, TrechoError, UsageError, from_database
from trecho.meter import Meter
from trecho.providers import Provider, TextRejected, provider_for
from trecho.providers.presets import PRESETS, preset_names, preset_recipe

HELP = "build, compare, activate and drop index versions"
# Documents of one transaction of the backfill, fewest and most: puts of these wait for its end, and each one
# looks for what is missing among all documents.
_BACKFILL_DOCUMENTS = (10, 100)
# A lock that cannot be had in milliseconds is asked for again; searches and writers go on in between.
_LOCK_TRIES = 50
_LOCK_PAUSE_S = 0.2
# Writers bring texts to every version, and what they bring while a round runs need not have its vector: the second
# round is the last one, unless a writer began before the version and ended after the first.
_ACTIVATE_ROUNDS = 5

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class BuildResult:
    """What building came to.

    version: None where there was nothing to build. rounds: how often it caught up with writers. waits_for: why it could
    not be activated although it is filled. filled: complete, and left for somebody to activate, as asked.
    """

    version: int | None = None
    documents: int = 0
    activated: bool = False
    embedded: EmbedReport | None = None
    rounds: int = 0
    waits_for: str = ""
    filled: bool = False

    @property
    def exit_code(self) -> ExitCode:
        """How a command that did this ends."""
        if self.version is None:
            return ExitCode.DONE
        if self.embedded is not None and self.embedded.problems:
            return self.embedded.problems[0].exit_code
        return ExitCode.DONE if self.activated or self.filled else ExitCode.NOT_CURRENT


def build(
    dsn: str,
    *,
    full: bool = False,
    version: int | None = None,
    on_progress: Progress | None = None,
    provider: Provider | None = None,
    workers: int | None = None,
    stop: threading.Event | None = None,
    turn: bool = True,
) -> BuildResult:
    """Where the recipe has drifted (or full is true), fill a version of the wanted recipe and turn searches to it.

    Goes on with a build that was interrupted, but not with one that is paused. version: fill and activate this one
    instead. turn: False fills it and pauses it then, for searches to be compared first. A provider that is down leaves
    the build where it is; the result tells. Versions whose grace period is over are dropped, and what was put
    into the active one while it became active is mended, in any case.
    """
    stop = stop or threading.Event()
    tell = on_progress or (lambda phase, done, total: None)
    with _connection(dsn) as conn:
        if version is None:
            version = _value(conn, "SELECT trecho.begin_version_build(%s)", full)
        if version is None:
            _mend(conn)
            drop_expired(conn)
            return BuildResult()
        result = BuildResult(version)
        row = _version_row(conn, version)
        if row is not None and row["paused"]:
            return replace(result, waits_for=f"the build of index version {version} is paused")
        for _ in range(_ACTIVATE_ROUNDS):
            documents = result.documents + _backfill(conn, version, tell, stop)
            # By the clock of the server: what is written from now on need not have its vector when searches turn.
            since = _value(conn, "SELECT clock_timestamp()")
            report = embed_pending(
                dsn,
                index_version=version,
                on_progress=lambda done, total: tell("embedding", done, total),
                provider=provider,
                workers=workers,
                stop=stop,
                raise_problems=False,
                written_before=since,
            )
            result = replace(result, documents=documents, embedded=report, rounds=result.rounds + 1)
            if report.problems or stop.is_set():
                break
            tell("indexing", 0, 1)
            if _value(conn, "SELECT trecho.end_bulk_load(%s)", version):
                continue  # what was written meanwhile went to the active version alone, and the next round brings it
            if not turn:
                # Paused, or the next sync or worker would turn searches to it.
                conn.execute("SELECT trecho.pause_version(%s)", (version,))
                held = "it is filled and paused: compare it, then activate it"
                result = replace(result, filled=True, waits_for=held)
                break
            try:
                activated = _activate(conn, version, since)
            except (psycopg.errors.ObjectInUse, psycopg.errors.LockNotAvailable) as error:
                # A pass that began before the version, or writers with long transactions.
                result = replace(result, waits_for=error.diag.message_primary or str(error))
                break
            if activated:  # else something was put meanwhile
                result = replace(result, activated=True)
                _mend(conn)
                break
        drop_expired(conn)
    return result


def drop_expired(conn: Connection) -> list[int]:
    """Drop versions whose grace period is over. Returns which."""
    dropped: list[int] = []
    while (version := _value(conn, "SELECT trecho.drop_expired_version()")) is not None:
        dropped.append(version)
    return dropped


def _backfill(conn: Connection, version: int, tell: Progress, stop: threading.Event) -> int:
    """Chunk what the version lacks. Returns documents done."""
    row = _version_row(conn, version)
    total = left = row["documents_missing"] or 0 if row else 0
    while left and not stop.is_set():
        before, left = left, _fill(conn, version, batch_size(left))
        total = max(total, left)
        tell("chunking", total - left, total)
        if left and left >= before:  # another process is at the rest
            stop.wait(_LOCK_PAUSE_S)
    return int(total - left)


def batch_size(left: int) -> int:
    """Documents to chunk in one transaction when so many are left."""
    fewest, most = _BACKFILL_DOCUMENTS
    return min(most, max(fewest, left // 100))


def _fill(conn: Connection, version: int, documents: int) -> int:
    """Chunk a few documents that the version lacks, here where the server has no chunkers. Returns documents left."""
    if not _value(conn, "SELECT to_regprocedure('trecho.chunk(text, text, jsonb, text)') IS NULL"):
        return int(_value(conn, "SELECT trecho.backfill_version(%s, %s)", version, documents))
    from trecho.client_chunking import cut

    cuts = []
    for row in _rows(conn, "SELECT * FROM trecho.documents_to_fill(%s, %s)", version, documents):
        made = cut(row["path"], row["content"], row["scope"], {"": row["chunk_settings"]}, row["project"])
        chunks = made.chunks[""] if made.chunks else None
        cuts.append({"document_id": row["document_id"], "blob_sha": row["blob_sha"], "chunks": chunks})
    return int(_value(conn, "SELECT trecho.backfill_version(%s, %s, %s)", version, documents, Jsonb(cuts)))


def _mend(conn: Connection) -> None:
    """Bring into the active version what was put while it became active."""
    for row in _rows(conn, "SELECT index_version FROM trecho.embedding_recipes() WHERE state = 'active'"):
        for _ in range(_LOCK_TRIES):
            if not _fill(conn, row["index_version"], batch_size(0)):
                break
            time.sleep(0.01)  # another process may be at it


def _activate(conn: Connection, version: int, since: datetime) -> bool:
    """Turn searches to the version. False when it is not complete after all."""
    try:
        _patiently(
            lambda: _value(conn, "SELECT trecho.activate_version(%s, written_since => %s)", version, since)
        )
    except psycopg.errors.ObjectNotInPrerequisiteState:
        return False
    return True


def _patiently(action: Callable[[], Any]) -> Any:
    """Do it again where a lock could not be had."""
    for attempt in range(_LOCK_TRIES):
        try:
            return action()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if attempt == _LOCK_TRIES - 1:
                raise
            time.sleep(_LOCK_PAUSE_S)
    raise AssertionError("unreachable")


# ------------------------------------------------------------------------------------------------ comparing


@dataclass(frozen=True)
class Question:
    """A line of a file of questions. expected: the document that answers it, where the line says so."""

    text: str
    expected: str = ""


@dataclass(frozen=True)
class Comparison:
    """One question on two versions: the documents found by each, best first."""

    question: str
    expected: str
    old: list[str]
    new: list[str]

    @property
    def gained(self) -> list[str]:
        return [document for document in self.new if document not in self.old]

    @property
    def lost(self) -> list[str]:
        return [document for document in self.old if document not in self.new]

    @property
    def overlap(self) -> float:
        """Share of the longer list that both have, 0 to 1; 1 when both are empty."""
        longest = max(len(self.old), len(self.new))
        return sum(document in self.old for document in self.new) / longest if longest else 1.0


def read_questions(path: Path) -> list[Question]:
    """One question a line; after a tab, where there is one, the document that answers it. # begins a comment line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", hint="Give a UTF-8 file with a question a line."
        ) from error
    questions = []
    for line in lines:
        if line.strip() and not line.startswith("#"):
            text, _, rest = line.partition("\t")
            questions.append(Question(text.strip(), rest.partition("\t")[0].strip()))
    if not questions:
        raise UsageError(f"{path} has no question", hint="Write a question a line.")
    return questions


def compare(
    conn: Connection,
    old: int,
    new: int,
    questions: Iterable[Question],
    *,
    k: int = 10,
    project: str = "default",
    branch: str = "main",
) -> list[Comparison]:
    """Ask every question of both versions, each with vectors of its own model."""
    recipes = {
        row["index_version"]: row["recipe"] for row in _rows(conn, "SELECT * FROM trecho.list_versions()")
    }
    for version in (old, new):
        if version not in recipes:
            raise UsageError(
                f"index version {version} does not exist", hint="trecho version list shows them."
            )
    conn.execute("SELECT set_config('trecho.read_building', 'on', false)")
    providers = {version: provider_for(recipes[version]) for version in (old, new)}
    try:
        return [
            Comparison(
                question.text,
                question.expected,
                _found(conn, old, providers[old], question.text, k, project, branch),
                _found(conn, new, providers[new], question.text, k, project, branch),
            )
            for question in questions
        ]
    finally:
        for provider in providers.values():
            provider.close()


def _found(
    conn: Connection, version: int, provider: Provider, question: str, k: int, project: str, branch: str
) -> list[str]:
    try:
        vector = provider.embed_query([question])[0]
    except TextRejected as error:
        raise TrechoError(f"version {version} cannot embed the question {question!r}: {error}") from error
    rows = _rows(
        conn,
        "SELECT doc_id FROM trecho.search(%s, %s, index_version => %s, k => %s, project => %s, branch => %s)",
        question,
        VectorParameter(vector),
        version,
        k,
        project,
        branch,
    )
    return [row["doc_id"] for row in rows]


# ------------------------------------------------------------------------------------------------ the command


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `trecho version`."""
    from trecho.cli import common_options

    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=text, parents=[common_options(suppress=True)])

    add("list", "every version: state, contents, what it lacks; and the drift, where there is any")
    building = add("build", "fill a version of the wanted recipe and turn searches to it")
    building.add_argument("--full", action="store_true", help="embed everything again, drift or not")
    building.add_argument(
        "--no-activate",
        action="store_true",
        help="fill it and pause it, to compare it before searches read it",
    )
    building.add_argument("--workers", type=int, metavar="N", help="requests at once")
    building.add_argument(
        "--preset",
        metavar="NAME",
        help="make the recipe of a known provider the wanted one first (presets lists them)",
    )
    add("presets", "recipes of known providers")
    comparing = add("compare", "ask a file of questions of two versions")
    comparing.add_argument("old", type=int, metavar="OLD")
    comparing.add_argument("new", type=int, metavar="NEW")
    comparing.add_argument(
        "questions", type=Path, metavar="FILE", help="a question a line; after a tab, its document"
    )
    comparing.add_argument("-k", type=int, default=10, metavar="N", help="results per question (default: 10)")
    comparing.add_argument("--project", default="default", metavar="NAME")
    comparing.add_argument("--branch", default="main", metavar="NAME")
    for name, text in (
        (
            "activate",
            "turn searches to a version; a retired (going back) or paused one is brought up to date first",
        ),
        ("drop", "drop a version; one that is being built is cancelled"),
        ("pause", "stop filling a version; nothing is lost"),
        ("resume", "let a paused build go on (with trecho version build, sync or embed)"),
    ):
        add(name, text).add_argument("version", type=int, metavar="N")


def run(args: argparse.Namespace) -> int:
    """Dispatch to the action. Returns an ExitCode."""
    if args.action == "presets":
        return _list_presets(args.json)
    dsn = find_dsn(args.dsn)
    if args.action == "list":
        with connection(dsn, application_name="trecho version", autocommit=True) as conn:
            rows = _rows(conn, "SELECT * FROM trecho.list_versions()")
            drift = _rows(conn, "SELECT * FROM trecho.drift()")
        _show_versions(rows, drift, args.json)
        return ExitCode.DONE
    if args.action == "compare":
        return _compare(dsn, args)
    if args.action == "build":
        if args.preset is not None:
            _want_preset(dsn, args.preset)
        return _build(dsn, args, full=args.full, turn=not args.no_activate)
    if args.action == "activate":
        return _go_to(dsn, args)
    with _connection(dsn) as conn:
        if args.action == "drop":
            if not _patiently(lambda: _value(conn, "SELECT trecho.drop_version(%s)", args.version)):
                raise UsageError(
                    f"index version {args.version} does not exist", hint="trecho version list shows them."
                )
        else:
            conn.execute("SELECT trecho.pause_version(%s, %s)", (args.version, args.action == "pause"))
    _say(
        {"version": args.version, "action": args.action},
        f"version {args.version}: {args.action} done",
        args.json,
    )
    return ExitCode.DONE


def _list_presets(as_json: bool) -> int:
    rows = {
        name: preset_recipe(name) | {"url": PRESETS[name].url if name in PRESETS else None}
        for name in preset_names()
    }
    if as_json:
        print_json(rows)
    else:
        for name, row in rows.items():
            print(f"{name}: {row['model_id']}, {row['dim']} numbers, {row['url'] or 'in this process'}")
            for key in ("query_prefix", "passage_prefix"):
                if row[key]:
                    print(f"  {key} {row[key]!r}")
    return ExitCode.DONE


def _want_preset(dsn: str, name: str) -> None:
    """Make the recipe of a preset the wanted one. Raises: UsageError for one that is unknown, or cannot work here."""
    recipe = preset_recipe(name)
    provider_for(recipe).close()  # a key or a URL that is missing is told before anything is changed
    with _connection(dsn) as conn:
        conn.execute("SELECT trecho.configure(%s)", (Jsonb(recipe),))
    note(
        f'preset {name} is the wanted recipe now: write preset = "{name}" into [embedding] of trecho.toml, too,'
    )
    note("or the next sync with a recipe there builds anew")


def _go_to(dsn: str, args: argparse.Namespace) -> int:
    """Activate a version; a retired one is brought up to date first, and its recipe becomes the wanted one."""
    with _connection(dsn) as conn:
        row = _version_row(conn, args.version)
        if row is None:
            raise UsageError(
                f"index version {args.version} does not exist", hint="trecho version list shows them."
            )
        if row["state"] == "active":
            _say(
                {"version": args.version, "activated": False},
                f"version {args.version} is active already",
                args.json,
            )
            return ExitCode.DONE
        if row["state"] == "retired":
            recipe = {k: v for k, v in row["recipe"].items() if v is not None and k != "chunker_version"}
            with conn.transaction():
                conn.execute("SELECT trecho.configure(%s)", (Jsonb(recipe),))
                conn.execute("SELECT trecho.reopen_version(%s)", (args.version,))
            note("its recipe is the wanted one now: change trecho.toml, too, or the next sync builds anew")
        elif row["paused"]:
            conn.execute("SELECT trecho.pause_version(%s, false)", (args.version,))
    return _build(dsn, args, version=args.version)


def _build(
    dsn: str, args: argparse.Namespace, *, full: bool = False, version: int | None = None, turn: bool = True
) -> int:
    units = {"chunking": "document", "embedding": "text"}
    meters: dict[str, Meter] = {}

    def tell(phase: str, done: int, total: int) -> None:
        meters.setdefault(phase, Meter(phase, units.get(phase, "step"))).update(done, total)

    try:
        with stopped_by_signals() as stop:
            result = build(
                dsn,
                full=full,
                version=version,
                on_progress=tell,
                workers=getattr(args, "workers", None),
                stop=stop,
                turn=turn,
            )
    finally:
        for meter in meters.values():
            meter.close()
    if args.json:
        embedded = result.embedded.as_json() if result.embedded else None
        print_json(asdict(result) | {"embedded": embedded})
    elif result.version is None:
        print("no drift: the active version has the wanted recipe")
    else:
        texts = result.embedded.texts if result.embedded else 0
        state = "active now" if result.activated else "not active yet"
        print(
            f"version {result.version}: {result.documents} documents chunked, {texts} texts embedded, {state}"
        )
        if result.waits_for:
            note(f"version {result.version}: {result.waits_for}")
            note(f"hint: trecho version activate {result.version} turns searches to it.")
        elif not result.activated:
            note("hint: trecho version build goes on with it.")
        for problem in result.embedded.problems if result.embedded else ():
            note(f"error: {problem}")
            note(f"hint: {problem.hint}")
    return result.exit_code


def _compare(dsn: str, args: argparse.Namespace) -> int:
    questions = read_questions(args.questions)
    if args.k < 1:
        raise UsageError(f"-k must be at least 1, got {args.k}", hint="Leave it out for the default.")
    with _connection(dsn) as conn:
        results = compare(
            conn, args.old, args.new, questions, k=args.k, project=args.project, branch=args.branch
        )
    summary: dict[str, Any] = {
        "questions": len(results),
        "overlap": round(sum(r.overlap for r in results) / len(results), 3),
        "changed": sum(bool(r.gained or r.lost) for r in results),
    }
    judged = [r for r in results if r.expected]
    if judged:
        summary["judged"] = len(judged)
        summary["hits_old"] = sum(r.expected in r.old for r in judged)
        summary["hits_new"] = sum(r.expected in r.new for r in judged)
    if args.json:
        print_json(summary | {"results": [asdict(r) | {"gained": r.gained, "lost": r.lost} for r in results]})
        return ExitCode.DONE
    for result in results:
        if result.gained or result.lost:
            print(result.question)
            for mark, documents in (("+", result.gained), ("-", result.lost)):
                for document in documents:
                    print(f"  {mark} {document}{' (expected)' if document == result.expected else ''}")
    print(
        f"{summary['questions']} questions, {args.k} results each: overlap {summary['overlap']:.3f},"
        f" {summary['changed']} changed"
        + (
            f"; expected found {summary['hits_old']} -> {summary['hits_new']} of {len(judged)}"
            if judged
            else ""
        )
    )
    return ExitCode.DONE


def _show_versions(
    rows: Sequence[Mapping[str, Any]], drift: Sequence[Mapping[str, Any]], as_json: bool
) -> None:
    if as_json:
        print_json({"versions": rows, "drift": drift})
        return
    for row in rows:
        state = "paused" if row["paused"] else row["state"]
        line = f"{row['index_version']}  {state}  {row['label']}  {row['documents']} documents, {row['chunks']} chunks"
        for key, text in (
            ("documents_missing", "documents missing"),
            ("pending", "vectors pending"),
            ("failed", "failed"),
            ("quarantined", "quarantined"),
        ):
            if row[key]:
                line += f", {row[key]} {text}"
        print(line)
    for part in drift:
        print(f"drift: {part['key']} is {part['active']!r}, wanted {part['wanted']!r}")


def _say(data: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(data)
    else:
        print(text)


def _version_row(conn: Connection, version: int) -> dict[str, Any] | None:
    rows = _rows(conn, "SELECT * FROM trecho.list_versions()")
    return next((row for row in rows if row["index_version"] == version), None)


def _rows(conn: Connection, query: str, *parameters: Any) -> list[dict[str, Any]]:
    return conn.execute(query.encode(), parameters or None).fetchall()


def _value(conn: Connection, query: str, *parameters: Any) -> Any:
    (row,) = _rows(conn, query, *parameters)
    (only,) = row.values()
    return only


def _warn(notice: psycopg.errors.Diagnostic) -> None:
    if notice.severity_nonlocalized == "WARNING":
        note(f"warning: {notice.message_primary}")


@contextmanager
def _connection(dsn: str) -> Iterator[Connection]:
    with connect(dsn, application_name="trecho version", autocommit=True) as conn:
        conn.add_notice_handler(_warn)
        teach_vectors(conn)
        try:
            yield conn
        except psycopg.Error as error:
            raise from_database(error) from error
