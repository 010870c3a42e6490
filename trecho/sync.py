"""`trecho sync`: make the index equal to folders or to a git repository."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import Jsonb

from trecho.config import SCOPES, Config, Source, find_config, folder_prefixes, folder_source, load_config
from trecho.console import note, print_json
from trecho.db import Connection, connection, find_dsn
from trecho.errors import ExitCode, MassDelete, Refused, UsageError
from trecho.progress import TerminalProgress
from trecho.reconcile import Embedder, Options, Outcome, Target, run_pass
from trecho.sources import SourceFile, read_folder
from trecho.status import counted

if TYPE_CHECKING:
    from trecho.embed import Progress

HELP = "make the index equal to folders (trecho.toml, or one FOLDER with --scope)"
# A deleted branch waits for a pass over its project, up to a minute.
_DROP_TRIES = 120
_DROP_PAUSE_S = 0.5
_MOST_JOBS = 64
_CODE_HINT = (
    "An index of code is only true while git keeps it so: commit it and use trecho sync --git. "
    "A plain folder of code can be indexed with --scope docs if you accept that it goes stale."
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="one folder instead of the sources of trecho.toml",
    )
    parser.add_argument("--scope", choices=SCOPES, default=None, help="what FOLDER holds (default: docs)")
    parser.add_argument(
        "--set",
        dest="set_name",
        metavar="NAME",
        help="name of the source set of FOLDER (default: its full path)",
    )
    parser.add_argument(
        "--git",
        nargs="?",
        const="",
        default=None,
        metavar="BEFORE..AFTER",
        help="read commits, not folders; without a range, from the commit last indexed to HEAD",
    )
    parser.add_argument(
        "--repo", type=Path, default=Path(), metavar="FOLDER", help="repository of --git (default: here)"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration (default: trecho.toml here, above, or in the commit)",
    )
    parser.add_argument(
        "--project", metavar="NAME", help="project (default: the configuration's, else default)"
    )
    parser.add_argument(
        "--branch", metavar="NAME", help="branch (default: the configuration's; with --git, HEAD's)"
    )
    parser.add_argument(
        "--no-embed",
        action="store_true",
        help="publish without vectors: found by words at once, vectors follow later",
    )
    parser.add_argument(
        "--chunking",
        choices=("server", "client"),
        default=None,
        help="where to chunk (default: as migrate recorded)",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="build a new version of the same recipe and embed everything again",
    )
    parser.add_argument(
        "--allow-mass-delete", action="store_true", help="let a pass remove all, or most, of its set"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="connections that chunk (default: one per core, 4 at most)",
    )
    parser.add_argument("--verbose", action="store_true", help="name every file that was left out")


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.jobs <= _MOST_JOBS:
        raise UsageError(f"--jobs must be between 0 and {_MOST_JOBS}, got {args.jobs}")
    with _Database(find_dsn(args.dsn)) as database:
        outcomes = _sync_folders(args, database) if args.git is None else _sync_git(args, database)
        code = _exit_code(outcomes)
        if not args.no_embed and code in (ExitCode.DONE, ExitCode.SOME_FAILED):
            code = _follow_recipe(args, database) or code
    if args.json:
        print_json([_as_json(outcome) for outcome in outcomes])
    return code


class _Database:
    """The database of a sync, and the one connection for all it does there, opened when it is first needed."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._stack = ExitStack()

    def __enter__(self) -> _Database:
        self._stack.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    @cached_property
    def conn(self) -> Connection:
        return self._stack.enter_context(
            connection(self.dsn, application_name="trecho sync", autocommit=True)
        )


def _follow_recipe(args: argparse.Namespace, database: _Database) -> int:
    """Build a version of the wanted recipe where it has drifted from the active one, or where --full asks for it."""
    row = database.conn.execute("SELECT EXISTS (SELECT FROM trecho.drift()) AS drifted").fetchone()
    if not args.full and not (row and row["drifted"]):
        database.conn.execute("SELECT trecho.drop_expired_version()")  # one a sync is enough
        return ExitCode.DONE
    from trecho.version import build

    note(
        "building an index version beside the active one: "
        + ("--full" if args.full else "the recipe has changed")
    )
    result = build(database.dsn, full=args.full)
    state = (
        "active" if result.activated else result.waits_for or "not complete yet, trecho embed goes on with it"
    )
    note(f"version {result.version}: {state}")
    return result.exit_code


