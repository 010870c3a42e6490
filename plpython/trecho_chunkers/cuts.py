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


def line_start(text: str, start: int, end: int) -> int:
    """Start of the first line from `start` on that is not blank; -1 when there is none before `end`.

    Where `start` is inside a line and more of that line follows, it is the first non-blank.
    """
    first = _NOT_BLANK.search(text, start, end)
    if first is None:
        return -1
    begin = text.rfind("\n", start, first.start()) + 1
    if begin > 0:
        return begin
    return start if start == 0 or text[start - 1] == "\n" else first.start()


def trim(text: str, start: int, end: int) -> Span | None:
    """The span without blank lines around it and blanks at its end; None when nothing else is left."""
    first = line_start(text, start, end)
    return None if first < 0 else (first, first + len(text[first:end].rstrip()))


def reach(text: str, start: int, end: int, budget: Budget) -> int:
    """The furthest offset up to `end` such that text[start:offset] is within `budget`; over `start`."""
    limit = min(end, start + max(1, min(budget.max_chars, budget.max_bytes)))
    if (limit - start) * 4 > budget.max_bytes:
        encoded = text[start:limit].encode()
        if len(encoded) > budget.max_bytes:
            limit = start + len(encoded[: budget.max_bytes].decode("utf-8", "ignore"))
    if text.count("\n", start, limit) >= budget.max_lines:
        lines = text[start:limit].split("\n", budget.max_lines)
        limit -= len(lines[-1]) + 1
    return limit


def cut_once(text: str, start: int, end: int, limit: int, budget: Budget, least: int = -1) -> int:
    """Where to cut text[start:end], which is over `budget` and has no better place, before `limit`.

    After a line; a line that is over the budget itself is cut after a sentence, else at a blank, else between
    characters, and the part of it that fits joins the lines before it, so that a heading keeps some text.

    Args: limit: what `reach` says, under `end`. least: the cut must come after it (default: after `start`).
    """
    least = max(least, start)
    line = text.rfind("\n", least, limit + 1) + 1
    if line > least:
        most = line + min(budget.max_chars, budget.max_bytes) + 1
        line_end = text.find("\n", line, min(most, end))
        line_end = min(most, end) if line_end < 0 else line_end
        if reach(text, line, line_end, budget) >= line_end or limit - line <= (limit - start) // 4:
            return line
        least = line
    return _good_cut(text, min(max(least, start + (limit - start) // 3), limit - 1), limit)


def cut_lines(text: str, start: int, end: int, budget: Budget, deadline: Deadline) -> list[Span]:
    """Cut a span into pieces within `budget`, one after the other, as `cut_once` does."""
    pieces: list[Span] = []
    while start < end:
        deadline.check()
        limit = reach(text, start, end, budget)
        cut = end if limit >= end else cut_once(text, start, end, limit, budget)
        pieces.append((start, cut))
        start = cut
    return pieces


def cut_chars(text: str, start: int, end: int, budget: Budget, deadline: Deadline) -> list[Span]:
    """Cut one long line into pieces within `budget`."""
    return cut_lines(text, start, end, budget._replace(max_lines=end - start + 1), deadline)


def _good_cut(text: str, least: int, limit: int) -> int:
    """The best place to cut in (least, limit]; what ends at `limit` fits, and more text follows it."""
    best = -1
    for found in _SENTENCE_END.finditer(text, least, limit):
        best = found.end()
    if best > least:
        return best
    blank = _last_blank(text, least, limit)
    if blank >= 0:
        return blank + 1
    cut = limit
    while cut > least + 1 and _joins(text[cut - 1], text[cut]):
        cut -= 1
    return limit if _joins(text[cut - 1], text[cut]) else cut


def _last_blank(text: str, least: int, limit: int) -> int:
    """The last blank in [least, limit), or -1."""
    for at in range(limit - 1, least - 1, -1):
        if text[at].isspace():
            return at
    return -1


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
