"""Read the files of a source: which exist, which are left out and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pathspec

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
    """Every file of the source that its patterns name, in order of path; those left out come with their reason.

    Raises: UsageError when the folder is not there.
    """
    if not source.root.is_dir():
        raise UsageError(
            f"{source.root} is not a folder", hint="Correct the path of the source; nothing was changed."
        )
    exclusions = Exclusions.from_folder(source.root, max_document_bytes=max_document_bytes)
    wanted = pathspec.PathSpec.from_lines("gitignore", [*source.include, *("!" + p for p in source.exclude)])
    for relative, path in _walk(source.root, exclusions):
        try:
            relative.encode()
        except UnicodeEncodeError:
            yield SourceFile(
                source.prefix + relative.encode(errors="backslashreplace").decode(), None, "name-not-utf-8"
            )
            continue
        if not wanted.match_file(relative):
            continue
        reason = exclusions.path_reason(relative)
        if reason is None and path.is_symlink() and not path.resolve().is_relative_to(source.root):
            reason = "link-outside"
        if reason is not None:
            yield SourceFile(source.prefix + relative, None, reason)
            continue
        try:
            if path.stat().st_size > max_document_bytes:
                yield SourceFile(source.prefix + relative, None, "too-large")
                continue
            data = path.read_bytes()
        except OSError as error:
            yield SourceFile(source.prefix + relative, None, f"unreadable ({error.strerror})")
            continue
        reason = exclusions.content_reason(data)
        yield SourceFile(source.prefix + relative, None if reason else data, reason or "")


def _walk(root: Path, exclusions: Exclusions) -> Iterator[tuple[str, Path]]:
    """Files below root in order of path. Excluded folders are not entered; links to folders are not followed."""
    pending = [""]
    while pending:
        folder = pending.pop()
        below: list[str] = []
        with os.scandir(root / folder) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                relative = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if not exclusions.prunes(relative):
                        below.append(relative)
                elif entry.is_file():
                    yield relative, root / relative
        pending.extend(reversed(below))
