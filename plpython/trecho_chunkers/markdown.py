"""Markdown into sections: split at level-2 headings, and further only where a section is over its budget.

The order is deeper headings, paragraphs (packed together up to the budget), lines, sentences, characters. An
edit changes chunks of its own level-2 section only. Every piece is a contiguous slice; what it does not say
itself (title, headings, the header of its table, the info string of its fence) goes into `context`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from . import blocks, front_matter
from .cuts import Budget, Span, cut_once, line_start, reach, trim
from .front_matter import scalar_text
from .identity import Slugs
from .model import Chunk, Deadline, Settings

_new = tuple.__new__  # a NamedTuple without the call in between

_TITLE_MAX_CHARS = 200
_SUMMARY_MAX_CHARS = 500
_TABLE_HEADER_MAX_CHARS = 500
_INFO_MAX_CHARS = 100

_MARKUP = re.compile(r"[\[`*_<{\\&]")
_EXPLICIT_ID = re.compile(r"\s*\{\s*(?:#([\w\-.:]+)|/\*\s*([\w\-.:]+)\s*\*/)\s*\}\s*\Z")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\s[^()]*)?\)|\[[^\[\]]*\])")
_EMPHASIS = re.compile(r"(\*{1,3}|_{1,3})(?=\S)(.+?)(?<=\S)\1")
_CODE_OR_TAG = re.compile(r"`+|</?[A-Za-z][^<>]*>")

_BLANK_LINE = re.compile(r"\n[ \t]++(?=\n)")
_TABLE_RULE = re.compile(r"\n[ \t>]*+\|?[ \t]*+:?-++:?[ \t]*+(?:\|[ \t]*+(?::?-++:?[ \t]*+)?+)*+(?=\n|\Z)")
_TABLE_END = re.compile(r"\n[ \t>]*+(?:\n|\Z)")
_NOT_BLANK = re.compile(r"\S")


class _Segment(NamedTuple):
    """A heading with the text up to the next one; level 0 is the text before the first.

    Every section reads its fields by number, which costs a third of taking them all apart.
    """

    start: int
    body: int  # where the heading ends
    end: int
    level: int
    symbol: str  # titles from the top to this heading, joined by ' > '
    anchor_path: str
    above: str  # context of a chunk that starts with this heading
    inside: str  # context of a chunk that starts below this heading


class _Whole(NamedTuple):
    """A table or a fence: cut only when it alone is over the budget."""

    start: int
    end: int  # of its last line, the line feed excluded
    context: str  # for every piece but the first, when it has to be cut


def chunk_document(text: str, settings: Settings, deadline: Deadline) -> list[Chunk]:
    """Cut a normalised Markdown text into chunks."""
    matter = front_matter.read(text)
    return _Document(text, matter, settings, deadline).chunks()


def plain_heading(markup: str) -> str:
    """A heading's text without the commonest inline markup and explicit ids, at most 200 characters."""
    return _plain_heading(markup)[0]


def _plain_heading(markup: str) -> tuple[str, str]:
    """The plain text and the explicit id, `{#id}` or `{/*id*/}`, if any."""
    text = markup[:_TITLE_MAX_CHARS]
    explicit = ""
    if _MARKUP.search(text):
        found = _EXPLICIT_ID.search(text) if "}" in text else None
        if found is not None:
            explicit = found.group(1) or found.group(2)
            text = text[: found.start()]
        if "[" in text:
            text = _LINK.sub(r"\1", text)
        if "`" in text or "<" in text:
            text = _CODE_OR_TAG.sub("", text)
        if "*" in text or "_" in text:
            text = _EMPHASIS.sub(r"\2", text)
    return " ".join(text.split()), explicit


