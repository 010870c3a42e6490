"""Windows: whole lines of text with no known structure, sliding or cut where the content says."""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate

from .cuts import Budget, Span, byte_length, cut_chars, trim
from .model import Chunk, Deadline, Lines, Settings

_AND_ITS_END = (1).__add__


def chunk_windows(text: str, settings: Settings, deadline: Deadline, kind: str = "window") -> list[Chunk]:
    """Cut normalised text into windows. `kind` says why, such as window or window-unparsed."""
    lines = Lines(text)
    chunks: list[Chunk] = []
    for start, end in window_spans(text, 0, len(text), settings, deadline):
        first, content = lines.at(start), text[start:end]
        chunks.append(Chunk(len(chunks) + 1, kind, "", "", "", first, first + content.count("\n"), content))
    return chunks


def window_spans(text: str, start: int, end: int, settings: Settings, deadline: Deadline) -> list[Span]:
    """Spans of the windows of text[start:end], blank ends trimmed, none over `chunk_max_bytes`.

    Every non-blank character of the span is in at least one of them. Windows share up to
    `window_overlap_lines` lines, fewer where these are long. `start` should be the start of a line.
    """
    cap = settings.chunk_max_bytes
    bounds = _bounds_of_short_lines(text, start, end, settings, deadline)
    if bounds is None:
        starts = _line_starts(text, start, end)
        choose = _stable_bounds if settings.stable_windows else _sliding_bounds
        bounds = [
            (starts[first], starts[last], last == first + 1)
            for first, last in choose(text, starts, settings, deadline)
        ]
    budget = Budget(cap, 1, cap)
    spans: list[Span] = []
    for begin, finish, alone in bounds:
        deadline.check()
        if alone and not _fits(text, begin, finish, cap):
            pieces = cut_chars(text, begin, finish, budget, deadline)
        elif (
            finish - begin > 1
            and text[finish - 1] == "\n"
            and not (text[begin].isspace() or text[finish - 2].isspace())
            and (not spans or (spans[-1][0] < begin and spans[-1][1] < finish - 1))
        ):
            spans.append((begin, finish - 1))  # most windows: no blanks at their ends, and none is in another
            continue
        else:
            pieces = [(begin, finish)]
        for piece in pieces:
            span = trim(text, *piece)
            if span is None or (spans and span[1] <= spans[-1][1]):
                continue  # nothing that the one before lacks
            while spans and spans[-1][0] >= span[0]:
                spans.pop()  # all of it is in this one, once blank lines are off
            spans.append(span)
    return spans


def _bounds_of_short_lines(
    text: str, start: int, end: int, settings: Settings, deadline: Deadline
) -> list[tuple[int, int, bool]] | None:
    """What _sliding_bounds says, as offsets and False, found without a list of all lines.

    None where a line is over the cap, where not all is ASCII, and for windows that hold still.
    """
    if settings.stable_windows:
        return None
    cap, most, shared = settings.chunk_max_bytes, settings.window_lines, settings.window_overlap_lines
    overlap_bytes = _overlap_bytes(settings)
    bounds: list[tuple[int, int, bool]] = []
    while start < end:
        deadline.check()
        piece = text[start : min(start + cap, end)]
        if not piece.isascii():
            return None
        lines = piece.split("\n", most)
        stop = start + len(piece)
        if len(lines) > most or stop < end:
            stop -= len(lines[-1])
            if stop == start:
                return None
        bounds.append((start, stop, False))
        if stop >= end:
            break
        # The lines before `stop` that the next window shares: so many, in so many bytes.
        least = start + len(lines[0]) + 1
        low = max(least, stop - overlap_bytes)
        before = text[low:stop].rsplit("\n", shared + 1)
        if len(before) > shared + 1 or (low > least and text[low - 1] != "\n"):
            low += len(before[0]) + 1
        start = low
    return bounds


def _line_starts(text: str, start: int, end: int) -> list[int]:
    """Offsets where the lines of the span start, and `end`."""
    lengths = map(_AND_ITS_END, map(len, text[start:end].split("\n")))
    starts = list(accumulate(lengths, initial=start))
    starts.pop()  # the last line has no end of its own
    if starts[-1] != end:
        starts.append(end)
    return starts


def _fits(text: str, start: int, end: int, max_bytes: int) -> bool:
    chars = end - start
    return chars <= max_bytes and (chars * 4 <= max_bytes or byte_length(text, start, end) <= max_bytes)


