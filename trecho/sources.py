"""Read the files of a source: which exist, which are left out and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trecho.config import Source
from trecho.errors import UsageError
from trecho.exclusions import Exclusions


@dataclass(frozen=True)
class SourceFile:
    """One file of a source. path: its source path, with forward slashes; data: its bytes, None when it is left out."""

    path: str
    data: bytes | None
    skip_reason: str = ""


def read_folder(source: Source, max_document_bytes: int) -> Iterator[SourceFile]:
    """Every file of the source that its patterns name; those left out come with their reason.

    Raises: UsageError when the folder is not there.
    """
    if not source.root.is_dir():
        raise UsageError(
            f"{source.root} is not a folder", hint="Correct the path of the source; nothing was changed."
        )
    exclusions = Exclusions.from_folder(source.root, max_document_bytes=max_document_bytes)
    wanted = source.matcher()
    for relative, entry in _walk(source.root, exclusions):
        try:
            relative.encode()
        except UnicodeEncodeError:
            shown = relative.encode(errors="backslashreplace").decode()
            yield SourceFile(source.prefix + shown, None, "name-not-utf-8")
            continue
        if isinstance(entry, OSError):
            yield SourceFile(source.prefix + relative, None, f"unreadable ({entry.strerror})")
            continue
        if not wanted(relative):
            continue
        reason = exclusions.path_reason(relative)
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
            except OSError as error:
                reason = f"unreadable ({error.strerror})"
        yield SourceFile(source.prefix + relative, data, reason or "")


def _read(entry: os.DirEntry[str], exclusions: Exclusions) -> tuple[bytes | None, str | None]:
    """The bytes of a file, or why it is left out; a file that is too large is not read."""
    if entry.stat().st_size > exclusions.max_document_bytes:
        return None, "too-large"
    with open(entry.path, "rb") as file:
        data = file.read()
    reason = exclusions.content_reason(data)
    return (None, reason) if reason else (data, None)


def _walk(root: Path, exclusions: Exclusions) -> Iterator[tuple[str, os.DirEntry[str] | OSError]]:
    """Files below root, folder by folder, or why one cannot be read (a folder ends in a slash).

    Excluded folders are not entered; links to folders are not followed.
    """
    pending = [""]
    while pending:
        folder = pending.pop()
        below: list[str] = []
        try:
            with os.scandir(root / folder) as found:
                entries = sorted(found, key=lambda e: e.name)
        except FileNotFoundError:
            continue  # it went while the others were read
        except OSError as error:
            yield folder + "/", error
            continue
        for entry in entries:
            relative = f"{folder}/{entry.name}" if folder else entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if not exclusions.prunes(relative):
                        below.append(relative)
                elif entry.is_file():
                    yield relative, entry
            except OSError as error:
                yield relative, error
        pending.extend(reversed(below))
