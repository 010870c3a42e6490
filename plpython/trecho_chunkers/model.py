"""What chunkers take and give: `Chunk`, `Settings`, `ChunkError`, `Deadline`, `Lines`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# A SQL state of ours: the text cannot be chunked (docs/errors.md).
CANNOT_CHUNK = "TR008"
# Standard SQL state: invalid_parameter_value.
BAD_SETTING = "22023"


class ChunkError(Exception):
    """A text or a setting that the chunkers refuse.

    `sqlstate` is TR008 (the text cannot be chunked) or 22023 (a setting is wrong); `hint` is a step the
    reader can take.
    """

    def __init__(self, message: str, sqlstate: str = CANNOT_CHUNK, hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.hint = hint


class Chunk(NamedTuple):
    """One passage. `content` is a contiguous slice of the normalised text; see session.py for JSON."""

    ordinal: int  # 1-based, in document order
    kind: str  # what was cut: section, preamble, subsection, part, example, window, turns, function, ...
    symbol: str  # heading path joined by ' > ', or the qualified code symbol; empty for a window
    anchor_path: str  # heading-slug[/sub-slug], or the symbol; empty where there is nothing to point at
    context: str  # what the slice alone does not say: title, heading path, container or table header
    start_line: int  # 1-based line of the original text
    end_line: int  # inclusive
    content: str  # never empty, never only blanks, at most chunk_max_bytes in UTF-8


class Settings(NamedTuple):
    """Sizes of chunks; immutable. Characters are Unicode code points, bytes are UTF-8 bytes."""

    section_max_chars: int = 1500  # a Markdown section over this is split further
    section_max_lines: int = 60  # the same, in lines
    container_max_lines: int = 60  # a code container (impl, class, ...) over this is split into members
    symbol_max_lines: int = 120  # any other code symbol over this falls to windows
    window_lines: int = 60  # height of a window
    window_overlap_lines: int = 10  # lines a window shares with the one before it
    stable_windows: bool = False  # choose the cut points of windows by content
    chunk_max_bytes: int = 6000  # hard cap of every chunk
    max_document_bytes: int = 524_288  # longer texts are refused (TR008)
    timeout_ms: int = 10_000  # chunking that takes longer is stopped (TR008)

    @classmethod
    def from_json(cls, values: Mapping[str, object] | None) -> Settings:
        """Read settings; what is left out (or null) keeps its default.

        Raises: ChunkError (22023) for an unknown key or a value of the wrong type or out of range.
        """
        if values is None:
            return DEFAULT_SETTINGS
        if not isinstance(values, Mapping):
            raise ChunkError(
                f"settings must be an object, got {type(values).__name__}",
                BAD_SETTING,
                'Pass a JSON object such as {"chunk_max_bytes": 6000}.',
            )
        given: dict[str, Any] = {}
        for key, value in values.items():
            if key not in cls._fields:
                known = ", ".join(cls._fields)
                raise ChunkError(f"unknown chunk setting {key!r}", BAD_SETTING, f"Known settings: {known}.")
            if value is None:
                continue
            given[key] = _checked(key, value)
        settings = cls(**given)
        if settings.window_overlap_lines >= settings.window_lines:
            raise ChunkError(
                f"window_overlap_lines must be less than window_lines, got "
                f"{settings.window_overlap_lines} and {settings.window_lines}",
                BAD_SETTING,
                "Use an overlap of at most half the window, such as 10 of 60.",
            )
        return settings


DEFAULT_SETTINGS = Settings()

# (least, most) of each integer setting.
_RANGES: dict[str, tuple[int, int]] = {
    "section_max_chars": (16, 100_000_000),
    "section_max_lines": (1, 100_000_000),
    "container_max_lines": (1, 100_000_000),
    "symbol_max_lines": (1, 100_000_000),
    "window_lines": (1, 100_000_000),
    "window_overlap_lines": (0, 100_000_000),
    "chunk_max_bytes": (64, 100_000_000),
    "max_document_bytes": (1, 100_000_000),
    "timeout_ms": (1, 3_600_000),
}


def _checked(key: str, value: object) -> int | bool:
    if key == "stable_windows":
        if isinstance(value, bool):
            return value
        raise ChunkError(f"{key} must be true or false, got {value!r:.80}", BAD_SETTING, "Use true or false.")
    least, most = _RANGES[key]
    if isinstance(value, float) and value.is_integer():  # jsonb has one number type
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ChunkError(
            f"{key} must be a whole number from {least} to {most}, got {value!r:.80}",
            BAD_SETTING,
            f"Leave {key} out to use {getattr(DEFAULT_SETTINGS, key)}.",
        )
    return value


# Set by who runs inside a database server: says why the statement has to end, or None. Asked ten times a second.
interrupted: Callable[[], BaseException | None] | None = None
_SECONDS_BETWEEN_QUESTIONS = 0.1


class Deadline:
    """The moment at which chunking gives up. A statement timeout or a cancel does not stop Python code; this does."""

    __slots__ = ("_cause", "_end", "_look", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        now = time.monotonic()
        self.timeout_ms = timeout_ms
        self._end = now + timeout_ms / 1000
        self._cause: BaseException | None = None
        self._look = self._end  # nothing can be over before
        if interrupted is not None:
            self._look = min(self._end, now + _SECONDS_BETWEEN_QUESTIONS)

    def expired(self) -> bool:
        now = time.monotonic()
        return now >= self._look and self._over(now)

    def check(self) -> None:
        """Raise once the time is used up: ChunkError (TR008), or what `interrupted` says. Costs 0.1 microseconds."""
        if time.monotonic() >= self._look and self._over(time.monotonic()):
            if self._cause is not None:
                raise self._cause
            raise ChunkError(
                f"chunking took longer than {self.timeout_ms} ms",
                CANNOT_CHUNK,
                "Raise the setting timeout_ms, or split the document.",
            )

    def _over(self, now: float) -> bool:
        if self._cause is None and interrupted is not None:
            self._cause = interrupted()
            self._look = min(self._end, now + _SECONDS_BETWEEN_QUESTIONS)
        if self._cause is not None:
            self._look = 0.0  # for good
            return True
        return now >= self._end


class Lines:
    """Line numbers of offsets, counted from the last one asked: cheap when asked in order."""

    __slots__ = ("_line", "_offset", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._line = 1

    def at(self, offset: int) -> int:
        """The 1-based line that holds the character at `offset`."""
        if offset >= self._offset:
            self._line += self._text.count("\n", self._offset, offset)
        else:
            self._line -= self._text.count("\n", offset, self._offset)
        self._offset = offset
        return self._line