def _sync_folders(args: argparse.Namespace, database: _Database) -> list[Outcome]:
    config, sources = _sources(args)
    options, limit = _prepare(args, database, config)
    run_one = _runner(args, database)
    project, branch = args.project or config.project, args.branch or config.branch
    if args.folder is not None:
        sources = (place_folder(database.conn, project, branch, sources[0]),)
        record_sets(database.conn, project, branch, "", sources)
    outcomes: list[Outcome] = []
    refused: list[MassDelete] = []
    for source in sources:
        target = Target(project, branch, source.set_name, source.scope)
        try:
            outcomes.append(run_one(target, read_folder(source, limit), options))
        except MassDelete as error:  # is no reason to leave the other sets as they are
            refused.append(error)
    if args.folder is not None:
        _name_configuration(sources[0], outcomes)
    else:
        left = record_sets(database.conn, project, branch, config.path.resolve().as_posix(), sources)
        _name_left_sets(left, str(config.path), (project, branch), sources, outcomes)
    for more in refused[1:]:
        note(f"error: {more}")
    if refused:
        raise refused[0]
    return outcomes


def place_folder(conn: Connection, project: str, branch: str, source: Source) -> Source:
    """A folder without a configuration, with the beginning of its paths that collides with no other set."""
    row = conn.execute(
        "SELECT * FROM trecho.folder_prefix(%s, %s, %s, %s)",
        (project, branch, source.set_name, folder_prefixes(source.root)),
    ).fetchone()
    if row is None:
        return source
    if row["taken_by"] is not None:
        note(
            f"note: paths of {source.root} begin with {row['prefix']}, since {row['taken_by']} has documents below "
            f"{source.prefix}"
        )
    return replace(source, prefix=row["prefix"])


def record_sets(
    conn: Connection, project: str, branch: str, configuration: str, sources: tuple[Source, ...]
) -> list[dict[str, Any]]:
    """Remember which sets the configuration names. Returns those that it named once, and folders without one."""
    return conn.execute(
        "SELECT * FROM trecho.record_source_sets(%s, %s, %s, %s)",
        (project, branch, configuration, [source.set_name for source in sources]),
    ).fetchall()


def _name_left_sets(
    left: list[dict[str, Any]],
    configuration: str,
    place: tuple[str, str],
    sources: tuple[Source, ...],
    outcomes: list[Outcome],
) -> None:
    """Say which sets keep documents that no source brings any more, and how they go. Nothing is removed."""
    project, branch = place
    where = shlex.join(["--project", project, "--branch", branch])
    for row in left:
        name, quoted = row["source_set"], shlex.quote(row["source_set"])
        count = counted(row["documents"])
        if row["left_configuration"]:
            note(
                f"note: source set {name} ({project}/{branch}) is not in {configuration} any more and keeps {count}; "
                f"to remove them: trecho set remove {quoted} {where}"
            )
            continue
        twins = [s.set_name for s in sources if _overlap(Path(name), s.root)]
        if not twins:
            continue
        failed = [line for outcome in outcomes for line in outcome.failed]
        claimed = [t for t in twins if any(f"two source sets, {name} and {t} " in line for line in failed)]
        if not claimed and not row["doubled"]:
            continue
        # The set that could not have its files gets them; else they are there twice.
        twin = shlex.quote((claimed or twins)[0])
        note(
            f"note: source set {name} ({project}/{branch}), synced without {configuration}, keeps {count}, "
            + (
                f"and source set {claimed[0]} reads their files; "
                f"to hand them over: trecho set rename {quoted} {twin} {where}, then sync again"
                if claimed
                else f"{row['doubled']} of them also in {configuration}; "
                f"to remove them: trecho set remove {quoted} {where}"
            )
        )


def _name_configuration(source: Source, outcomes: list[Outcome]) -> None:
    """A folder whose files another set has: say so where that is the configuration around it."""
    path = find_config(source.root)
    if path is None or not any("two source sets, " in line for o in outcomes for line in o.failed):
        return
    try:
        named = [s.set_name for s in load_config(path).sources if _overlap(s.root, source.root)]
    except UsageError:
        return  # it is not what was asked for
    if named:
        note(
            f"note: {path} reads this folder as source set {' and '.join(named)}; "
            f"to bring it as that: trecho sync --config {shlex.quote(str(path))}"
        )


def _overlap(one: Path, other: Path) -> bool:
    return one == other or one in other.parents or other in one.parents


