"""Cutting a span of text that is too large: at lines, then at blanks, then between characters.

A span is a pair of 0-based half-open offsets into the normalised text.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from .model import Deadline

Span = tuple[int, int]

_NOT_BLANK = re.compile(r"\S")
_SENTENCE_END = re.compile(r"[.!?…][\"')\]»”]*\s|[。！？]")
_BLANK = re.compile(r"\s")


class Budget(NamedTuple):
    """How large a piece may be: characters, lines and UTF-8 bytes."""

    max_chars: int
    max_lines: int
    max_bytes: int

    def fits(self, text: str, start: int, end: int) -> bool:
        """Whether text[start:end] is within the budget."""
        chars = end - start
        return (
            chars <= self.max_chars
            and text.count("\n", start, end) < self.max_lines
            and (chars * 4 <= self.max_bytes or byte_length(text, start, end) <= self.max_bytes)
        )


def byte_length(text: str, start: int, end: int) -> int:
    """UTF-8 bytes of text[start:end]."""
    return len(text[start:end].encode())


def trim(text: str, start: int, end: int) -> Span | None:
    """The span without blank lines around it and blanks at its end; None when nothing else is left.

    The indentation of the first line stays where the span holds all of it.
    """
    first = _NOT_BLANK.search(text, start, end)
    if first is None:
        return None
    last = start + len(text[start:end].rstrip())
    line_start = text.rfind("\n", start, first.start()) + 1
    if line_start > 0:
        return (line_start, last)
    at_line_start = start == 0 or text[start - 1] == "\n"
    return (start if at_line_start else first.start(), last)


def cut_lines(text: str, start: int, end: int, budget: Budget, deadline: Deadline) -> list[Span]:
    """Cut a span into as few pieces within `budget` as whole lines allow; a longer line is cut inside."""
    pieces: list[Span] = []
    while start < end:
        deadline.check()
        stop = _end_of_lines(text, start, end, budget)
        if stop == start:
            line_end = text.find("\n", start, end)
            line_end = end if line_end < 0 else line_end + 1
            pieces.extend(cut_chars(text, start, line_end, budget, deadline))
            stop = line_end
        else:
            pieces.append((start, stop))
        start = stop
    return pieces


def _end_of_lines(text: str, start: int, end: int, budget: Budget) -> int:
    """Where the last whole line from `start` that fits ends; `start` when the first one does not fit."""
    limit = min(end, start + min(budget.max_chars, budget.max_bytes))
    stop = start
    lines = 0
    room = budget.max_bytes if (limit - start) * 4 > budget.max_bytes else -1
    while stop < limit and lines < budget.max_lines:
        line_end = text.find("\n", stop, limit)
        line_end = line_end + 1 if line_end >= 0 else limit
        if line_end == limit and limit < end and text[limit - 1] != "\n":
            break
        if room >= 0:
            room -= byte_length(text, stop, line_end)
            if room < 0:
                break
        stop = line_end
        lines += 1
    return stop


def cut_chars(text: str, start: int, end: int, budget: Budget, deadline: Deadline) -> list[Span]:
    """Cut one long line: after a sentence, else at a blank, else between characters.

    A base character and its combining marks stay together unless that alone breaks the budget.
    """
    pieces: list[Span] = []
    most = max(1, min(budget.max_chars, budget.max_bytes))
    while start < end:
        deadline.check()
        limit = min(end, start + most)
        if (limit - start) * 4 > budget.max_bytes:
            slice_bytes = text[start:limit].encode()
            if len(slice_bytes) > budget.max_bytes:
                limit = start + len(slice_bytes[: budget.max_bytes].decode("utf-8", "ignore"))
        if limit < end:
            limit = _good_cut(text, start, limit)
        pieces.append((start, limit))
        start = limit
    return pieces


def _good_cut(text: str, start: int, limit: int) -> int:
    """The best place to cut in (start, limit]: text[start:limit] fits, and more text follows."""
    half = start + (limit - start) // 2
    best = -1
    for found in _SENTENCE_END.finditer(text, half, limit):
        best = found.end()
    if best > start:
        return best
    for cut in range(limit, half, -1):
        if _BLANK.match(text, cut - 1):
            return cut
    cut = limit
    while cut > half and _joins(text[cut - 1], text[cut]):
        cut -= 1
    return cut if cut > half else limit


def _joins(before: str, after: str) -> bool:
    """Whether a cut between the two would part one visible character."""
    if after < "\u0300":
        return False
    return (
        unicodedata.combining(after) != 0
        or unicodedata.category(after) in ("Mn", "Me", "Mc")
        or before == "\u200d"
        or after == "\u200d"
        or "\U0001f3fb" <= after <= "\U0001f3ff"
    )
