"""Markdown into sections: split at level-2 headings, and further only where a section is over its budget.

The order is deeper headings, paragraphs (packed together up to the budget), lines, sentences, characters. An
edit changes chunks of its own level-2 section only. Every piece is a contiguous slice; what it does not say
itself (title, headings, the header of its table, the info string of its fence) goes into `context`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import NamedTuple

from . import blocks, front_matter
from .cuts import Budget, Span, cut_lines, trim
from .front_matter import Json
from .identity import Slugs
from .model import Chunk, Deadline, Lines, Settings

_TITLE_MAX_CHARS = 200
_SUMMARY_MAX_CHARS = 500
_TABLE_HEADER_MAX_CHARS = 500
_INFO_MAX_CHARS = 100

_MARKUP = re.compile(r"[\[`*_<{\\&]")
_EXPLICIT_ID = re.compile(r"\s*\{(?:#([\w\-.:]+)|/\*\s*([\w\-.:]+)\s*\*/)\}\s*\Z")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\s[^()]*)?\)|\[[^\[\]]*\])")
_EMPHASIS = re.compile(r"(\*{1,3}|_{1,3})(?=\S)(.+?)(?<=\S)\1")
_CODE_OR_TAG = re.compile(r"`+|</?[A-Za-z][^<>]*>")

_PARAGRAPH_BREAK = re.compile(r"\n(?:[ \t]*+\n)++")
_TABLE_RULE = re.compile(r"\n[ \t>]*+\|?[ \t]*+:?-++:?[ \t]*+(?:\|[ \t]*+(?::?-++:?[ \t]*+)?+)*+(?=\n|\Z)")


class _Segment(NamedTuple):
    """A heading with the text up to the next one; level 0 is the text before the first."""

    start: int
    body: int  # where the heading ends
    end: int
    level: int
    has_body: bool
    parent: int  # the segment of the heading above this one, or -1
    title: str
    slug: str


class _Atom(NamedTuple):
    """What paragraphs are packed from."""

    start: int
    end: int
    context: str  # for every piece but the first, when it has to be cut
    whole: bool  # a table or a fence: never cut to fill a chunk


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
        found = _EXPLICIT_ID.search(text)
        if found is not None:
            explicit = found.group(1) or found.group(2)
            text = text[: found.start()]
        text = _LINK.sub(r"\1", text)
        text = _CODE_OR_TAG.sub("", text)
        text = _EMPHASIS.sub(r"\2", text)
    return " ".join(text.split()), explicit


class _Document:
    def __init__(
        self, text: str, matter: front_matter.FrontMatter, settings: Settings, deadline: Deadline
    ) -> None:
        self._text = text
        self._deadline = deadline
        self._budget = Budget(
            settings.section_max_chars, settings.section_max_lines, settings.chunk_max_bytes
        )
        self._start = matter.body_start
        found = blocks.scan(text, matter.body_start, deadline)
        self._fences = found.fences
        self._segments = self._read_segments(found.headings)
        self._lines = Lines(text)
        self._chunks: list[Chunk] = []
        self._example = _text_of(matter.metadata.get("kind")).lower() == "example"
        self._title = _text_of(matter.metadata.get("title"))[:_TITLE_MAX_CHARS]
        summary = _text_of(matter.metadata.get("summary")) if self._example else ""
        self._summary = summary[:_SUMMARY_MAX_CHARS]
        self._paths: dict[int, tuple[list[int], str, str]] = {}

    def chunks(self) -> list[Chunk]:
        count = len(self._segments)
        if count and self._example and self._emit_whole(0, count, self._main_segment(), "example"):
            return self._chunks
        first = 0
        while first < count:
            self._deadline.check()
            main, last = self._section(first)
            self._split(first, last, main, "section" if self._segments[main].level == 2 else "preamble")
            first = last
        return self._chunks

    def _read_segments(self, headings: list[blocks.Heading]) -> list[_Segment]:
        text = self._text
        segments: list[_Segment] = []
        first = headings[0].start if headings else len(text)
        if not _is_blank(text, self._start, first):
            segments.append(_Segment(self._start, self._start, first, 0, True, -1, "", ""))
        slugs = Slugs()
        above: list[tuple[int, int]] = []  # (level, segment) of the headings that are open
        last = len(headings) - 1
        for index, heading in enumerate(headings):
            end = headings[index + 1].start if index < last else len(text)
            title, explicit = _plain_heading(heading.title)
            while above and above[-1][0] >= heading.level:
                above.pop()
            parent = above[-1][1] if above else -1
            above.append((heading.level, len(segments)))
            segments.append(
                _Segment(
                    heading.start,
                    heading.end,
                    end,
                    heading.level,
                    not _is_blank(text, heading.end, end),
                    parent,
                    title,
                    slugs.unique(explicit or title),
                )
            )
        return segments

    def _main_segment(self) -> int:
        """The segment that names the whole document: its title, else its first."""
        for index, segment in enumerate(self._segments):
            if segment.level == 1:
                return index
        return 0

    def _section(self, first: int) -> tuple[int, int]:
        """The section that starts at segment `first`: its main segment, and the one after its last."""
        segments = self._segments
        count = len(segments)
        main = first
        # A level-1 title with nothing under it belongs to the section that follows.
        if (
            segments[first].level == 1
            and not segments[first].has_body
            and first + 1 < count
            and segments[first + 1].level == 2
        ):
            main += 1
        last = main + 1
        while last < count and segments[last].level > 2:
            last += 1
        return main, last

    def _split(self, first: int, last: int, main: int, kind: str) -> None:
        """Emit segments [first, last), whose heading is that of `main`, in as few pieces as allowed."""
        if self._emit_whole(first, last, main, kind):
            return
        segments = self._segments
        below = segments[main + 1 : last]
        if not below:
            self._split_paragraphs(segments[first].start, segments[last - 1].end, main)
            return
        level = min([segment.level for segment in below])
        starts = [index for index in range(main + 1, last) if segments[index].level == level]
        starts.append(last)
        lead = first
        if any(segment.has_body for segment in segments[first : starts[0]]):
            self._split(first, starts[0], main, kind)
            lead = starts[0]
        for index, start in enumerate(starts[:-1]):
            self._deadline.check()
            self._split(start if index else lead, starts[index + 1], start, "subsection")

    def _emit_whole(self, first: int, last: int, main: int, kind: str) -> bool:
        """Emit segments [first, last) as one chunk if they are within the budget."""
        span = trim(self._text, self._segments[first].start, self._segments[last - 1].end)
        if span is None:
            return True
        if not self._budget.fits(self._text, *span):
            return False
        self._emit(span, main, kind, "")
        return True

    def _split_paragraphs(self, start: int, end: int, main: int) -> None:
        """Pack paragraphs greedily; cut what is over the budget alone."""
        text, budget = self._text, self._budget
        open_start = -1  # of the chunk being packed
        open_end = -1
        for atom in self._atoms(start, end):
            self._deadline.check()
            span = trim(text, atom.start, atom.end)
            if span is None:
                continue
            if open_start >= 0 and budget.fits(text, open_start, span[1]):
                open_end = span[1]
                continue
            if budget.fits(text, *span):
                if open_start >= 0:
                    self._emit((open_start, open_end), main, "part", "")
                open_start, open_end = span
                continue
            begin = span[0]
            if open_start >= 0:
                if not atom.whole and _is_blank(text, self._segments[main].body, open_end):
                    begin = open_start  # a heading alone: it takes what fits of the text below it
                else:
                    self._emit((open_start, open_end), main, "part", "")
            pieces = [trim(text, *piece) for piece in cut_lines(text, begin, span[1], budget, self._deadline)]
            cut = [piece for piece in pieces if piece is not None]
            open_start = open_end = -1
            if not atom.whole:
                open_start, open_end = cut.pop()
            for index, piece in enumerate(cut):
                self._emit(piece, main, "part", atom.context if index else "")
        if open_start >= 0:
            self._emit((open_start, open_end), main, "part", "")

    def _atoms(self, start: int, end: int) -> list[_Atom]:
        """Paragraphs, tables and fences of a span, in order and without a gap."""
        text = self._text
        atoms: list[_Atom] = []
        at = start
        index = bisect_left(self._fences, (start, start))
        while index < len(self._fences) and self._fences[index][0] < end:
            first, last = self._fences[index]
            last = min(last + 1, end)
            if first >= at:
                self._add_paragraphs(atoms, at, first)
                line_end = text.find("\n", first, last)
                opening = text[first : line_end if line_end >= 0 else last].strip()
                atoms.append(_Atom(first, last, opening[:_INFO_MAX_CHARS], True))
                at = last
            index += 1
        self._add_paragraphs(atoms, at, end)
        return atoms

    def _add_paragraphs(self, atoms: list[_Atom], start: int, end: int) -> None:
        text = self._text
        at = start
        while at < end:
            found = _PARAGRAPH_BREAK.search(text, at, end)
            stop = end if found is None else found.end()
            rule = _TABLE_RULE.search(text, at, stop) if text.find("|", at, stop) >= 0 else None
            if rule is not None and "|" in rule.group():
                header = max(at, text.rfind("\n", at, rule.start()) + 1)
                if "|" in text[header : rule.start()]:
                    if header > at:
                        atoms.append(_Atom(at, header, "", False))
                    head = text[header : rule.end()]
                    if len(head) > _TABLE_HEADER_MAX_CHARS:
                        head = text[header : rule.start()][:_TABLE_HEADER_MAX_CHARS]
                    atoms.append(_Atom(header, stop, head.strip(), True))
                    at = stop
                    continue
            atoms.append(_Atom(at, stop, "", False))
            at = stop

    def _emit(self, span: Span, main: int, kind: str, extra: str) -> None:
        start, end = span
        path, symbol, anchor_path = self._path(main)
        segments = self._segments
        said = [segments[index].title for index in path if segments[index].start < start]
        if self._title and not (path and segments[path[0]].title == self._title):
            said.insert(0, self._title)
        parts = [" > ".join([title for title in said if title])]
        if self._summary:
            parts.append(self._summary)
        if extra:
            parts.append(extra)
        context = "\n".join([part for part in parts if part])
        first = self._lines.at(start)
        self._chunks.append(
            Chunk(
                len(self._chunks) + 1,
                kind,
                symbol,
                anchor_path,
                context,
                first,
                self._lines.at(end),
                self._text[start:end],
            )
        )

    def _path(self, main: int) -> tuple[list[int], str, str]:
        """Headings over and at segment `main` from the top, their titles and their anchor."""
        known = self._paths.get(main)
        if known is not None:
            return known
        segments = self._segments
        path: list[int] = []
        at = main if segments[main].level else -1
        while at >= 0:
            path.append(at)
            at = segments[at].parent
        path.reverse()
        symbol = " > ".join([segments[index].title for index in path])
        # The title is left out of anchors below it: they are doc_id#heading-slug[/sub-slug].
        named = path[1:] if len(path) > 1 and segments[path[0]].level == 1 else path
        anchor_path = segments[named[0]].slug if named else ""
        if len(named) > 1:
            anchor_path = f"{anchor_path}/{segments[named[-1]].slug}"
        known = (path, symbol, anchor_path)
        self._paths[main] = known
        return known


def _is_blank(text: str, start: int, end: int) -> bool:
    return start >= end or trim(text, start, end) is None


def _text_of(value: Json) -> str:
    """A scalar of the front matter as one line of text."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return ""
