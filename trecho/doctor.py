"""`trecho doctor`: compare the index with its sources and with itself, and mend what is damaged when asked to."""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from trecho import sync
from trecho.config import SCOPES, Config, Source, find_config, folder_source, load_config
from trecho.console import note, print_json
from trecho.db import Connection, connection, find_dsn
from trecho.errors import ExitCode, TrechoError, UsageError
from trecho.reconcile import Options, Outcome, Target
from trecho.sources import SourceFile, read_folder

if TYPE_CHECKING:
    from trecho.git import Repository

HELP = "compare the index with its sources and with itself; --repair mends it"

# Rounds of repair: mending one thing may bring another to light (a restored text, and then its passages).
_ROUNDS = 50
_REPAIR_ROWS = 1000
_EXAMPLES = 5
# How a hook says "there is no commit": sync then reads the whole tree.
_ZERO = "0" * 40
EVERY_PROJECT = "every project"
# Findings about sources; the others come from trecho.check_index.
_SOURCE_REPAIRS = {
    "changed sources": "sync the source set: its documents become what the files say",
    "new sources": "sync the source set: the files are indexed",
    "removed sources": "sync the source set: their documents go",
    "unreadable sources": "make the files readable; what the index has of them stays",
    "commits behind": "trecho sync --git",
}


@dataclass(frozen=True)
class Finding:
    """What is wrong. severity: damage, stale, failed, leftover, skipped; findings: how many, None when not checked."""

    check: str
    severity: str
    object: str
    findings: int | None
    example: str
    repair: str