class _Document:
    """One document on its way into chunks."""

    def __init__(
        self, text: str, matter: front_matter.FrontMatter, settings: Settings, deadline: Deadline
    ) -> None:
        self._text = text
        self._deadline = deadline
        self._budget = Budget(
            settings.section_max_chars, settings.section_max_lines, settings.chunk_max_bytes
        )
        self._max_chars, self._max_lines, self._max_bytes = self._budget
        found = blocks.scan(text, matter.body_start, deadline)
        self._fences = found.fences
        self._example = scalar_text(matter.metadata.get("kind")).lower() == "example"
        title = scalar_text(matter.metadata.get("title"))[:_TITLE_MAX_CHARS]
        summary = scalar_text(matter.metadata.get("summary")) if self._example else ""
        self._summary = summary[:_SUMMARY_MAX_CHARS]
        self._source = self._read_segments(found.headings, matter.body_start, title)
        self._segments: list[_Segment] = []  # of the section at hand
        self._at = 0  # the offset whose line is `_line`
        self._line = 1
        self._chunks: list[Chunk] = []

    def chunks(self) -> list[Chunk]:
        source = self._source
        if self._example:
            whole = self._segments = list(source)
            titles = [index for index, segment in enumerate(whole) if segment.level == 1]
            if whole and self._emit_whole(0, len(whole), titles[0] if titles else 0, "example"):
                return self._chunks
            source = iter(whole)
        section: list[_Segment] = []
        for segment in source:
            level = segment[3]
            if level > 2 or not section:
                section.append(segment)
            elif level == 2 and len(section) == 1 and self._is_bare_title(section[0]):
                section.append(segment)  # a title with nothing under it belongs to what follows
            else:
                self._section(section)
                section = [segment]
        if section:
            self._section(section)
        return self._chunks

    def _read_segments(self, headings: list[blocks.Heading], start: int, title: str) -> Iterator[_Segment]:
        text = self._text
        first = headings[0].start if headings else len(text)
        if _NOT_BLANK.search(text, start, first):
            yield _Segment(start, start, first, 0, "", "", title, title)
        unique = Slugs().unique
        open_levels: list[tuple[int, str, str, str]] = []  # level, symbol, section slug, inside
        last = len(headings) - 1
        for index, (begin, body, level, markup) in enumerate(headings):
            if not index & 255:
                self._deadline.check()
            if markup:
                name, explicit = _plain_heading(markup)
                slug = unique(explicit or name)
            else:
                name, slug = "", unique("")
            while open_levels and open_levels[-1][0] >= level:
                open_levels.pop()
            symbol, section, anchor_path = name, slug, slug
            above = title if title != name else ""
            if open_levels:
                over, over_symbol, over_slug, above = open_levels[-1]
                symbol = f"{over_symbol} > {name}" if over_symbol and name else over_symbol or name
                # Anchors below a title leave it out: they are doc_id#heading-slug[/sub-slug].
                if over > 1:
                    section = over_slug
                    anchor_path = f"{over_slug}/{slug}"
            inside = f"{above} > {name}" if above and name else above or name
            open_levels.append((level, symbol, section, inside))
            end = headings[index + 1].start if index < last else len(text)
            yield _new(_Segment, (begin, body, end, level, symbol, anchor_path, above, inside))

    def _has_body(self, index: int) -> bool:
        segment = self._segments[index]
        return _NOT_BLANK.search(self._text, segment.body, segment.end) is not None

    def _is_bare_title(self, segment: _Segment) -> bool:
        return segment.level == 1 and _NOT_BLANK.search(self._text, segment.body, segment.end) is None

    def _section(self, segments: list[_Segment]) -> None:
        """Emit one section: a heading up to level 2 (after a bare title, maybe) and all that is below it."""
        self._segments = segments
        count = len(segments)
        main = 1 if count > 1 and segments[0][3] == 1 and segments[1][3] == 2 else 0
        kind = "section" if segments[main][3] == 2 else "preamble"
        if not self._emit_whole(0, count, main, kind):
            self._split(0, count, main, kind)

    def _emit_or_split(self, first: int, last: int, main: int, kind: str) -> None:
        """Emit segments [first, last), whose heading is that of `main`, in as few pieces as allowed."""
        if not self._emit_whole(first, last, main, kind):
            self._split(first, last, main, kind)

    def _split(self, first: int, last: int, main: int, kind: str) -> None:
        """Emit segments [first, last), whose heading is that of `main`, in two pieces or more."""
        self._deadline.check()
        segments = self._segments
        if main + 1 == last:
            self._split_paragraphs(first, main)
            return
        level = min([segment.level for segment in segments[main + 1 : last]])
        starts = [index for index in range(main + 1, last) if segments[index].level == level]
        starts.append(last)
        lead = first
        if any(self._has_body(index) for index in range(first, starts[0])):
            self._emit_or_split(first, starts[0], main, kind)
            lead = starts[0]
        for index, start in enumerate(starts[:-1]):
            self._emit_or_split(start if index else lead, starts[index + 1], start, "subsection")

    def _emit_whole(self, first: int, last: int, main: int, kind: str) -> bool:
        """Emit segments [first, last) as one chunk if they are within the budget."""
        segments, text = self._segments, self._text
        segment = segments[first]
        start = segment[0]
        if not segment[3]:  # only the text before the first heading may start with blanks
            start = line_start(text, start, segments[last - 1][2])
        content = text[start : segments[last - 1][2]].rstrip()
        chars = len(content)
        if chars > self._max_chars:
            return False
        breaks = content.count("\n")
        if breaks >= self._max_lines:
            return False
        if chars * 4 > self._max_bytes and len(content.encode()) > self._max_bytes:
            return False
        self._emit(start, content, breaks, main, kind, segment[6])
        return True

    def _split_paragraphs(self, first: int, main: int) -> None:
        """Cut one heading's text: paragraphs packed up to the budget, then lines, then characters."""
        text, budget, body = self._text, self._budget, self._segments[main].body
        span = trim(text, self._segments[first].start, self._segments[main].end)
        if span is None:
            return
        start, end = span
        wholes = self._wholes(start, end)
        count = len(wholes)
        index = 0  # of the first whole that ends after `start`
        while start >= 0:
            self._deadline.check()
            limit = reach(text, start, end, budget)
            while index < count and wholes[index].end <= start:
                index += 1
            context = ""
            if index < count and wholes[index].start < start:  # the rest of one that is over the budget
                context, stop = wholes[index].context, wholes[index].end
                cut = stop if stop <= limit else cut_once(text, start, stop, limit, budget)
            elif limit == end:
                cut = end
            else:
                cut = self._paragraph_cut(start, limit, wholes, index)
                if cut < 0 or (start < body and _NOT_BLANK.search(text, body, cut) is None):
                    cut = self._cut_first(start, end, limit, wholes, index, max(cut, body, start))
            piece = trim(text, start, cut)
            if piece is not None:
                self._emit_part(piece, first, main, context)
            start = line_start(text, cut, end)

    def _paragraph_cut(self, start: int, limit: int, wholes: list[_Whole], index: int) -> int:
        """The last place in (start, limit] between paragraphs, tables and fences, or -1."""
        text = self._text
        after = start  # the end of the last whole that is in reach
        while index < len(wholes) and wholes[index].start < limit:
            if wholes[index].end > limit:
                return wholes[index].start if wholes[index].start > start else -1
            after = wholes[index].end
            index += 1
        cut = text.rfind("\n\n", after, limit + 2)
        if cut < 0:
            for found in _BLANK_LINE.finditer(text, after, limit + 1):
                cut = found.start()
        return cut if cut > start else after if after > start else -1

    def _cut_first(
        self, start: int, end: int, limit: int, wholes: list[_Whole], index: int, least: int
    ) -> int:
        """Where to cut when what stands at `start` is over the budget, or is a heading that would stand alone.

        A heading takes what fits of the text below it, unless that is a table or fence that may stay whole.
        """
        text, budget = self._text, self._budget
        below = line_start(text, least, end)
        if below >= limit:  # the heading itself fills the chunk
            below = least = start
        if index < len(wholes) and wholes[index].start <= below:
            whole = wholes[index]
            if whole.start > start and reach(text, whole.start, whole.end, budget) == whole.end:
                return whole.start
            return cut_once(text, start, whole.end, limit, budget)
        return cut_once(text, start, end, limit, budget, below)

    def _wholes(self, start: int, end: int) -> list[_Whole]:
        """Tables and fences of a span, in order; they do not overlap."""
        text = self._text
        wholes: list[_Whole] = []
        at = start
        index = bisect_left(self._fences, (start, start))
        while index < len(self._fences) and self._fences[index][0] < end:
            first, last = self._fences[index]
            self._add_tables(wholes, at, first)
            line_end = text.find("\n", first, last)
            opening = text[first : line_end if line_end >= 0 else last].strip()
            wholes.append(_Whole(first, min(last, end), opening[:_INFO_MAX_CHARS]))
            at = last
            index += 1
        self._add_tables(wholes, at, end)
        return wholes

    def _add_tables(self, wholes: list[_Whole], start: int, end: int) -> None:
        text = self._text
        if text.find("|", start, end) < 0:
            return
        at = start
        while (rule := _TABLE_RULE.search(text, at, end)) is not None:
            at = rule.end()
            header = max(start, text.rfind("\n", start, rule.start()) + 1)
            if "|" not in rule.group() or "|" not in text[header : rule.start()]:
                continue
            stop = _TABLE_END.search(text, at, end)
            at = end if stop is None else stop.start()
            head = text[header : rule.end()].strip()
            if len(head) > _TABLE_HEADER_MAX_CHARS:
                head = text[header : rule.start()].strip()[:_TABLE_HEADER_MAX_CHARS]
            wholes.append(_Whole(header, at, head))

    def _emit_part(self, span: Span, first: int, main: int, extra: str) -> None:
        segments = self._segments
        if span[0] >= segments[main].body:
            context = segments[main].inside
        else:
            context = segments[main if span[0] >= segments[main].start else first].above
        if extra:
            context = f"{context}\n{extra}" if context else extra
        content = self._text[span[0] : span[1]]
        self._emit(span[0], content, content.count("\n"), main, "part", context)

    def _emit(self, start: int, content: str, breaks: int, main: int, kind: str, context: str) -> None:
        """Append the chunk of `content`, which starts at `start` and holds so many line breaks."""
        segment = self._segments[main]
        if self._summary:
            context = f"{context}\n{self._summary}" if context else self._summary
        first = self._line + self._text.count("\n", self._at, start)
        last = first + breaks
        self._at, self._line = start + len(content), last
        chunks = self._chunks
        chunks.append(
            _new(Chunk, (len(chunks) + 1, kind, segment[4], segment[5], context, first, last, content))
        )
