"""Read the files of a source: which exist, which are left out and why."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trecho.config import Source
from trecho.errors import TrechoError, UsageError
from trecho.exclusions import Exclusions

# Reason of a link to a folder, whatever its name: nothing below it is read.
LINKED_FOLDER = "link-to-folder"
# What _walk says of a folder as a whole, whatever the source wants of it.
WHOLE_FOLDER = frozenset({LINKED_FOLDER, "folder", "ignored"})
_FOLDER = "a folder"


@dataclass(frozen=True)
class SourceFile:
    """One file of a source. path: its source path, with forward slashes; data: its bytes, None when it is left out."""

    path: str
    data: bytes | None
    skip_reason: str = ""


def read_folder(source: Source, max_document_bytes: int) -> Iterator[SourceFile]:
    """Every file of the source that its patterns name; those left out come with their reason.

    Raises: UsageError when the folder is not there, TrechoError when it goes while it is read.
    """
    if not source.root.is_dir():
        raise UsageError(
            f"{source.root} is not a folder", hint="Correct the path of the source; nothing was changed."
        )
    exclusions = Exclusions.from_folder(source.root, max_document_bytes=max_document_bytes)
    wanted = source.matcher()
    for relative, entry, kind in _walk(source.root, exclusions):
        try:
            relative.encode()
        except UnicodeEncodeError:
            shown = relative.encode(errors="backslashreplace").decode()
            yield SourceFile(source.prefix + shown, None, "name-not-utf-8")
            continue
        if isinstance(entry, OSError):
            yield SourceFile(source.prefix + relative, None, f"unreadable ({entry.strerror})")
            continue
        if kind in WHOLE_FOLDER:
            yield SourceFile(source.prefix + relative, None, kind)
            continue
        if not wanted(relative):
            continue
        reason = exclusions.path_reason(relative) or kind or None
        if (
            reason is None
            and entry.is_symlink()
            and not Path(entry.path).resolve().is_relative_to(source.root)
        ):
            reason = "link-outside"
        data = None
        if reason is None:
            try:
                data, reason = _read(entry, exclusions)
            except FileNotFoundError:
                continue  # it went since it was listed
            except OSError as error:
                reason = f"unreadable ({error.strerror})"
        yield SourceFile(source.prefix + relative, data, reason or "")


def _read(entry: os.DirEntry[str], exclusions: Exclusions) -> tuple[bytes | None, str | None]:
    """The bytes of a file, or why it is left out; a file that is too large is not read."""
    limit = exclusions.max_document_bytes
    # Not waiting for the writer of a pipe that has taken the place of the file since it was listed.
    number = os.open(entry.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        info = os.fstat(number)
        if not stat.S_ISREG(info.st_mode):
            return None, "special"
        if info.st_size > limit:
            return None, "too-large"
        data = block = os.read(number, limit + 1)
        while block and len(data) <= limit and len(data) != info.st_size:
            block = os.read(number, limit + 1)
            data += block
    finally:
        os.close(number)
    reason = exclusions.content_reason(data)
    return (None, reason) if reason else (data, None)


def _walk(root: Path, exclusions: Exclusions) -> Iterator[tuple[str, os.DirEntry[str] | OSError, str]]:
    """Files below root, folder by folder, or why one cannot be read (a folder ends in a slash); and what is no file.

    Excluded folders come with their reason and are not entered; links to folders are not followed.
    """
    pending = [""]
    while pending:
        folder = pending.pop()
        below: list[str] = []
        try:
            with os.scandir(root / folder) as found:
                entries = sorted(found, key=lambda e: e.name)
        except FileNotFoundError:
            if not folder:
                raise _gone(root) from None
            continue  # it went while the others were read
        except OSError as error:
            yield folder + "/", error, ""
            continue
        for entry in entries:
            relative = f"{folder}/{entry.name}" if folder else entry.name
            try:
                kind = _FOLDER if entry.is_dir(follow_symlinks=False) else _kind(entry)
                why = exclusions.folder_reason(relative) if kind in (_FOLDER, LINKED_FOLDER) else None
                if why is None and kind == _FOLDER:
                    below.append(relative)
                else:
                    yield (relative + "/", entry, why) if why else (relative, entry, kind)
            except OSError as error:
                yield relative, error, ""
        pending.extend(reversed(below))
    if not root.is_dir():
        # What was not found in it any more is not known to be removed.
        raise _gone(root)


def _gone(root: Path) -> TrechoError:
    return TrechoError(
        f"{root} went away while it was read", hint="Nothing was changed. Sync again when it is there."
    )


def _kind(entry: os.DirEntry[str]) -> str:
    """What an entry is that is neither a folder nor a file, as a reason to leave it out; empty for a file."""
    if entry.is_file(follow_symlinks=False):
        return ""
    if not entry.is_symlink():
        return "special"  # a pipe, a socket or a device: reading it could wait for ever
    try:
        mode = entry.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return "link-broken"
        raise
    if stat.S_ISDIR(mode):
        return LINKED_FOLDER
    return "" if stat.S_ISREG(mode) else "special"