@dataclass
class Report:
    """What a run found and did."""

    project: str
    findings: list[Finding] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    repaired: dict[str, int] = field(default_factory=dict)
    usable: bool = True
    # Chunks whose vector is not that of their text, by index version.
    wrong_vectors: dict[int, list[int]] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        """The worst of what is left: damage, nothing to search, texts given up, behind."""
        left = {finding.severity for finding in self.findings}
        if "damage" in left:
            return ExitCode.ERROR
        if not self.usable:
            return ExitCode.NOT_USABLE
        if "failed" in left:
            return ExitCode.SOME_FAILED
        return ExitCode.NOT_CURRENT if "stale" in left else ExitCode.DONE


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `trecho doctor`: where the sources are is said as to `trecho sync`."""
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="compare with this folder, not with trecho.toml",
    )
    parser.add_argument("--scope", choices=SCOPES, default=None, help="what FOLDER holds (default: docs)")
    parser.add_argument("--set", dest="set_name", metavar="NAME", help="name of the source set of FOLDER")
    parser.add_argument(
        "--git",
        nargs="?",
        const="",
        default=None,
        metavar="COMMIT",
        help="compare with a commit (default: the one last indexed)",
    )
    parser.add_argument("--repo", type=Path, default=Path(), metavar="FOLDER", help="repository of --git")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (default: as trecho sync)")
    parser.add_argument("--project", metavar="NAME", help="project (default: the configuration's)")
    parser.add_argument(
        "--branch", metavar="NAME", help="branch (default: as trecho sync; HEAD's where git feeds it)"
    )
    parser.add_argument(
        "--no-sources",
        action="store_true",
        help="look at the database alone, at every project unless --project",
    )
    parser.add_argument("--quick", action="store_true", help="leave out what computes every row anew")
    parser.add_argument(
        "--vectors",
        type=int,
        default=0,
        metavar="N",
        help="embed N passages anew and compare their vectors (asks the provider; default: none)",
    )
    parser.add_argument("--repair", action="store_true", help="mend what is found, then look again")
    parser.add_argument("--no-embed", action="store_true", help="with --repair: leave vectors to a worker")


def run(args: argparse.Namespace) -> int:
    """Exit codes: 0 nothing wrong; 1 damage; 5 not usable; 6 behind its sources or pending; 7 texts failed."""
    dsn = find_dsn(args.dsn)
    args = _as_indexed(args, dsn)
    report = examine(args, dsn)
    if args.repair and any(finding.severity != "skipped" for finding in report.findings):
        repaired = _repair(args, dsn, report)
        report = examine(args, dsn)
        report.repaired = repaired
    if args.json:
        print_json(asdict(report) | {"exit_code": int(report.exit_code)})
    else:
        print("\n".join(_page(report, args.repair)))
    return report.exit_code


def _as_indexed(args: argparse.Namespace, dsn: str) -> argparse.Namespace:
    """As if --git had been given, where the branch is one that commits of this repository were indexed into."""
    if args.no_sources or args.git is not None or args.folder is not None or args.config is not None:
        return args
    found = _repository(args.repo)
    if found is None:
        return args
    repo, config = found
    project, branch = args.project or config.project, args.branch or repo.current_branch()
    if branch is None:  # a checkout of a commit, whose files may be those of trecho.toml all the same
        return args
    with connection(dsn, application_name="trecho doctor", autocommit=True) as conn:
        if _indexed_commit(conn, project, branch) is None:
            return args
    note(f"note: {project}/{branch} was indexed from commits: comparing with them, as --git does")
    return argparse.Namespace(**vars(args) | {"git": ""})


def _repository(folder: Path) -> tuple[Repository, Config] | None:
    """The repository around a folder and the configuration at its top; None without one, or where another is nearer."""
    from trecho.git import Repository

    try:
        repo = Repository(folder)
    except TrechoError:  # no repository, or no git
        return None
    path, top = find_config(folder), repo.root()
    if path is None:
        return repo, Config(Path())
    return (repo, load_config(path)) if top is not None and path.parent == top.resolve() else None


def _indexed_commit(conn: Connection, project: str, branch: str) -> str | None:
    row = conn.execute("SELECT * FROM trecho.branch_commit(%s, %s)", (project, branch)).fetchone()
    return row["last_commit"] if row else None


def _other_branch(args: argparse.Namespace, conn: Connection, project: str, branch: str) -> str:
    """Why the files here say nothing about a branch: they are of another one, and it is made of commits."""
    found = _repository(args.repo) if args.config is None else None
    here = found[0].current_branch() if found else None
    if here in (None, branch) or _indexed_commit(conn, project, branch) is None:
        return ""
    return (
        f"branch {here} of HEAD is not indexed, and {project}/{branch} is made of commits: trecho sync --git indexes "
        f"{here}, trecho doctor --branch {branch} compares with the commits of {branch}"
    )


def examine(args: argparse.Namespace, dsn: str) -> Report:
    """Look, and change nothing."""
    with connection(dsn, application_name="trecho doctor", autocommit=True) as conn:
        differences, config = _visit_sources(
            args, dsn, conn, lambda target, files: _compare(conn, target, files)
        )
        project = None if args.no_sources and not args.project else args.project or config.project
        report = Report(project or EVERY_PROJECT)
        report.findings += differences
        if args.vectors:
            report.findings += _compare_vectors(conn, project, args.vectors, report)
        rows = conn.execute(
            "SELECT * FROM trecho.check_index(%s, %s, true)", (project, not args.quick)
        ).fetchall()
        usable = conn.execute(
            "SELECT coalesce(bool_or(h.usable), true) AS usable FROM unnest(%s::text[]) AS p,"
            " LATERAL trecho.index_health(p) AS h",
            ([project] if project else [],),
        ).fetchone()
    report.usable = bool(usable and usable["usable"])
    for row in rows:
        if row["severity"] == "ok":
            if row["check_name"] not in report.passed:
                report.passed.append(row["check_name"])
        else:
            report.findings.append(
                Finding(
                    row["check_name"],
                    row["severity"],
                    row["object"],
                    row["findings"],
                    row["example"],
                    row["repair"],
                )
            )
    failed = {finding.check for finding in report.findings}
    report.passed = [name for name in report.passed if name not in failed]
    if not differences:
        report.passed.insert(0, "sources")
    if args.vectors and _RESAMPLED not in failed:
        report.passed.append(_RESAMPLED)
    return report


# ---- sources -----------------------------------------------------------------------------------------------

# Gets every file of a source set; what it returns are findings.
Visit = Callable[[Target, Iterable[SourceFile]], list[Finding]]


def _visit_sources(
    args: argparse.Namespace, dsn: str, conn: Connection, visit: Visit
) -> tuple[list[Finding], Config]:
    """Read every source. Returns what was found, and the configuration that says where they are."""
    given = args.folder is not None or args.git is not None or args.config is not None
    path = args.config or find_config()
    if args.no_sources:
        if given:
            raise UsageError(
                "--no-sources goes with neither FOLDER, --git nor --config",
                hint="Leave --no-sources out to compare with them.",
            )
        return [_skipped("--no-sources")], Config(Path())
    if args.git is not None:
        return _visit_commit(args, conn, visit)
    if args.folder is not None:
        if not args.folder.is_dir():
            raise UsageError(f"{args.folder} is not a folder", hint="Give a folder that exists.")
        config = Config(args.folder)
        source = folder_source(args.folder, args.scope or "docs", args.set_name)
        place = (args.project or config.project, args.branch or config.branch)
        sources: tuple[Source, ...] = (sync.place_folder(conn, *place, source),)
    elif path is None:
        return [_skipped("no trecho.toml here or above, and no folder given")], Config(Path())
    else:
        config = load_config(path)
        sources = config.sources
        why = _other_branch(args, conn, args.project or config.project, args.branch or config.branch)
        if why:
            return [_skipped(why)], config
    findings: list[Finding] = []
    limit = _max_document_bytes(conn)
    for source in sources:
        if source.scope == "code":
            findings.append(_skipped(f"set {source.set_name} is code: compare it with --git"))
            continue
        target = Target(
            args.project or config.project, args.branch or config.branch, source.set_name, source.scope
        )
        findings += visit(target, read_folder(source, limit))
    return findings, config


def _visit_commit(args: argparse.Namespace, conn: Connection, visit: Visit) -> tuple[list[Finding], Config]:
    """The same for a commit of git: the one that the branch was last brought to, unless another is named."""
    from trecho import git_sync
    from trecho.git import Repository

    repo = Repository(args.repo)
    branch = repo.branch(args.branch)
    revision = _revision(args, repo)
    head = repo.commit(revision)
    if head is None:
        raise UsageError(
            f"{revision!r} is no commit of {args.repo.resolve()}", hint="Give --git a commit that it has."
        )
    config = git_sync.repository_config(repo, head, args.config)
    project = args.project or config.project
    findings: list[Finding] = []
    last = _indexed_commit(conn, project, branch)
    recorded = repo.commit(last) if last else None
    commit = head if args.git or recorded is None else recorded
    if commit != head:
        findings.append(
            Finding(
                "commits behind",
                "stale",
                f"{project}/{branch}",
                1,
                f"indexed is {commit[:12]}, the branch is at {head[:12]}",
                _SOURCE_REPAIRS["commits behind"],
            )
        )
        config = git_sync.repository_config(repo, commit, args.config)

    def run_one(target: Target, files: Iterable[SourceFile], _options: Options) -> Outcome:
        findings.extend(visit(target, files))
        return Outcome(target.project, target.branch, target.source_set)

    limit = _max_document_bytes(conn)
    git_sync.sync_commit(conn, repo, config, (project, branch), commit, True, Options(), limit, run_one)
    return findings, config


def _revision(args: argparse.Namespace, repo: Repository) -> str:
    """What --git means: the revision given, else the branch given where the repository has it, else HEAD."""
    named = f"refs/heads/{args.branch}"
    return args.git or (named if args.branch and repo.commit(named) else "HEAD")


def _skipped(why: str) -> Finding:
    return Finding("sources", "skipped", "sources", None, why, "")


def _max_document_bytes(conn: Connection) -> int:
    row = conn.execute("SELECT recipe FROM trecho.embedding_recipes() LIMIT 1").fetchone()
    settings = row["recipe"]["chunk_settings"] if row else {}
    return int((settings or {}).get("max_document_bytes", 524288))


def _documents(conn: Connection, target: Target) -> dict[str, dict[str, Any]]:
    """Path -> what the index holds of a source set."""
    rows = conn.execute(
        "SELECT * FROM trecho.document_hashes(%s, %s, %s)", (target.project, target.branch, target.source_set)
    ).fetchall()
    return {row["path"]: row for row in rows}


def _compare(conn: Connection, target: Target, files: Iterable[SourceFile]) -> list[Finding]:
    """What a pass over the set would do."""
    known = _documents(conn, target)
    seen: set[str] = set()
    unreadable: list[str] = []
    found: dict[str, list[str]] = {name: [] for name in _SOURCE_REPAIRS}
    for file in files:
        if file.data is None:
            if file.skip_reason.startswith("unreadable"):
                unreadable.append(file.path)
                found["unreadable sources"].append(f"{file.path}: {file.skip_reason}")
            continue
        seen.add(file.path)
        row = known.get(file.path)
        if row is None:
            found["new sources"].append(file.path)
        elif (
            row["scope"] != target.scope
            or row["blob_sha"] != hashlib.sha256(file.data).digest()
            or row["diverged"]
        ):
            found["changed sources"].append(file.path)
    hidden = tuple(path for path in unreadable if path.endswith("/"))
    found["removed sources"] = [
        path
        for path in sorted(known)
        if path not in seen and path not in unreadable and not (hidden and path.startswith(hidden))
    ]
    return [
        Finding(
            name,
            "failed" if name == "unreadable sources" else "stale",
            f"set {target.source_set} ({target.project}/{target.branch})",
            len(paths),
            "; ".join(paths[:_EXAMPLES]),
            _SOURCE_REPAIRS[name],
        )
        for name, paths in found.items()
        if paths
    ]


# ---- vectors -----------------------------------------------------------------------------------------------

_RESAMPLED = "vectors of their text"
# Passages handed to the provider at once.
_SAMPLE_BATCH = 32
# Cosine distance over which it is another text or model; other processors and batch sizes move a vector by about 1e-4.
_FAR = 0.02


def _compare_vectors(conn: Connection, project: str | None, count: int, report: Report) -> list[Finding]:
    """Embed passages drawn at random again: what is far from the stored vector is of another text or model."""
    from trecho.providers import TextRejected, provider_for

    rows = conn.execute("SELECT * FROM trecho.sample_vectors(%s, %s)", (count, project)).fetchall()
    if not rows:
        return []
    version = rows[0]["index_version"]
    recipe = conn.execute(
        "SELECT recipe FROM trecho.embedding_recipes() WHERE index_version = %s", (version,)
    ).fetchone()
    if recipe is None:
        return []
    names = {row["chunk_key"]: row["chunk_id"] for row in rows}
    far: dict[int, float] = {}
    try:
        provider = provider_for(recipe["recipe"])
        try:
            for first in range(0, len(rows), _SAMPLE_BATCH):
                batch = rows[first : first + _SAMPLE_BATCH]
                made = provider.embed_passages([row["text"] for row in batch])
                good = [
                    (row["chunk_key"], vector)
                    for row, vector in zip(batch, made, strict=True)
                    if not isinstance(vector, TextRejected)
                ]
                distances = conn.execute(
                    "SELECT * FROM trecho.vector_distances(%s, %s, %s)",
                    (version, [key for key, _ in good], [str(vector.tolist()) for _, vector in good]),
                ).fetchall()
                far |= {row["chunk_key"]: row["distance"] for row in distances if row["distance"] > _FAR}
        finally:
            provider.close()
    except TrechoError as error:  # the provider is down, or cannot be used from here
        return [Finding(_RESAMPLED, "skipped", f"version {version}", None, str(error), "")]
    if not far:
        return []
    report.wrong_vectors[version] = sorted(far)
    worst = sorted(far, key=lambda key: -far[key])[:_EXAMPLES]
    return [
        Finding(
            _RESAMPLED,
            "damage",
            f"version {version}, {len(rows)} passages tried",
            len(far),
            "; ".join(f"{names[key]} (distance {far[key]:.3f})" for key in worst),
            "forget the vectors; a worker (trecho embed) makes them again",
        )
    ]


# ---- repair ------------------------------------------------------------------------------------------------


def _repair(args: argparse.Namespace, dsn: str, report: Report) -> dict[str, int]:
    """Mend what can be mended, the database first. Returns check -> how many."""
    checks = {finding.check for finding in report.findings if finding.severity != "skipped"}
    project = None if report.project == EVERY_PROJECT else report.project
    repaired: Counter[str] = Counter()
    with connection(dsn, application_name="trecho doctor", autocommit=True) as conn:
        if "texts" in checks:
            repaired["texts"] += _restore_texts(args, dsn, conn)
        if checks & {"indexes", "other indexes"}:
            repaired["indexes"] += _reindex(conn)
        for version, keys in report.wrong_vectors.items():
            conn.execute("SELECT trecho.forget_vectors(%s, %s)", (version, keys))
            repaired[_RESAMPLED] += len(keys)
        for _ in range(_ROUNDS):
            rows = conn.execute(
                "SELECT * FROM trecho.repair_index(%s, NULL, %s)", (project, _REPAIR_ROWS)
            ).fetchall()
            for row in rows:
                repaired[row["check_name"]] += row["repaired"]
            recut = _recut_here(conn, project)
            repaired["passages"] += recut
            if not rows and not recut:
                break
    if checks & {"changed sources", "new sources", "removed sources", "commits behind"}:
        _sync(args, dsn)
        for finding in report.findings:
            if finding.check in _SOURCE_REPAIRS and finding.severity == "stale":
                repaired[finding.check] += finding.findings or 0
    if not args.no_embed:
        _embed(dsn)
    return dict(+repaired)


def _restore_texts(args: argparse.Namespace, dsn: str, conn: Connection) -> int:
    """Put texts back from their files: a file whose hash is the recorded one holds what the database lost."""
    count = 0

    def restore(target: Target, files: Iterable[SourceFile]) -> list[Finding]:
        nonlocal count
        damaged = {row["blob_sha"] for row in _documents(conn, target).values() if row["damaged"]}
        for file in files:
            if damaged and file.data is not None and hashlib.sha256(file.data).digest() in damaged:
                row = conn.execute("SELECT trecho.restore_text(%s) AS done", (file.data.decode(),)).fetchone()
                count += bool(row and row["done"])
        return []

    _visit_sources(args, dsn, conn, restore)
    return count


def _reindex(conn: Connection) -> int:
    """Rebuild what is not valid beside readers and writers, where this role may; repair_index does the rest."""
    row = conn.execute(
        "SELECT pg_catalog.pg_has_role(current_user, 'trecho_owner', 'MEMBER') AS may"
    ).fetchone()
    if not row or not row["may"]:
        note("note: this role is no member of trecho_owner: indexes are rebuilt while writers wait")
        return 0
    names = conn.execute(
        "SELECT c.relname AS name FROM pg_catalog.pg_index AS i"
        "  JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid"
        "  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'trecho' AND NOT (i.indisvalid AND i.indisready) ORDER BY 1"
    ).fetchall()
    count = 0
    for name in names:
        statement = sql.SQL("REINDEX INDEX CONCURRENTLY {}").format(sql.Identifier("trecho", name["name"]))
        note(statement.as_string(conn))
        try:
            conn.execute(statement)
            count += 1
        except psycopg.Error as error:
            # What is left of it is not valid either; repair_index takes its turn.
            note(f"warning: {error.diag.message_primary or error}")
    return count


def _recut_here(conn: Connection, project: str | None) -> int:
    """Where the server has no chunkers, cut damaged documents in this process."""
    row = conn.execute("SELECT trecho.chunking() AS chunking").fetchone()
    if not row or row["chunking"] != "client":
        return 0
    from trecho.client_chunking import cut

    count = 0
    for row in conn.execute("SELECT * FROM trecho.documents_to_recut(%s)", (project,)).fetchall():
        made = cut(
            row["path"], row["content"], row["scope"], {"it": row["chunk_settings"]}, row["project_name"]
        )
        if made.chunks is None:
            note(f"warning: {row['path']}: {made.error}")
            continue
        done = conn.execute(
            "SELECT trecho.recut_document(%s, %s, %s) AS done",
            (row["index_version"], row["document_id"], Jsonb(made.chunks["it"])),
        ).fetchone()
        count += bool(done and done["done"])
    return count


def _sync(args: argparse.Namespace, dsn: str) -> None:
    """What `trecho sync` does for the same sources."""
    words: list[str] = []
    if args.folder is not None:
        words.append(str(args.folder))
    for option, value in (
        ("--scope", args.scope),
        ("--set", args.set_name),
        ("--config", args.config),
        ("--project", args.project),
        ("--branch", args.branch),
    ):
        if value is not None:
            words += [option, str(value)]
    if args.git is not None:
        # The whole tree: what differs may be in no commit.
        from trecho.git import Repository

        revision = _revision(args, Repository(args.repo))
        words += ["--git", f"{_ZERO}..{revision}", "--repo", str(args.repo)]
    if args.no_embed:
        words.append("--no-embed")
    parser = argparse.ArgumentParser()
    sync.configure(parser)
    sync.run(parser.parse_args(words, argparse.Namespace(dsn=dsn, json=False, debug=args.debug)))


def _embed(dsn: str) -> None:
    """Give what waits its vector; a provider that is down leaves it waiting, and the report says so."""
    with connection(dsn, application_name="trecho doctor", autocommit=True) as conn:
        row = conn.execute(
            "SELECT sum(pending + staged) AS waiting FROM trecho.pending_embeddings()"
        ).fetchone()
    if not row or not row["waiting"]:
        return
    from trecho.embed import embed_pending

    for problem in embed_pending(dsn, raise_problems=False).problems:
        note(f"warning: {problem}")


# ---- the page ----------------------------------------------------------------------------------------------

_WORDS = {
    "damage": "damaged",
    "stale": "behind",
    "failed": "failed",
    "leftover": "leftover",
    "skipped": "skipped",
}


def _page(report: Report, repair: bool) -> Iterator[str]:
    """The report for a person: what is wrong, what was mended, and in one line how it stands."""
    for check, number in report.repaired.items():
        yield f"repaired  {check}: {number}"
    for finding in report.findings:
        count = "" if finding.findings is None else f": {finding.findings}"
        yield f"{_WORDS[finding.severity]:<9} {finding.check}{count} ({finding.object})"
        if finding.example:
            more = " ..." if finding.findings is not None and finding.findings > _EXAMPLES else ""
            yield f"          {finding.example}{more}"
        if finding.repair and finding.severity != "skipped":
            yield f"          repair: {finding.repair}"
    skipped = [finding.check for finding in report.findings if finding.severity == "skipped"]
    wrong = len(report.findings) - len(skipped)
    yield (
        f"{report.project}: {wrong or 'no'} finding{'' if wrong == 1 else 's'}; {len(report.passed)} checks passed"
        + (f", not checked: {', '.join(dict.fromkeys(skipped))}" if skipped else "")
    )
    if wrong and not repair:
        yield "trecho doctor --repair mends what can be mended"