def _grow(text: str, starts: list[int], first: int, most: int, max_bytes: int) -> int:
    """The last index such that lines [first, index) fit `most` lines and `max_bytes`; at least first + 1."""
    last = min(first + most, len(starts) - 1, bisect_right(starts, starts[first] + max_bytes) - 1)
    if last <= first:
        return first + 1
    if text.isascii() or (starts[last] - starts[first]) * 4 <= max_bytes:
        return last
    slice_bytes = text[starts[first] : starts[last]].encode()
    if len(slice_bytes) <= max_bytes:
        return last
    reach = starts[first] + len(slice_bytes[:max_bytes].decode("utf-8", "ignore"))
    return max(first + 1, bisect_right(starts, reach) - 1)


def _shrink(text: str, starts: list[int], last: int, most: int, max_bytes: int) -> int:
    """The first index such that lines [index, last) fit `most` lines and `max_bytes`; may be `last`."""
    first = max(0, last - most)
    if text.isascii() or text[starts[first] : starts[last]].isascii():
        return max(first, bisect_left(starts, starts[last] - max_bytes))
    first = last
    while first > 0 and last - first < most and _fits(text, starts[first - 1], starts[last], max_bytes):
        first -= 1
    return first


def _sliding_bounds(text: str, starts: list[int], settings: Settings, deadline: Deadline) -> list[Span]:
    count = len(starts) - 1
    overlap_bytes = _overlap_bytes(settings)
    bounds: list[Span] = []
    first = 0
    while first < count:
        deadline.check()
        last = _grow(text, starts, first, settings.window_lines, settings.chunk_max_bytes)
        bounds.append((first, last))
        if last >= count:
            break
        first = max(first + 1, _shrink(text, starts, last, settings.window_overlap_lines, overlap_bytes))
    return bounds


def _overlap_bytes(settings: Settings) -> int:
    """The overlap's share of the cap: as much of the bytes as of the lines."""
    return settings.chunk_max_bytes * settings.window_overlap_lines // settings.window_lines


# --- windows that hold still -------------------------------------------------------------------------------


def _stable_bounds(text: str, starts: list[int], settings: Settings, deadline: Deadline) -> list[Span]:
    """Windows whose cut points depend on the lines near them only.

    A cut stands before the line whose hash is the least among its neighbours; two cuts that are too far
    apart get more between them, found from the text between them alone. So an edit moves the cuts near it.
    """
    count = len(starts) - 1
    if count == 0:
        return []
    stride = max(1, settings.window_lines - settings.window_overlap_lines)
    reach = max(1, stride * 2 // 5)
    hashes = _line_hashes(text, starts)
    cuts = _least_of_neighbours(hashes, reach, deadline)
    overlap_bytes = _overlap_bytes(settings)
    room = settings.chunk_max_bytes - overlap_bytes
    bounds: list[Span] = []
    for left, right in zip([0, *cuts], [*cuts, count], strict=True):
        first = left
        while first < right:
            deadline.check()
            last = min(_grow(text, starts, first, stride, room), right)
            if last < right:
                least = first + (last - first + 1) // 2
                last = min(range(last, max(least, first + 1) - 1, -1), key=hashes.__getitem__)
            lead = _shrink(text, starts, first, settings.window_overlap_lines, overlap_bytes)
            if not _fits(text, starts[lead], starts[last], settings.chunk_max_bytes):
                lead = first
            while bounds and bounds[-1][0] >= lead:
                bounds.pop()  # all of it is in the overlap
            bounds.append((lead, last))
            first = last
    return bounds


def _line_hashes(text: str, starts: list[int]) -> list[int]:
    """One number a line, from that line and the two after it (so that a lone brace is not one like all)."""
    count = len(starts) - 1
    own = [zlib.crc32(text[starts[i] : starts[i + 1]].encode()) for i in range(count)]
    own += [0, 0]
    return [((own[i] * 31 + own[i + 1]) * 31 + own[i + 2]) * 0x9E3779B1 & 0xFFFFFFFF for i in range(count)]


def _least_of_neighbours(hashes: list[int], reach: int, deadline: Deadline) -> list[int]:
    """Indices whose hash is below all `reach` before them and not above the `reach` after them."""
    count = len(hashes)
    found: list[int] = []
    window: deque[int] = deque()  # indices, hashes not falling: the front is the leftmost least
    for index in range(count + reach):
        if index < count:
            while window and hashes[window[-1]] > hashes[index]:
                window.pop()
            window.append(index)
        centre = index - reach
        if window and window[0] < centre - reach:
            window.popleft()
        if reach <= centre <= count - reach and window and window[0] == centre:
            found.append(centre)
        if not index & 4095:
            deadline.check()
    return found
