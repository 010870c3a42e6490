"""`trecho embed`: give every text that waits for a vector its vector. Any number of these may run, on any machines."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from trecho.console import note, print_json
from trecho.db import Connection, connect, find_dsn
from trecho.errors import ExitCode, TrechoError, UsageError, from_database
from trecho.meter import Meter
from trecho.providers import ModelMoved, Provider, ProviderDown, TextRejected, VectorArray, provider_for
from trecho.secrets_gate import GateBroken, batches_per_scan, screen_once

if TYPE_CHECKING:
    from types import FrameType

HELP = "give every text that waits for a vector its vector"
CHANNEL = "trecho_embed"
# A lease ends with its connection, so its length only matters for a worker that hangs.
_LEASE = "15 minutes"
# Cosine distance of the probe text from its first vector over which the model is another one. Other processors and
# batch sizes move a vector by about 1e-4; two models differ by more than 0.1.
_PROBE_LIMIT = 0.02
_PROBE_EVERY_S = 300.0
_APPLY_EVERY_S = 15.0
_LOOK_EVERY_S = 2.0
_LOOK_SELDOM_S = 30.0
_APPLY_ROWS = 250
# Most bytes of a text, as chunks are cut by default.
_TEXT_BYTES = 6000
_POLL_S = 0.3
_WATCH_POLL_S = 30.0

Progress = Callable[[int, int], None]
ConnectionFactory = Callable[[], Connection]


@dataclass(frozen=True)
class EmbedReport:
    """What a run did, and what is left.

    texts: vectors stored now. failed: texts given up (5 failures, or refused by the provider) in the versions looked
    at; quarantined: texts held back there; pending: texts that still wait. problems: why a provider cannot be used.
    """

    texts: int = 0
    seconds: float = 0.0
    failed: int = 0
    quarantined: int = 0
    provider_calls: int = 0
    pending: int = 0
    problems: tuple[TrechoError, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """How a command that did this ends."""
        if self.problems:
            return self.problems[0].exit_code
        if self.failed:
            return ExitCode.SOME_FAILED
        return ExitCode.NOT_CURRENT if self.pending else ExitCode.DONE

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return asdict(self) | {"problems": [problem.as_json() for problem in self.problems]}


@dataclass(frozen=True)
class Only:
    """Which texts are meant: those that a pass is about to place, or those of a project; all when neither is given."""

    pass_id: int | None = None
    project: str | None = None


def embed_pending(
    database: str | ConnectionFactory,
    *,
    index_version: int | None = None,
    on_progress: Progress | None = None,
    provider: Provider | None = None,
    workers: int | None = None,
    stop: threading.Event | None = None,
    raise_problems: bool = True,
    written_before: datetime | None = None,
    only: Only | None = None,
) -> EmbedReport:
    """Embed what is pending, waiting for retries and for other workers, and put the vectors on their chunks.

    database: a DSN, or what opens a connection of its own for each worker. index_version: only this one; else the
    active version and those being built. provider: instead of the ones the recipes name. workers: threads, each with a
    connection (default: what the provider bears, and no more than there is work for). stop: set it to end soon, with
    nothing lost. written_before: end when what was written before has its vector (default: before this call), so that
    steady writers do not keep it for ever. only: these texts (default: all).
    Raises: the first problem of a provider, after the other versions had their turn, unless raise_problems is False.
    """
    factory: ConnectionFactory = database if callable(database) else _factory(database)
    stop = stop or threading.Event()
    only = only or Only()
    began = time.monotonic()
    tally = _Tally(on_progress)
    problems: list[TrechoError] = []
    with _open(factory) as conn:
        recipes = {
            row["index_version"]: row["recipe"]
            for row in conn.execute("SELECT index_version, recipe FROM trecho.embedding_recipes()").fetchall()
            if index_version in (None, row["index_version"])
        }
        before = _counts(conn, index_version, only)
        tally.total = sum(row["pending"] for row in before.values() if row["version"] in recipes)
        written_before = written_before or _one(conn, "SELECT clock_timestamp() AS now", ())["now"]
        for version, recipe in recipes.items():
            if stop.is_set():
                break
            try:
                if before[version]["pending"]:
                    crew = _Crew(
                        *(factory, version, provider or provider_for(recipe), tally, stop, only),
                        recipe.get("passage_prefix") or "",
                    )
                    crew.enough = tally.done + before[version]["pending"]
                    size = workers or _crew_size(crew.provider, before[version]["pending"])
                    _embed_version(conn, crew, size, written_before, keep=provider is not None)
            except (ProviderDown, ModelMoved, GateBroken, UsageError) as error:
                if not stop.is_set():
                    problems.append(error)
            except TrechoError as error:
                if error.exit_code is not ExitCode.USAGE:
                    raise
                problems.append(error)
            finally:
                _apply_all(factory, conn, version, stop)
        after = [row for version, row in _counts(conn, index_version, only).items() if version in recipes]
    if problems and raise_problems:
        raise problems[0]
    return EmbedReport(
        texts=tally.stored,
        seconds=time.monotonic() - began,
        failed=sum(row["failed"] for row in after),
        quarantined=sum(row["quarantined"] for row in after),
        provider_calls=tally.calls,
        pending=sum(row["pending"] for row in after),
        problems=tuple(problems),
    )


def check_probe(conn: Connection, version: int, provider: Provider) -> None:
    """Compare the provider with what it was when the version began. Raises: ModelMoved, or as Provider.probe."""
    vector = provider.probe()
    distance = _one(
        conn,
        "SELECT trecho.check_embedding_probe(%s, %s) AS distance",
        (version, VectorParameter(vector)),
    )["distance"]
    if distance > _PROBE_LIMIT:
        raise ModelMoved(
            f"the model behind index version {version} has changed: its probe text moved by {distance:.3f}",
            hint="Bring the old model back, or configure a new model_version: a new index version is built beside it.",
        )


class _Tally:
    """Counts of a run, told to whoever watches. Thread-safe."""

    def __init__(self, on_progress: Progress | None) -> None:
        self.total = self.done = self.stored = self.calls = 0
        self._tell = on_progress
        self._lock = threading.Lock()

    def add(self, *, done: int, stored: int) -> None:
        with self._lock:
            self.done += done
            self.stored += stored
            if self._tell is not None:
                self._tell(self.done, max(self.total, self.done))


@dataclass
class _Crew:
    """The workers of one version."""

    factory: ConnectionFactory
    version: int
    provider: Provider
    tally: _Tally
    stop: threading.Event  # the whole run is to end
    only: Only
    prefix: str  # that its texts begin with
    enough: int = 0  # texts done from which on those that were there at the beginning may be done
    halt: threading.Event = field(default_factory=threading.Event)  # this crew is to end
    error: BaseException | None = None

    def run(self, number: int) -> None:
        """The life of worker `number`; the first one stays until nothing is pending."""
        most_texts, most_bytes = self.provider.batch_texts, self.provider.batch_bytes
        try:
            share = batches_per_scan() if self.provider.leaves_process else 1
            with _open(self.factory) as conn:
                worker = f"{socket.gethostname()}:{os.getpid()}:{number}:{uuid.uuid4().hex[:6]}"
                while not self.stop.is_set() and not self.halt.is_set():
                    texts = conn.execute(
                        "SELECT text_hash, attempt_count, text"
                        "  FROM trecho.claim_embeddings(%s, %s, %s, %s, %s, %s, %s)",
                        (
                            *(worker, min(share * most_texts, 10_000), share * most_bytes, _LEASE),
                            *(self.version, self.only.pass_id, self.only.project),
                        ),
                    ).fetchall()
                    if texts:
                        self._embed(conn, worker, texts)
                    elif number > 0 or not self._more(conn):
                        break
        except BaseException as error:
            # The connection ends with the thread, and the leases with it.
            self.error = self.error or error
            self.halt.set()

    def _more(self, conn: Connection) -> bool:
        """Wait a little for what others have or what waits for a retry. False when nothing is pending."""
        counts = _counts(conn, self.version, self.only)[self.version]
        if not counts["pending"]:
            return False
        if counts["pending"] == counts["leased"] + counts["waiting"]:
            self.halt.wait(_POLL_S)
        return True

    def _embed(self, conn: Connection, worker: str, texts: Sequence[Mapping[str, Any]]) -> None:
        try:
            if self.provider.leaves_process:
                texts = self._harmless(conn, texts)
            # What has failed before goes alone, so that it cannot take others with it.
            fresh = [text for text in texts if not text["attempt_count"]]
            for batch in [*self._requests(fresh), *([text] for text in texts if text["attempt_count"])]:
                if self.stop.is_set():
                    conn.execute("SELECT trecho.release_embeddings(%s)", (worker,))
                    return
                self._embed_batch(conn, worker, batch)
        except (TrechoError, KeyboardInterrupt):
            conn.execute("SELECT trecho.release_embeddings(%s)", (worker,))
            raise

    def _requests(self, texts: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
        """Texts in batches that one request bears; a longer text goes alone."""
        batch: list[Mapping[str, Any]] = []
        size = 0
        for text in texts:
            more = len(text["text"].encode())
            if batch and (len(batch) >= self.provider.batch_texts or size + more > self.provider.batch_bytes):
                yield batch
                batch, size = [], 0
            batch.append(text)
            size += more
        if batch:
            yield batch

    def _embed_batch(self, conn: Connection, worker: str, batch: Sequence[Mapping[str, Any]]) -> None:
        outcomes = self.provider.embed_passages([text["text"] for text in batch])
        hashes: list[bytes] = []
        vectors: list[Any] = []
        for text, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, TextRejected):
                # A transaction of its own: the connection is in autocommit mode.
                row = _one(
                    conn,
                    "SELECT trecho.fail_embedding(%s, %s, %s, %s, %s) AS attempts",
                    (worker, self.version, text["text_hash"], str(outcome), outcome.permanent),
                )
                self.tally.add(done=int(outcome.permanent or (row["attempts"] or 0) >= 5), stored=0)
            else:
                hashes.append(text["text_hash"])
                vectors.append(outcome)
        if hashes:
            row = _one(
                conn,
                "SELECT trecho.store_embeddings(%s, %s, %s, %s) AS stored",
                (worker, self.version, hashes, _VectorsParameter(vectors)),
            )
            self.tally.add(done=len(hashes), stored=row["stored"])

    def _harmless(self, conn: Connection, texts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The texts that may leave; the others are quarantined."""
        kept = []
        # Without the prefix, which could hide what begins the text.
        bare = [text["text"].removeprefix(self.prefix) for text in texts]
        for text, found in zip(texts, screen_once(bare), strict=True):
            if (
                found
                and _one(
                    conn,
                    "SELECT trecho.quarantine_text(%s, %s) AS held",
                    (text["text_hash"], ", ".join(found)),
                )["held"]
            ):
                self.tally.add(done=1, stored=0)
            else:
                kept.append(text)
        return kept


