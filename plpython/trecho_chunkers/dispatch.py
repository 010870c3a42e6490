"""The door: which chunker cuts which file."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from .model import CANNOT_CHUNK, Chunk, ChunkError, Deadline, Settings
from .normalise import normalise

MARKDOWN_EXTENSIONS = (".md", ".markdown", ".mdown", ".mkd", ".mdx")

# Settings may come as JSON, ready made, or not at all.
SettingsLike = Settings | Mapping[str, object] | None

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _uncollected(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Run a chunker with Python's collector of cycles off.

    Chunkers make no cycles, but up to a quarter of a million tuples, which the collector would walk again and again: a
    third of the time.
    """

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return call


@_uncollected
def chunk(path: str, text: str, settings: SettingsLike = None, scope: str | None = None) -> list[Chunk]:
    """Cut `text` into chunks: a pure function of its arguments.

    Args: path: decides the chunker by its extension; never read. text: the document as decoded.
        scope: 'session' chooses the session chunker whatever the path; None and others go by the path.
    Returns: chunks in order, ordinals from 1; none for a text of blanks.
    Raises: ChunkError: TR008 when the text cannot be chunked, 22023 for a wrong setting.
    """
    if scope == "session":
        return chunk_session(text, settings)
    if is_markdown(path):
        return chunk_markdown(text, settings)
    ready, chosen, deadline = _prepare(text, settings)
    return _code_chunker()(path, ready, chosen, deadline)


@_uncollected
def chunk_markdown(text: str, settings: SettingsLike = None) -> list[Chunk]:
    """Cut Markdown; see `chunk`."""
    ready, chosen, deadline = _prepare(text, settings)
    return _markdown_chunker()(ready, chosen, deadline)


@_uncollected
def chunk_session(text: str, settings: SettingsLike = None) -> list[Chunk]:
    """Cut a session: JSON events or a plain transcript; see `chunk`."""
    ready, chosen, deadline = _prepare(text, settings)
    from .session import chunk_events

    return chunk_events(ready, chosen, deadline)


# Each chunker is imported when it is first needed, and an import statement is a search each time.
@functools.cache
def _code_chunker() -> Callable[[str, str, Settings, Deadline], list[Chunk]]:
    from .code import chunk_code

    return chunk_code


@functools.cache
def _markdown_chunker() -> Callable[[str, Settings, Deadline], list[Chunk]]:
    from .markdown import chunk_document

    return chunk_document


def is_markdown(path: str) -> bool:
    return path.lower().endswith(MARKDOWN_EXTENSIONS)


def as_settings(settings: SettingsLike) -> Settings:
    """Settings in their own type. Raises: ChunkError (22023)."""
    return settings if isinstance(settings, Settings) else Settings.from_json(settings)


def _prepare(text: str, settings: SettingsLike) -> tuple[str, Settings, Deadline]:
    chosen = as_settings(settings)
    deadline = Deadline(chosen.timeout_ms)
    check_text(text, chosen)
    ready = normalise(text)
    deadline.check()
    return ready, chosen, deadline


def check_text(text: str, settings: Settings) -> None:
    """Refuse a text that cannot be chunked. Raises: ChunkError (TR008)."""
    if "\0" in text:
        raise ChunkError(
            f"text holds a NUL character at offset {text.index(chr(0))}",
            CANNOT_CHUNK,
            "Binary files cannot be indexed: exclude the file.",
        )
    most = settings.max_document_bytes
    size = len(text)
    if size * 4 > most and not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise _not_unicode(error.start) from error
    if size > most:
        raise ChunkError(
            f"text of {size} bytes is over max_document_bytes ({most})",
            CANNOT_CHUNK,
            "Split the document, exclude it, or raise the setting max_document_bytes.",
        )


def _not_unicode(offset: int) -> ChunkError:
    return ChunkError(
        f"text is not valid Unicode at offset {offset}",
        CANNOT_CHUNK,
        "Decode the file as UTF-8 without error handlers that let surrogates through.",
    )
