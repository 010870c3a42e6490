"""Read a git repository through git itself: which paths changed, and the bytes of blobs. No checkout is needed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trecho.errors import TrechoError, UsageError

# Modes of tree entries that are files.
_FILE_MODES = (b"100644", b"100755")
_MODE_NAMES = {b"120000": "link", b"160000": "submodule"}


@dataclass(frozen=True)
class Entry:
    """One path of a tree. skip_reason: link or submodule, empty for a file; oid names its blob."""

    path: bytes
    oid: str
    skip_reason: str = ""


@dataclass(frozen=True)
class Changes:
    """What differs between two commits. Renames are a removal and an addition."""

    entries: tuple[Entry, ...]
    removed: tuple[bytes, ...]


class Repository:
    """A repository, bare or not."""

    def __init__(self, path: Path) -> None:
        """Raises: UsageError when path is in no repository."""
        self._path = path
        if not path.is_dir() or self._run("rev-parse", "--git-dir", check=False) is None:
            raise UsageError(
                f"{path} is not in a git repository",
                hint="Give one with --repo, or run git init and commit first.",
            )

    def commit(self, revision: str) -> str | None:
        """Full name of the commit that a revision means; None when this repository does not have it."""
        found = self._run(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", check=False
        )
        return found.decode().strip() if found else None

    def current_branch(self) -> str | None:
        """Branch that HEAD is on; None when it is on none."""
        found = self._run("symbolic-ref", "--quiet", "--short", "HEAD", check=False)
        return found.decode().strip() if found else None

    def branch(self, given: str | None, revision: str = "HEAD") -> str:
        """The branch given, else the one that the revision names, else the one HEAD is on.

        Raises: UsageError when HEAD is on none, as in many builds.
        """
        found = given or (revision if self.commit(f"refs/heads/{revision}") else self.current_branch())
        if found is None:
            raise UsageError(
                "HEAD is on no branch, so nothing says which branch of the index is meant",
                hint="Give --branch, or check a branch out; nothing was changed.",
            )
        return found

    def tip(self, branch: str | None) -> str:
        """The revision that a branch is at: HEAD, unless that is on another branch and there is one of this name."""
        named = f"refs/heads/{branch}"
        elsewhere = branch is not None and self.current_branch() not in (None, branch)
        return named if elsewhere and self.commit(named) else "HEAD"

    def follows(self, after: str, before: str) -> bool:
        """Whether commit `before` is in the history of `after`."""
        return self._run("merge-base", "--is-ancestor", before, after, check=False) is not None

    def is_bare(self) -> bool:
        """Whether it has no working tree, as repositories have that others push to."""
        return (self._run("rev-parse", "--is-bare-repository") or b"").strip() == b"true"

    def root(self) -> Path | None:
        """Top of its working tree; None where it has none."""
        found = self._run("rev-parse", "--show-toplevel", check=False)
        return Path(found.decode(errors="surrogateescape").rstrip("\n")) if found else None

    def hooks_folder(self) -> Path:
        """Where this repository's hooks are."""
        found = (self._run("rev-parse", "--git-path", "hooks") or b"").decode().rstrip("\n")
        return (self._path / found).resolve()

    def tree(self, commit: str) -> tuple[Entry, ...]:
        """Every path of a commit, in git's order."""
        listing = self._run("ls-tree", "-r", "-z", "--full-tree", commit) or b""
        entries = []
        for record in listing.split(b"\0")[:-1]:
            head, _, path = record.partition(b"\t")
            mode, _, oid = head.split(b" ")
            entries.append(Entry(path, oid.decode(), _reason(mode)))
        return tuple(entries)

    def changes(self, before: str, after: str) -> Changes:
        """What a reader of `before` must read again, and forget, to be at `after`."""
        records = (
            self._run("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", before, after) or b""
        ).split(b"\0")
        entries, removed = [], []
        for head, path in zip(records[0:-1:2], records[1::2], strict=False):
            _, mode, _, oid, status = head.split(b" ")
            if status == b"D":
                removed.append(path)
            else:
                entries.append(Entry(path, oid.decode(), _reason(mode)))
        return Changes(tuple(entries), tuple(removed))

    def text(self, commit: str, path: str) -> str | None:
        """Text of one file of a commit; None when it is not there."""
        found = self._run("cat-file", "blob", f"{commit}:{path}", check=False)
        return None if found is None else found.decode(errors="replace")

    def blobs(self, entries: Iterable[Entry], max_bytes: int) -> Iterator[tuple[Entry, bytes | None]]:
        """The bytes of each entry, in order; None for one larger than max_bytes, which is not kept in memory."""
        with self._batch() as (ask, answer):
            for entry in entries:
                ask.write(entry.oid.encode() + b"\n")
                ask.flush()
                head = answer.readline().split()
                if len(head) != 3:
                    raise TrechoError(
                        f"git does not have blob {entry.oid} of {entry.path.decode(errors='backslashreplace')}",
                        hint="A partial clone lacks blobs: fetch them (git fetch --refetch), or use a whole clone.",
                    )
                size = int(head[2])
                yield entry, _take(answer, size, max_bytes)

    @contextmanager
    def _batch(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        command = ["git", "-C", str(self._path), "cat-file", "--batch"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                yield process.stdin, process.stdout
            finally:
                process.stdin.close()
                process.stdout.close()

    def _run(self, *args: str, check: bool = True) -> bytes | None:
        try:
            done = subprocess.run(["git", "-C", str(self._path), *args], capture_output=True, check=False)
        except FileNotFoundError as error:
            raise TrechoError("git is not installed", hint="Install git: apt-get install git.") from error
        if done.returncode == 0:
            return done.stdout
        if check:
            raise TrechoError(
                f"git {args[0]} failed in {self._path}",
                detail=done.stderr.decode(errors="replace").strip(),
                hint="The detail is what git said; run it there by hand, and git fsck if objects are missing.",
            )
        return None


def _reason(mode: bytes) -> str:
    return "" if mode in _FILE_MODES else _MODE_NAMES.get(mode, "special")


def _take(stream: IO[bytes], size: int, max_bytes: int) -> bytes | None:
    """size bytes and the line end after them; read and dropped in pieces when they are too many."""
    data = stream.read(size) if size <= max_bytes else None
    left = 1 if data is not None else size + 1
    while left:
        left -= len(stream.read(min(left, 1 << 20))) or left
    return data
