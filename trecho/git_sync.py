"""`trecho sync --git`: make a branch of the index equal to a commit, reading only what changed since the last one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trecho_chunkers.languages import language_of

from trecho import __version__
from trecho.config import FILE_NAME, Config, Source, load_config, parse_config
from trecho.console import note
from trecho.db import Connection
from trecho.errors import UsageError
from trecho.exclusions import ATTRIBUTES_FILE, IGNORE_FILE, Exclusions
from trecho.git import Entry, Repository
from trecho.reconcile import Options, Outcome, Target
from trecho.sources import SourceFile

# Runs one pass: target, files, options.
RunPass = Callable[[Target, Iterable[SourceFile], Options], Outcome]

# What is indexed of a repository without trecho.toml; the first that wants a path gets it.
_DEFAULT_SOURCES = (
    Source(
        "git:adr",
        Path(),
        "",
        "adr",
        tuple(f"**/{name}/**/*.md" for name in ("adr", "adrs", "decisions", "decisoes")),
    ),
    Source("git:docs", Path(), "", "docs", ("*.md", "*.markdown", "*.mdx")),
    Source("git:code", Path(), "", "code", ("*",)),
)
_RULE_FILES = (FILE_NAME, IGNORE_FILE, ATTRIBUTES_FILE)


def repository_config(repo: Repository, commit: str, given: Path | None) -> Config:
    """The configuration: a file given, else trecho.toml of the commit, else the defaults for a repository."""
    config = load_config(given) if given else None
    if config is None:
        text = repo.text(commit, FILE_NAME)
        config = parse_config(Path(FILE_NAME), text) if text is not None else Config(Path(FILE_NAME))
    return config if config.sources else replace(config, sources=_DEFAULT_SOURCES)


def name_of(config: Config) -> str:
    """How to call the configuration to its reader."""
    return "the default sources of a repository" if config.sources is _DEFAULT_SOURCES else str(config.path)


def split_range(given: str) -> tuple[str, str]:
    """BEFORE and AFTER of a range; BEFORE is empty when only a revision is given. Raises: UsageError."""
    before, dots, after = given.partition("..")
    if not dots:
        return "", given
    if after.startswith(".") or not after:
        raise UsageError(
            f"{given!r} is not a range", hint="Write BEFORE..AFTER, as a post-receive hook gets them."
        )
    return before, after


def is_zero(revision: str) -> bool:
    """Whether a hook means 'there is none' by it."""
    return bool(revision) and not revision.strip("0")


def sync_commit(
    conn: Connection,
    repo: Repository,
    config: Config,
    target: tuple[str, str],
    commit: str,
    whole: bool,
    options: Options,
    max_document_bytes: int,
    run: RunPass,
) -> list[Outcome]:
    """Reconcile every source of the configuration with a commit, which is recorded when all of them are published.

    target: project and branch. whole: read the whole tree even where a commit is recorded.
    """
    project, branch = target
    rules = _rules(config, max_document_bytes)
    last = _recorded(conn, project, branch)
    before = None
    if last is not None and last["last_commit"] is not None and not whole:
        if last["last_rules"] != rules:
            note("note: reading the whole tree: its configuration has changed")
        else:
            before = repo.commit(last["last_commit"])
            if before is None:
                note(f"note: reading the whole tree: commit {last['last_commit'][:12]} is gone")
    tree = repo.tree(commit)
    entries, removed = tree, frozenset[str]()
    if before is not None:
        changes = repo.changes(before, commit)
        gone = frozenset(_name(path) for path in changes.removed)
        touched = {path.rpartition("/")[2] for path in (*(_name(e.path) for e in changes.entries), *gone)}
        if touched & set(_RULE_FILES):
            before = None  # rules decide over files that did not change, too
        else:
            entries, removed = changes.entries, gone

    rule_files = {
        _name(e.path) for e in tree if e.path.rpartition(b"/")[2].decode(errors="replace") in _RULE_FILES
    }
    exclusions = Exclusions(
        lambda path: repo.text(commit, path) if path in rule_files else None, max_document_bytes
    )
    owned = _owners(config.sources, entries)
    # What such a set lacks is in no difference between commits.
    unclean = set(last["unclean_sets"]) & owned.keys() if last is not None and before is not None else set()
    if unclean:
        note(
            f"note: reading every file of {', '.join(sorted(unclean))}: "
            "the last pass left documents out, or an application changed one"
        )
        every = _owners(config.sources, tree)
        owned |= {name: every[name] for name in unclean}
    outcomes: list[Outcome] = []
    for number, source in enumerate(config.sources, 1):
        full = before is None or source.set_name in unclean
        last_set = number == len(config.sources) and all(o.state == "published" for o in outcomes)
        outcomes.append(
            run(
                Target(project, branch, source.set_name, source.scope, "full" if full else "difference"),
                _files(repo, owned[source.set_name], exclusions, max_document_bytes),
                replace(
                    options,
                    removed=None if full else removed,
                    last_commit=commit if last_set else None,
                    rules=rules,
                ),
            )
        )
    return outcomes


def _recorded(conn: Connection, project: str, branch: str) -> dict[str, Any] | None:
    return conn.execute("SELECT * FROM trecho.branch_commit(%s, %s)", (project, branch)).fetchone()


def _rules(config: Config, max_document_bytes: int) -> str:
    """Hash of what decides, apart from files of the commit, which paths are documents of which source.

    The release counts: what it leaves out by itself may be another release's document.
    """
    sources = [(s.set_name, s.prefix, s.scope, s.include, s.exclude) for s in config.sources]
    return hashlib.sha256(repr((__version__, max_document_bytes, sources)).encode()).hexdigest()


def _owners(sources: tuple[Source, ...], entries: tuple[Entry, ...]) -> dict[str, list[Entry]]:
    """Entries of each source: the first whose folder and patterns want a path gets it."""
    wanted = [(source, source.matcher()) for source in sources]
    owned: dict[str, list[Entry]] = {source.set_name: [] for source in sources}
    for entry in entries:
        path = _name(entry.path)
        for source, wants in wanted:
            if path.startswith(source.prefix) and wants(path[len(source.prefix) :]):
                if source.scope != "code" or language_of(path) is not None:
                    owned[source.set_name].append(entry)
                break
    return owned


def _files(
    repo: Repository, entries: list[Entry], exclusions: Exclusions, max_bytes: int
) -> Iterator[SourceFile]:
    kept = []
    for entry in entries:
        reason = entry.skip_reason or exclusions.path_reason(_name(entry.path))
        try:
            entry.path.decode()
        except UnicodeDecodeError:
            reason = "name-not-utf-8"
        if reason:
            yield SourceFile(_name(entry.path), None, reason)
        else:
            kept.append(entry)
    for entry, data in repo.blobs(kept, max_bytes):
        why = "too-large" if data is None else exclusions.content_reason(data)
        yield SourceFile(_name(entry.path), None if why else data, why or "")


def _name(path: bytes) -> str:
    return path.decode(errors="backslashreplace")
