"""Compare source sets with folders and commits, as a sync would read them."""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trecho.config import Config, Source, find_config, folder_source, load_config
from trecho.console import note
from trecho.db import Connection, connection
from trecho.doctor.findings import EXAMPLES, Finding
from trecho.errors import TrechoError, UsageError
from trecho.reconcile import Options, Outcome, Target
from trecho.sources import SourceFile, read_folder
from trecho.sync import place_folder

if TYPE_CHECKING:
    from trecho.git import Repository

# Findings about sources; the others come from trecho.check_index.
SOURCE_REPAIRS = {
    "changed sources": "sync the source set: its documents become what the files say",
    "new sources": "sync the source set: the files are indexed",
    "removed sources": "sync the source set: their documents go",
    "unreadable sources": "make the files readable; what the index has of them stays",
    "commits behind": "trecho sync --git",
}


# How a hook says "there is no commit".
ZERO = "0" * 40
# Gets every file of a source set; what it returns are findings.
Visit = Callable[[Target, Iterable[SourceFile]], list[Finding]]


def visit_sources(
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
        sources: tuple[Source, ...] = (place_folder(conn, *place, source),)
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
    revision = revision_of(args, repo)
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
    if last and not args.git:
        _refuse_gone(repo, branch, head, last)
    if commit != head:
        findings.append(
            Finding(
                "commits behind",
                "stale",
                f"{project}/{branch}",
                1,
                f"indexed is {commit[:12]}, the branch is at {head[:12]}",
                SOURCE_REPAIRS["commits behind"]
                + (f" --branch {shlex.quote(args.branch)}" if args.branch else ""),
            )
        )
        config = git_sync.repository_config(repo, commit, args.config)

    def run_one(target: Target, files: Iterable[SourceFile], _options: Options) -> Outcome:
        findings.extend(visit(target, files))
        return Outcome(target.project, target.branch, target.source_set)

    limit = _max_document_bytes(conn)
    git_sync.sync_commit(conn, repo, config, (project, branch), commit, True, Options(), limit, run_one)
    return findings, config


def revision_of(args: argparse.Namespace, repo: Repository) -> str:
    """What --git means: the revision given, else where the branch given is, as `trecho sync --git` takes it."""
    return args.git or repo.tip(args.branch)


def _refuse_gone(repo: Repository, branch: str, head: str, recorded: str) -> None:
    """HEAD says nothing about a branch that the repository has no more. Raises: UsageError."""
    here = repo.current_branch()
    if here in (None, branch) or repo.commit(f"refs/heads/{branch}") or repo.follows(head, recorded):
        return
    quoted = shlex.quote(branch)
    raise UsageError(
        f"the repository has no branch {branch}, and {here} does not follow commit {recorded[:12]}, "
        "to which it was indexed",
        hint=f"trecho sync --git {recorded[:12]}..{ZERO} --branch {quoted} removes it from the index; "
        "with --git COMMIT trecho doctor compares it with a commit of your choice.",
    )


def _skipped(why: str) -> Finding:
    return Finding("sources", "skipped", "sources", None, why, "")


def _max_document_bytes(conn: Connection) -> int:
    row = conn.execute("SELECT recipe FROM trecho.embedding_recipes() LIMIT 1").fetchone()
    settings = row["recipe"]["chunk_settings"] if row else {}
    return int((settings or {}).get("max_document_bytes", 524288))


def documents(conn: Connection, target: Target) -> dict[str, dict[str, Any]]:
    """Path -> what the index holds of a source set."""
    rows = conn.execute(
        "SELECT * FROM trecho.document_hashes(%s, %s, %s)", (target.project, target.branch, target.source_set)
    ).fetchall()
    return {row["path"]: row for row in rows}


def compare(conn: Connection, target: Target, files: Iterable[SourceFile]) -> list[Finding]:
    """What a pass over the set would do."""
    known = documents(conn, target)
    seen: set[str] = set()
    unreadable: list[str] = []
    found: dict[str, list[str]] = {name: [] for name in SOURCE_REPAIRS}
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
            "; ".join(paths[:EXAMPLES]),
            SOURCE_REPAIRS[name],
        )
        for name, paths in found.items()
        if paths
    ]


def as_indexed(args: argparse.Namespace, dsn: str) -> argparse.Namespace:
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