def _crew_size(provider: Provider, pending: int) -> int:
    """Workers worth having: each costs a connection and a new server process, so no more than there are requests."""
    least = max(1, min(provider.batch_texts, provider.batch_bytes // _TEXT_BYTES))
    return max(1, min(provider.concurrency, -(-pending // least)))


def _embed_version(
    conn: Connection, crew: _Crew, workers: int, written_before: datetime, *, keep: bool
) -> None:
    """Let the crew work until what was written before that time has its vector. keep: leave the provider open."""
    calls = crew.provider.calls
    threads = [
        threading.Thread(target=crew.run, args=(number,), name=f"trecho embed {number}")
        for number in range(workers)
    ]
    try:
        check_probe(conn, crew.version, crew.provider)
        for thread in threads:
            thread.start()
        _supervise(conn, crew, threads, written_before)
    finally:
        crew.halt.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        crew.tally.calls += crew.provider.calls - calls
        if not keep:
            crew.provider.close()
    if crew.error is not None:
        raise crew.error


def _supervise(
    conn: Connection, crew: _Crew, threads: list[threading.Thread], written_before: datetime
) -> None:
    """Until the workers are done: apply now and then, so that long runs show results, and look at the model again."""
    applied = probed = looked = time.monotonic()
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(timeout=0.1)
            if thread.is_alive():
                break
        if crew.stop.is_set():
            crew.provider.stopping.set()
            continue
        now = time.monotonic()
        # The look costs what is staged and not applied yet: often only when the end is near.
        if now - looked > (_LOOK_EVERY_S if crew.tally.done >= crew.enough else _LOOK_SELDOM_S):
            looked = now
            if not _one(
                conn,
                "SELECT trecho.has_pending_embeddings(%s, %s, %s, %s) AS more",
                (crew.version, written_before, crew.only.pass_id, crew.only.project),
            )["more"]:
                crew.halt.set()
        if now - applied > _APPLY_EVERY_S:
            _apply(conn, crew.version)
            applied = time.monotonic()
        if now - probed > _PROBE_EVERY_S and crew.provider.leaves_process:
            check_probe(conn, crew.version, crew.provider)
            probed = time.monotonic()


def _apply(conn: Connection, version: int) -> int:
    left: int = _one(conn, "SELECT trecho.apply_embeddings(%s, %s) AS n", (version, _APPLY_ROWS))["n"]
    return left


def _apply_all(factory: ConnectionFactory, conn: Connection, version: int, stop: threading.Event) -> None:
    """Put every staged vector on its chunks, with a second connection where there is much to do."""

    def work(worker: Connection) -> None:
        left = None
        while not stop.is_set():
            before, left = left, _apply(worker, version)
            if left == 0:
                return
            if left == before:  # the rest is with other workers
                stop.wait(_POLL_S)

    if _apply(conn, version) < 2 * _APPLY_ROWS:
        work(conn)
        return
    failures: list[BaseException] = []

    def help_out() -> None:
        try:
            with _open(factory) as second:
                work(second)
        except BaseException as error:
            failures.append(error)

    helper = threading.Thread(target=help_out, name="trecho apply")
    helper.start()
    try:
        work(conn)
    finally:
        helper.join()
    if failures:
        raise failures[0]


def _counts(conn: Connection, version: int | None, only: Only) -> dict[int, dict[str, Any]]:
    rows = conn.execute(
        "SELECT * FROM trecho.pending_embeddings(%s, %s, %s)", (version, only.pass_id, only.project)
    ).fetchall()
    return {row["version"]: row for row in rows}


def _one(conn: Connection, query: str, parameters: Sequence[Any]) -> dict[str, Any]:
    row = conn.execute(query, parameters).fetchone()
    assert row is not None
    return row


def _factory(dsn: str) -> ConnectionFactory:
    return lambda: connect(dsn, application_name="trecho embed", autocommit=True)


@contextmanager
def _open(factory: ConnectionFactory) -> Iterator[Connection]:
    with factory() as conn:
        conn.autocommit = True
        teach_vectors(conn)
        try:
            yield conn
        except psycopg.Error as error:
            raise from_database(error) from error


# ------------------------------------------------------------------------------------------------ vectors as parameters


@dataclass(frozen=True)
class VectorParameter:
    """A vector as a parameter of a query. value: (768,) float32."""

    value: Any


@dataclass(frozen=True)
class _VectorsParameter:
    values: Sequence[Any]  # of (768,) float32


def teach_vectors(conn: Connection) -> None:
    """Send vectors in binary: as text they would cost more than everything else here. Their schema may be any."""
    types = _one(
        conn,
        "SELECT t.oid AS one, t.typarray AS many FROM pg_catalog.pg_attribute AS a"
        " JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid"
        " WHERE a.attrelid = 'trecho.staged_embeddings'::regclass AND a.attname = 'embedding'",
        (),
    )

    class One(Dumper):
        format = Format.BINARY
        oid = types["one"]

        def dump(self, obj: VectorParameter) -> bytes:
            return bytes(_records(obj.value.reshape(1, -1)).tobytes()[4:])

    class Many(Dumper):
        format = Format.BINARY
        oid = types["many"]

        def dump(self, obj: _VectorsParameter) -> bytes:
            import numpy as np

            # Dimensions, no NULLs, type of the elements; length and first index.
            header = struct.pack(">iiIii", 1, 0, types["one"], len(obj.values), 1)
            return header + bytes(_records(np.stack(obj.values)).tobytes())

    conn.adapters.register_dumper(VectorParameter, One)
    conn.adapters.register_dumper(_VectorsParameter, Many)


def _records(vectors: VectorArray) -> Any:
    """Vectors as elements of a binary array: length, number of dimensions, a spare field, the numbers."""
    import numpy as np

    count, dim = vectors.shape
    layout = np.dtype([("length", ">i4"), ("dim", ">u2"), ("unused", ">u2"), ("numbers", ">f4", (dim,))])
    records = np.zeros(count, dtype=layout)
    records["length"] = 4 + 4 * dim
    records["dim"] = dim
    records["numbers"] = vectors
    return records


# ------------------------------------------------------------------------------------------------ the command


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `trecho embed`."""
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="embed what is pending and end (the default)")
    mode.add_argument("--watch", action="store_true", help="stay, and embed what appears")
    mode.add_argument(
        "--list-quarantined", action="store_true", help="show what the secret scan holds back, and end"
    )
    mode.add_argument(
        "--release", metavar="HASH", help="let a quarantined text be embedded and found, and end"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="requests at once (default: what the provider bears)"
    )
    parser.add_argument("--retry-failed", action="store_true", help="try texts again that were given up")
    parser.add_argument("--index-version", type=int, metavar="N", help="only this index version")
    parser.add_argument(
        "--full", action="store_true", help="embed everything again, into a new version beside the old"
    )


def run(args: argparse.Namespace) -> int:
    """Embed once, or watch. Returns an ExitCode."""
    dsn = find_dsn(args.dsn)
    if args.workers is not None and not 1 <= args.workers <= 64:
        raise UsageError(f"--workers must be between 1 and 64, got {args.workers}")
    if args.list_quarantined:
        return _list_quarantined(dsn, args.json)
    if args.release is not None:
        return _release(dsn, args.release, args.json)
    if args.retry_failed:
        _retry_failed(dsn, args.index_version)
    with stopped_by_signals() as stop:
        if args.watch:
            return _watch(dsn, args, stop)
        report = _drain(dsn, args, stop)
    _show(report, args.json)
    return report.exit_code


def _drain(dsn: str, args: argparse.Namespace, stop: threading.Event) -> EmbedReport:
    with Meter("embedding", "text") as meter:
        report = embed_pending(
            dsn,
            index_version=args.index_version,
            on_progress=meter.update,
            workers=args.workers,
            stop=stop,
            raise_problems=False,
        )
        if args.index_version is None and not stop.is_set():
            report = _build(dsn, args, report, stop)
        return report


def _build(dsn: str, args: argparse.Namespace, report: EmbedReport, stop: threading.Event) -> EmbedReport:
    """Where the recipe has drifted, build the version it wants; what that embedded is added to the report."""
    from trecho.version import build

    result = build(dsn, full=args.full, workers=args.workers, stop=stop)
    args.full = False  # once, however long --watch lasts
    if result.embedded is None:
        return report
    if result.activated:
        note(f"index version {result.version} is active now")
    more = result.embedded
    return replace(
        report,
        texts=report.texts + more.texts,
        seconds=report.seconds + more.seconds,
        failed=more.failed if result.activated else report.failed,
        quarantined=more.quarantined if result.activated else report.quarantined,
        provider_calls=report.provider_calls + more.provider_calls,
        pending=more.pending if result.activated else report.pending + more.pending,
        problems=report.problems + more.problems,
    )


def _watch(dsn: str, args: argparse.Namespace, stop: threading.Event) -> int:
    """Drain, then wait for NOTIFY; a provider or a database that is down is told once, and tried again."""
    told = ""
    pause = 1.0
    while not stop.is_set():
        try:
            with connect(dsn, application_name="trecho embed watch", autocommit=True) as conn:
                conn.execute(f"LISTEN {CHANNEL}")
                while not stop.is_set():
                    report = _drain(dsn, args, stop)
                    problem = str(report.problems[0]) if report.problems else ""
                    if problem != told:
                        note(
                            f"warning: {problem}; trying again"
                            if problem
                            else "the embedding provider is back"
                        )
                        told = problem
                    if report.texts:
                        _show(report, args.json)
                    pause = min(pause * 2, 60.0) if problem else 1.0
                    if problem:
                        stop.wait(pause)
                    else:
                        _await_work(conn, stop)
        except (psycopg.OperationalError, TrechoError) as error:
            if isinstance(error, TrechoError) and error.exit_code is not ExitCode.ERROR:
                raise
            if str(error) != told:
                note(f"warning: {error}; trying again")
                told = str(error)
            pause = min(pause * 2, 60.0)
            stop.wait(pause)
    return ExitCode.DONE


def _await_work(conn: Connection, stop: threading.Event) -> None:
    """Return at a NOTIFY, and after half a minute in any case: a retry may be due, a lease may have ended."""
    until = time.monotonic() + _WATCH_POLL_S
    while not stop.is_set() and time.monotonic() < until:
        for _ in conn.notifies(timeout=0.5, stop_after=1):
            return


def _show(report: EmbedReport, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
    else:
        rate = f", {report.texts / report.seconds:.0f}/s" if report.texts and report.seconds > 0 else ""
        line = f"{report.texts} texts embedded in {report.seconds:.1f} s{rate}"
        for count, what in (
            (report.pending, "pending"),
            (report.failed, "failed (trecho embed --retry-failed)"),
            (report.quarantined, "quarantined (trecho embed --list-quarantined)"),
        ):
            if count:
                line += f"; {count} {what}"
        print(line)
    for problem in report.problems:
        note(f"error: {problem}")
        if problem.hint:
            note(f"hint: {problem.hint}")


def _retry_failed(dsn: str, version: int | None) -> None:
    with _open(_factory(dsn)) as conn:
        conn.execute(
            "SELECT trecho.retry_failed(index_version, '0') FROM trecho.embedding_recipes()"
            " WHERE index_version = coalesce(%s::integer, index_version)",
            (version,),
        )


def _list_quarantined(dsn: str, as_json: bool) -> int:
    with _open(_factory(dsn)) as conn:
        rows = conn.execute("SELECT * FROM trecho.list_quarantined()").fetchall()
    for row in rows:
        row["text_hash"] = row["text_hash"].hex()
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            print(
                f"{row['text_hash']}  {row['project_name']}  {row['source']}  {row['symbol'] or '-'}  {row['reason']}"
            )
    return ExitCode.DONE


def _release(dsn: str, text_hash: str, as_json: bool) -> int:
    try:
        key = bytes.fromhex(text_hash)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise UsageError(
            "--release wants a text hash of 64 hexadecimal digits",
            hint="trecho embed --list-quarantined shows them.",
        )
    with _open(_factory(dsn)) as conn:
        chunks = _one(conn, "SELECT trecho.release_text(%s) AS chunks", (key,))["chunks"]
    if as_json:
        print_json({"chunks": chunks})
    else:
        print(f"{chunks} chunks released; trecho embed gives them their vectors")
    return ExitCode.DONE


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """SIGTERM and SIGINT end the run after the batches under way; a second one ends it at once."""
    stop = threading.Event()

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