def _sync_git(args: argparse.Namespace, database: _Database) -> list[Outcome]:
    from trecho import git_sync
    from trecho.git import Repository

    if args.folder is not None or args.scope or args.set_name:
        raise UsageError(
            "--git takes no FOLDER, --scope or --set",
            hint="Write the sources into trecho.toml of the repository.",
        )
    repo = Repository(args.repo)
    before, after = git_sync.split_range(args.git or repo.tip(args.branch))
    branch = repo.branch(args.branch, after)
    if git_sync.is_zero(after):
        # The project is what the branch said when it was indexed.
        last = (repo.commit(before) if before else None) or repo.commit("HEAD")
        config = git_sync.repository_config(repo, last, args.config) if last else Config(Path())
        return [_drop_branch(database.conn, args.project or config.project, branch)]
    commit = repo.commit(after)
    if commit is None:
        raise UsageError(
            f"{after!r} is no commit of {args.repo.resolve()}", hint="Give a commit that the repository has."
        )
    config = git_sync.repository_config(repo, commit, args.config)
    options, limit = _prepare(args, database, config)
    target = (args.project or config.project, branch)
    whole = git_sync.is_zero(before)
    run_one = _runner(args, database)
    outcomes = git_sync.sync_commit(
        database.conn, repo, config, target, commit, whole, options, limit, run_one
    )
    left = record_sets(database.conn, *target, "git", config.sources)
    root = repo.root()
    rooted = tuple(replace(s, root=(root / s.prefix).resolve()) for s in config.sources) if root else ()
    _name_left_sets(left, git_sync.name_of(config), target, rooted, outcomes)
    return outcomes


def _drop_branch(conn: Connection, project: str, branch: str) -> Outcome:
    """A deleted branch of git takes its placements along."""
    for _ in range(_DROP_TRIES):
        try:
            row = conn.execute("SELECT trecho.drop_branch(%s, %s) AS removed", (project, branch)).fetchone()
            break
        except psycopg.errors.ObjectInUse:  # a pass over the project runs
            time.sleep(_DROP_PAUSE_S)
    else:
        row = conn.execute("SELECT trecho.drop_branch(%s, %s) AS removed", (project, branch)).fetchone()
    removed = int(row["removed"]) if row else 0
    note(f"branch {branch} ({project}): deleted, {removed} documents removed")
    return Outcome(project, branch, "", counts={"documents_removed": removed})


def _runner(
    args: argparse.Namespace, database: _Database
) -> Callable[[Target, Iterable[SourceFile], Options], Outcome]:
    """Runs one pass with its progress bar and its report."""

    def run_one(target: Target, files: Iterable[SourceFile], options: Options) -> Outcome:
        progress = TerminalProgress(target.source_set)
        try:
            outcome = run_pass(database.dsn, target, files, options, progress, database.conn)
            if options.embed is not None and outcome.state == "published":
                texts, calls, failed = _embed_rest(
                    database.conn, database.dsn, target.project, progress.embed
                )
                outcome.embedded += texts
                outcome.provider_calls += calls
                outcome.texts_failed += failed
        finally:
            progress.close()
        _report(outcome, args.verbose)
        return outcome

    return run_one


def _sources(args: argparse.Namespace) -> tuple[Config, tuple[Source, ...]]:
    """What to read: the folder given, else the sources of the configuration."""
    if args.folder is not None:
        if args.config is not None:
            raise UsageError(
                "give a folder or --config, not both",
                hint="A folder alone needs no configuration; --config FILE reads the sources that FILE names.",
            )
        if args.scope == "code":
            raise Refused("a plain folder cannot be a source of scope code", hint=_CODE_HINT)
        if not args.folder.is_dir():
            raise UsageError(
                f"{args.folder} is not a folder", hint="Give a folder that exists; nothing was changed."
            )
        return Config(args.folder), (folder_source(args.folder, args.scope or "docs", args.set_name),)
    if args.scope or args.set_name:
        raise UsageError(
            "--scope and --set go with a FOLDER", hint="Write them into trecho.toml, or give the folder."
        )
    path = args.config or find_config()
    if path is None:
        raise UsageError(
            "no trecho.toml here or above, and no folder given",
            hint="trecho sync FOLDER --scope docs indexes one folder.",
        )
    config = load_config(path)
    if not config.sources:
        raise UsageError(
            f"{path} has no [[source]]",
            hint="docs/configuration.md shows a whole file; trecho set list shows what is indexed already.",
        )
    for source in config.sources:
        if source.scope == "code":
            raise Refused(
                f"{path}: source set {source.set_name!r} is a plain folder of scope code", hint=_CODE_HINT
            )
        if not source.root.is_dir():
            raise UsageError(
                f"{path}: source set {source.set_name!r}: {source.root} is not a folder",
                hint="Correct its path; nothing was changed.",
            )
    return config, config.sources


def _prepare(args: argparse.Namespace, database: _Database, config: Config) -> tuple[Options, int]:
    """Store the recipe that the configuration wants. Returns how to work, and the most bytes of a document."""
    row = database.conn.execute(
        "SELECT trecho.configure(%s) AS recipe,"
        "       to_regprocedure('trecho.chunk(text, text, jsonb, text)') IS NULL AS no_chunkers",
        (Jsonb(config.recipe),),
    ).fetchone()
    assert row is not None
    if args.chunking is None and row["no_chunkers"]:
        note("note: this database was migrated for client chunking; chunking here")
    options = Options(
        embed=None if args.no_embed else embedder(database.dsn),
        client_chunking=row["no_chunkers"] if args.chunking is None else args.chunking == "client",
        allow_mass_delete=args.allow_mass_delete,
        jobs=args.jobs,
    )
    return options, int(row["recipe"]["chunk_settings"]["max_document_bytes"])


