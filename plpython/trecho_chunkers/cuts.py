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
    """Cut a span into pieces within `budget`: as many whole lines as fit, longer lines cut inside.

    The pieces follow each other without a gap. A line is cut after a sentence, else at a blank, else between
    characters; the part of it that fits joins the lines before it, so that a heading keeps some text.
    """
    pieces: list[Span] = []
    while start < end:
        deadline.check()
        stop = _end_of_lines(text, start, end, budget)
        if stop < end:
            line_end = text.find("\n", stop, end)
            line_end = end if line_end < 0 else line_end
            if not _line_fits(text, stop, line_end, budget):
                limit = _reach(text, start, end, budget)
                if stop == start or limit - stop > (limit - start) // 4:
                    stop = _good_cut(text, max(stop, start + (limit - start) // 2), limit)
        pieces.append((start, stop))
        start = stop
    return pieces


def cut_chars(text: str, start: int, end: int, budget: Budget, deadline: Deadline) -> list[Span]:
    """Cut one long line into pieces within `budget`, as `cut_lines` does."""
    return cut_lines(text, start, end, budget._replace(max_lines=end - start + 1), deadline)


def _line_fits(text: str, start: int, end: int, budget: Budget) -> bool:
    chars = end - start
    most = min(budget.max_chars, budget.max_bytes)
    return chars < most and (chars * 4 < budget.max_bytes or byte_length(text, start, end) < budget.max_bytes)


def _reach(text: str, start: int, end: int, budget: Budget) -> int:
    """The furthest offset such that text[start:offset] fits in characters and bytes; over `start`."""
    limit = min(end, start + max(1, min(budget.max_chars, budget.max_bytes)))
    if (limit - start) * 4 > budget.max_bytes:
        encoded = text[start:limit].encode()
        if len(encoded) > budget.max_bytes:
            limit = start + len(encoded[: budget.max_bytes].decode("utf-8", "ignore"))
    return limit


def _end_of_lines(text: str, start: int, end: int, budget: Budget) -> int:
    """Where the last whole line from `start` that fits ends; `start` when the first one does not fit."""
    limit = _reach(text, start, end, budget)
    stop = start
    for _ in range(budget.max_lines):
        line_end = text.find("\n", stop, limit)
        if line_end < 0:
            # The last line: whole only if nothing follows it, or only its line feed does.
            return limit if limit == end or (text[limit] == "\n" and limit + 1 == end) else stop
        stop = line_end + 1
        if stop == limit:
            break
    return stop


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