def embedder(dsn: str) -> Embedder:
    """Embeds what a pass is about to place, and nothing else: what others left must not hold its publication back."""

    def embed(conn: Connection, pass_id: int, tell: Progress) -> tuple[int, int, int]:
        row = conn.execute(
            "SELECT p.version, p.failed, trecho.pass_pending(%s) AS left"
            "  FROM trecho.query_recipe() AS s (active_version),"
            "       trecho.pending_embeddings(s.active_version, pass_id => %s) AS p",
            (pass_id, pass_id),
        ).fetchone()
        if not row or not row["left"]:
            return 0, 0, 0
        return _embed(dsn, tell, row["failed"], index_version=row["version"], pass_id=pass_id)

    return embed


def _embed_rest(conn: Connection, dsn: str, project: str, tell: Progress) -> tuple[int, int, int]:
    """Embed what else of a project waits: of syncs without vectors, of applications, of runs that died."""
    row = conn.execute(
        # Vectors that are paid for and not on their chunks yet count, too.
        "SELECT sum(pending + staged) AS left, sum(failed)::bigint AS failed"
        "  FROM trecho.pending_embeddings(project => %s)",
        (project,),
    ).fetchone()
    if not row or not row["left"]:
        return 0, 0, 0
    return _embed(dsn, tell, row["failed"], project=project)


def _embed(
    dsn: str,
    tell: Progress,
    failed: int,
    *,
    index_version: int | None = None,
    pass_id: int | None = None,
    project: str | None = None,
) -> tuple[int, int, int]:
    """Returns texts embedded, provider calls, texts given up since there were `failed`."""
    # Loading the model takes longer than a pass that needs no vector.
    from trecho.embed import Only, embed_pending

    # A provider that is down leaves texts pending, which the pass finds out; one of a version that is being built
    # must not hold this sync back.
    report = embed_pending(
        dsn,
        index_version=index_version,
        on_progress=tell,
        raise_problems=False,
        only=Only(pass_id, project),
    )
    for problem in report.problems:
        note(f"warning: {problem}")
    return report.texts, report.provider_calls, max(0, report.failed - failed)


def _report(outcome: Outcome, verbose: bool) -> None:
    name = f"{outcome.source_set} ({outcome.project}/{outcome.branch})"
    if outcome.state == "skipped":
        holder = outcome.holder or {}
        note(
            f"{name}: skipped, another pass runs: pid {holder.get('backend_pid', '?')}, "
            f"role {holder.get('role_name') or '?'}, since {holder.get('started_at') or '?'}; "
            "the index goes on serving what it has"
        )
        return
    counts = outcome.counts
    failed = f", {len(outcome.failed)} failed" if outcome.failed else ""
    if outcome.state == "waiting":
        note(
            f"{name}: not published, the embedding provider did not give every vector; "
            "what it gave is kept for the next sync"
        )
        return
    note(
        f"{name}: {counts['documents_written']} written, {counts['documents_removed']} removed, "
        f"{outcome.unchanged} unchanged{failed}; "
        f"{counts['chunks_computed']} chunks cut, {counts['chunks_written']} new; {outcome.embedded} texts embedded"
    )
    if counts["documents_superseded"]:
        note(f"  {counts['documents_superseded']} left as an application wrote them meanwhile")
    if outcome.quarantined:
        note(
            f"  held back: {outcome.quarantined} texts seem to hold a secret and are hidden from search "
            "(trecho embed --list-quarantined)"
        )
    if outcome.texts_failed:
        note(
            f"  without a vector: {outcome.texts_failed} texts failed and are found by words alone "
            "(trecho embed --retry-failed)"
        )
    for reason, count in sorted(outcome.skipped.items()):
        note(f"  left out: {count} {reason}")
    if verbose:
        for path, reason in outcome.skipped_files:
            note(f"    {path}: {reason}")
    for line in outcome.failed:
        note("  failed: " + line.replace("\n", "\\n"))


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        **asdict(outcome),
        "skipped": dict(outcome.skipped),
        "skipped_files": [{"path": path, "reason": reason} for path, reason in outcome.skipped_files],
    }


def _exit_code(outcomes: list[Outcome]) -> int:
    if any(outcome.state == "waiting" for outcome in outcomes):
        return ExitCode.NOT_CURRENT
    return (
        ExitCode.SOME_FAILED
        if any(outcome.failed or outcome.texts_failed for outcome in outcomes)
        else ExitCode.DONE
    )
