"""Where the top-level headings of a Markdown text are, exactly as in CommonMark 0.31, and where its fences.

Ordinary text is never looked at line by line: one pattern jumps from one line that may open or close a block
to the next. Only lists and block quotes, where a line's meaning depends on all that is open, are read line by
line. Time is linear in the size of the text, whatever it holds.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .model import Deadline
from .references import definitions_end


class Heading(NamedTuple):
    """A heading that is a child of the document; offsets into the text that was scanned."""

    start: int  # start of its first line
    end: int  # end of its last line, the line feed excluded
    level: int  # 1 to 6
    title: str  # its inline text as written, line feeds as blanks


class Blocks(NamedTuple):
    """What `scan` found, in order."""

    headings: list[Heading]
    fences: list[tuple[int, int]]  # whole lines, opening and closing one included, wherever they are nested


_new = tuple.__new__  # a NamedTuple without the call in between

_ATX, _FENCE, _HTML, _QUOTE, _UNDERLINE, _BREAK, _BULLET, _NUMBER = range(1, 9)
_OPENER = re.compile(
    r"\n {0,3}+(?=[#`~<>=\-*_+0-9])"  # one look says no to most lines
    r"(?:(\#{1,6})(?=[ \t\n])"
    r"|(`{3,}+(?=[^`\n]*+\n)|~{3,}+)"
    r"|(<)(?=[A-Za-z/!?])"
    r"|(>)"
    r"|(=++|-++)[ \t]*+(?=\n)"
    r"|(-[ \t]*+-[ \t]*+-[- \t]*+(?=\n)|\*[ \t]*+\*[ \t]*+\*[* \t]*+(?=\n)|_[ \t]*+_[ \t]*+_[_ \t]*+(?=\n))"
    r"|([-+*])(?=[ \t\n])"
    r"|([0-9]{1,9})[.)](?=[ \t\n]))"
)
_BLANK_LINE = re.compile(r"\n[ \t]*+(?=\n)")
_INDENTED = re.compile(r" {4}| {0,3}\t")
_WHITE = re.compile(r"[ \t]*+")

_FENCE_AT = re.compile(r"`{3,}+(?=[^`\n]*+\n)|~{3,}+")
_FENCE_CLOSE_AT = {
    "`": re.compile(r"(`{3,}+)[ \t]*+(?=\n)"),
    "~": re.compile(r"(~{3,}+)[ \t]*+(?=\n)"),
}
_MARKS = frozenset(">#`~<=-*_+0123456789")
_ATX_AT = re.compile(r"\#{1,6}(?=[ \t\n])")
_UNDERLINE_AT = re.compile(r"(=++|-++)[ \t]*+(?=\n)")
_ITEM_AT = re.compile(r"(?:[-+*]|([0-9]{1,9})[.)])(?=[ \t\n])")

# Lines of lists that need no thought: items at the margin whose text opens nothing, and lines that can only go
# on with a paragraph, whatever their indentation.
_PLAIN = (
    r"(?:[^ \t\n>#`~<=\-*_+0-9\[]|`(?!``)|\*{1,2}+(?=[^ \t\n*_-])|_(?=[A-Za-z])|[0-9]++(?![.)])"
    r"|\[[^\[\]\n\\]*+\](?!:))"
)
_TEXT_LINES = re.compile(rf"(?:\n[ \t]*+(?:{_PLAIN}|\[)[^\n]*+)++(?=\n)")
_ITEMS = re.compile(
    rf"(?:\n([-*+]|[0-9]{{1,9}}[.)])[ ]{_PLAIN}[^\n]*+(?:\n[ \t]*+(?:{_PLAIN}|\[)[^\n]*+)*+)++(?=\n)"
)

_BLOCK_TAGS = (
    "address|article|aside|base|basefont|blockquote|body|caption|center|col|colgroup|dd|details|dialog|dir|div|dl|"
    "dt|fieldset|figcaption|figure|footer|form|frame|frameset|h1|h2|h3|h4|h5|h6|head|header|hr|html|iframe|legend|"
    "li|link|main|menu|menuitem|nav|noframes|ol|optgroup|option|p|param|search|section|summary|table|tbody|td|"
    "tfoot|th|thead|title|tr|track|ul"
)
_SPACE = r"[ \t\v\f]"
_ATTRIBUTE = (
    rf"(?:{_SPACE}++[A-Za-z_:][A-Za-z0-9_.:-]*+"
    rf"(?:{_SPACE}*+={_SPACE}*+(?:[^ \t\v\f\n\"'=<>`]++|'[^'\n]*+'|\"[^\"\n]*+\"))?+)"
)
# Groups 1 to 7 are the seven kinds of HTML block.
_HTML_AT = re.compile(
    r"(<(?:script|pre|style|textarea)(?=[ \t\v\f>\n]))"
    r"|(<!--)"
    r"|(<\?)"
    r"|(<![a-z])"
    r"|(<!\[CDATA\[)"
    rf"|(</?(?:{_BLOCK_TAGS})(?=[ \t\v\f\n]|/?>))"
    rf"|((?:<[a-z][a-z0-9-]*+{_ATTRIBUTE}*+{_SPACE}*+/?>|</[a-z][a-z0-9-]*+{_SPACE}*+>){_SPACE}*+(?=\n))",
    re.IGNORECASE,
)
_HTML_END = {
    1: re.compile(r"</(?:script|pre|style|textarea)>", re.IGNORECASE),
    2: re.compile(r"-->"),
    3: re.compile(r"\?>"),
    4: re.compile(r">"),
    5: re.compile(r"\]\]>"),
}


def scan(text: str, start: int, deadline: Deadline, title_only: bool = False) -> Blocks:
    """Find the headings and fences of text[start:], `start` being the start of a line.

    Args: text: normalised. title_only: stop after the first level-1 heading.
    Returns: offsets into `text`.
    """
    # With a line feed on both sides every line starts after one and ends before one.
    body = f"\n{text[start:]}\n"
    return _scan(body, start - 1, len(text), deadline, title_only)


def _scan(  # noqa: PLR0912, PLR0915  # one branch for each kind of opener
    body: str, shift: int, most: int, deadline: Deadline, title_only: bool
) -> Blocks:
    """`scan` over `body`; offsets found there are moved by `shift` and kept from going over `most`."""
    headings: list[Heading] = []
    fences: list[tuple[int, int]] = []
    last = len(body) - 1
    paragraphs = _Paragraphs(body)
    restart = paragraphs.restart
    opener = _OPENER.search
    find = body.find
    add = headings.append
    at = 0  # a line feed: the next line to look at starts after it
    tick = 0
    while (found := opener(body, at)) is not None:
        tick += 1
        if not tick & 255:
            deadline.check()
        kind = found.lastindex
        line = found.start()
        if kind == _ATX:
            mark, after = found.span(1)
            at = find("\n", after)
            title = _atx_title(body[after:at]) if at > after else ""
            end = at + shift if at + shift < most else most
            add(_new(Heading, (line + 1 + shift, end, after - mark, title)))
        elif kind == _FENCE:
            at = _fence_end(body, found.end(), body[found.start(2)], found.end() - found.start(2))
            fences.append((line + 1, at))
        elif kind == _HTML:
            html = _HTML_AT.match(body, found.start(3))
            if html is None or (html.lastindex == 7 and paragraphs.start_before(line) >= 0):
                at = find("\n", found.end())
                continue
            at = _html_end(body, html)
        elif kind == _UNDERLINE:
            first = paragraphs.start_before(line)
            if first >= 0:
                first = _after_definitions(body, first, line)
            equals = body[found.start(5)] == "="
            if 0 <= first < line:  # else nothing is left that could be a heading
                at = find("\n", found.end())
                level = 1 if equals else 2
                end = at + shift if at + shift < most else most
                add(_new(Heading, (first + shift, end, level, _setext_title(body[first:line]))))
            elif not equals and found.end(5) - found.start(5) != 2:
                # Three or more are a thematic break, one is an empty list item.
                if found.end(5) - found.start(5) == 1:
                    at = _containers(body, line, fences, deadline)
                else:
                    at = find("\n", found.end())
            else:
                restart(line)
                at = find("\n", found.end())
                continue
        elif kind == _BREAK:
            at = found.end()
        elif kind == _QUOTE:
            at = _containers(body, line, fences, deadline)
        else:
            if not _may_interrupt(body, found.end(), found.group(8)) and paragraphs.start_before(line) >= 0:
                at = find("\n", found.end())
                continue
            at = _containers(body, line, fences, deadline)
        if at >= last or (title_only and headings and headings[-1].level == 1):
            break
        restart(at)
    return Blocks(headings, [(first + shift, min(end + shift, most)) for first, end in fences])


class _Paragraphs:
    """Answers whether a paragraph of the document is open, from the lines since the last other block."""

    __slots__ = ("_body", "_line", "_seen")

    def __init__(self, body: str) -> None:
        self._body = body
        self._line = 0  # a line feed; the lines after it, up to `_seen`, hold no blank one
        self._seen = 0

    def restart(self, line: int) -> None:
        """Another block ended at the line feed `line`."""
        self._line = self._seen = line

    def start_before(self, line: int) -> int:
        """Start of the paragraph that is open at the line feed `line`, or -1. Asked in rising order."""
        body = self._body
        first = self._line
        if first == line:
            return -1
        empty = body.rfind("\n\n", self._seen, line + 1)
        if empty >= 0:
            first = empty + 1
        # Blank lines that hold blanks: only these can come after the last empty one.
        after = max(first, self._seen)
        if body.find(" \n", after, line + 1) >= 0 or body.find("\t\n", after, line + 1) >= 0:
            for blank in _BLANK_LINE.finditer(body, after, line + 1):
                first = blank.end()
        self._seen = line
        # Indented lines before a paragraph are code; after its first line they would belong to it.
        while first < line and _INDENTED.match(body, first + 1):
            first = body.find("\n", first + 1)
        self._line = first
        return first + 1 if first < line else -1


def _atx_title(rest: str) -> str:
    title = rest.strip(" \t")
    if title[-1:] != "#":
        return title
    bare = title.rstrip("#")
    if not bare:
        return ""
    return bare.rstrip(" \t") if bare[-1] in " \t" else title


def _setext_title(lines: str) -> str:
    if "\n" not in lines:
        return lines.strip(" \t")
    return " ".join([line.strip(" \t") for line in lines.split("\n")])


def _after_definitions(body: str, first: int, line: int) -> int:
    """Start of the first line of the paragraph body[first:line] that is no reference definition."""
    if body[_after_white(body, first)] != "[":
        return first
    lines = body[first:line].split("\n")
    text = "\n".join([item.lstrip(" \t") for item in lines])
    end = definitions_end(text)
    taken = len(lines) if end >= len(text) else text.count("\n", 0, end)
    return first + sum(len(item) + 1 for item in lines[:taken])


def _fence_end(body: str, at: int, mark: str, length: int) -> int:
    """The line feed after the closing fence, else the last one."""
    close, run = _FENCE_CLOSE_AT[mark], mark * length
    at = body.find("\n", at)
    while (found := body.find(run, at)) >= 0:
        line = body.rfind("\n", at, found)
        closing = None
        if found - line <= 4 and not body[line + 1 : found].strip(" "):
            closing = close.match(body, found)
        at = body.find("\n", found + length)
        if closing is not None:
            return closing.end()
    return len(body) - 1


def _html_end(body: str, html: re.Match[str]) -> int:
    """The line feed after an HTML block."""
    end = _HTML_END.get(html.lastindex or 0)
    if end is None:
        start = html.start()
        empty = body.find("\n\n", start)
        if empty < 0:
            empty = len(body) - 1
        # A line of blanks may come before.
        if body.find(" \n", start, empty) < 0 and body.find("\t\n", start, empty) < 0:
            return empty
        blank = _BLANK_LINE.search(body, start)
        return blank.start() if blank else len(body) - 1
    found = end.search(body, html.start())
    return body.find("\n", found.end()) if found else len(body) - 1


def _may_interrupt(body: str, marker_end: int, number: str | None) -> bool:
    """Whether a list marker may stand right after a line of a paragraph."""
    if number is not None and int(number) != 1:
        return False
    return body[_after_white(body, marker_end)] != "\n"


# --- lists and block quotes --------------------------------------------------------------------------------

_NONE, _PARAGRAPH, _IN_FENCE, _IN_HTML = range(4)


def _containers(  # noqa: PLR0912, PLR0915  # one automaton: its state would be passed at every line
    body: str, line: int, fences: list[tuple[int, int]], deadline: Deadline
) -> int:
    """Read lines from the one after the line feed `line` while a list or block quote is open.

    Returns: the line feed before the first line that is in none. Fences met inside are added to `fences`.
    """
    last = len(body) - 1
    find = body.find
    stack: list[int] = []  # open containers, outermost first: 0 a block quote, else the width of a list item
    quotes = 0  # block quotes in `stack`
    hollow = False  # the innermost container is a list item with nothing in it yet
    leaf = _NONE
    fence_start, fence_mark, fence_length = 0, "", 0
    html_end: re.Pattern[str] | None = None
    paragraph: list[str] | None = None  # lines of the open paragraph, kept while it may be definitions
    tick = 0

    while line < last:
        tick += 1
        if not tick & 255:
            deadline.check()
        if leaf < _IN_FENCE:
            plain = _ITEMS.match(body, line)
            if plain is not None:  # at the margin, so nothing that was open is matched
                stack = [len(plain.group(1)) + 1]
                quotes = 0
                hollow = False
                leaf, paragraph = _PARAGRAPH, None
                line = plain.end()
                continue
            if leaf == _PARAGRAPH and paragraph is None:
                plain = _TEXT_LINES.match(body, line)
                if plain is not None:
                    line = plain.end()
                    continue
        start = line + 1
        line_end = find("\n", start)
        at = _after_white(body, start)
        column = _column(body, start, at, 0)  # of `at` in the line
        indent = column  # columns between the innermost container matched so far and `at`
        depth = len(stack)
        matched = 0
        quotes_matched = 0
        while matched < depth and at < line_end:
            width = stack[matched]
            if width:
                if indent < width:
                    break
                indent -= width
            elif indent <= 3 and body[at] == ">":
                at, column, indent = _inside_quote(body, at, column)
                quotes_matched += 1
            else:
                break
            matched += 1

        if at == line_end:  # blank, or blank after quote markers
            if quotes > quotes_matched:  # it holds no marker for these, and blank lines are never lazy
                first = stack.index(0, matched)
                del stack[first:]
                quotes = quotes_matched
                if leaf == _IN_FENCE:
                    fences.append((fence_start, line))
                leaf = _NONE
            elif leaf == _PARAGRAPH or (leaf == _IN_HTML and html_end is None):
                leaf = _NONE
            elif hollow:
                stack.pop()
            hollow = False
            if not stack:
                return line
            line = line_end
            continue

        hollow = False
        in_paragraph = lazy = False
        if leaf == _PARAGRAPH:
            in_paragraph = matched == depth
            lazy = not in_paragraph
        elif leaf != _NONE:
            if matched == depth:
                if leaf == _IN_HTML:
                    if html_end is not None and html_end.search(body, at, line_end):
                        leaf = _NONE
                elif indent <= 3 and body[at] == fence_mark:
                    close = _FENCE_CLOSE_AT[fence_mark].match(body, at)
                    if close is not None and close.end(1) - at >= fence_length:
                        fences.append((fence_start, line_end))
                        leaf = _NONE
                line = line_end
                continue
            if leaf == _IN_FENCE:
                fences.append((fence_start, line))
            leaf = _NONE

        break_from = marker_end = -1
        while True:  # once for every container the line opens, and once for what it holds
            mark = body[at]
            width = 0  # of a list item that opens here
            opens = _NONE  # the leaf that opens here
            starts = False  # whether anything opens here
            if indent < 4 and mark in _MARKS:
                if mark == ">":
                    starts = True
                elif mark == "#":
                    starts = _ATX_AT.match(body, at) is not None
                elif mark in "`~":
                    fence = _FENCE_AT.match(body, at)
                    if fence is not None:
                        starts, opens = True, _IN_FENCE
                        fence_start, fence_mark, fence_length = start, mark, fence.end() - at
                elif mark == "<":
                    html = _HTML_AT.match(body, at)
                    if html is not None and (html.lastindex != 7 or not (in_paragraph or lazy)):
                        starts = True
                        html_end = _HTML_END.get(html.lastindex or 0)
                        if html_end is None or not html_end.search(body, at, line_end):
                            opens = _IN_HTML
                else:
                    if in_paragraph and mark in "=-" and _UNDERLINE_AT.match(body, at):
                        if paragraph is None or not _only_definitions(paragraph):
                            leaf = _NONE
                            break
                        in_paragraph, leaf = False, _NONE
                    if mark in "*-_":
                        if break_from < 0:
                            break_from = _break_tail(body, start, line_end)
                        starts = at >= break_from and body.count(mark, at, line_end) >= 3
                    if not starts:
                        item = _ITEM_AT.match(body, at)
                        if item is not None and (
                            not in_paragraph or _may_interrupt(body, item.end(), item.group(1))
                        ):
                            starts = True
                            marker_end = item.end()
                            width = indent + marker_end - at

            if not starts and (in_paragraph or lazy):
                if paragraph is not None:
                    paragraph.append(body[at:line_end])
                break
            # What the line did not match ends here.
            if matched < len(stack):
                quotes = quotes_matched
                del stack[matched:]
            in_paragraph = lazy = False
            leaf = _NONE
            if starts and mark == ">":
                stack.append(0)
                quotes += 1
                quotes_matched += 1
                at, column, indent = _inside_quote(body, at, column)
            elif width:
                after = _after_white(body, marker_end)
                begin = column + marker_end - at
                column = _column(body, marker_end, after, begin)
                if after == line_end:
                    width += 1
                    hollow = True
                elif column - begin > 4:
                    width += 1
                    indent = column - begin - 1
                else:
                    width += column - begin
                    indent = 0
                stack.append(width)
                at = after
            else:
                if not stack:
                    return line
                if starts:
                    leaf = opens
                elif indent < 4:
                    leaf = _PARAGRAPH
                    paragraph = [body[at:line_end]] if mark == "[" else None
                break
            matched += 1
            if at == line_end:
                break
        line = line_end
    if leaf == _IN_FENCE:
        fences.append((fence_start, last))
    return last


def _after_white(body: str, at: int) -> int:
    """The first offset from `at` that is no blank or tab."""
    if body[at] not in " \t":
        return at
    found = _WHITE.match(body, at)
    return at if found is None else found.end()


def _column(body: str, start: int, end: int, column: int) -> int:
    """The column of `end` when `start` is at `column`; only blanks and tabs (stops of 4) lie between."""
    if "\t" not in body[start:end]:
        return column + end - start
    for char in body[start:end]:
        column += 4 - column % 4 if char == "\t" else 1
    return column


def _inside_quote(body: str, at: int, column: int) -> tuple[int, int, int]:
    """Past a block quote marker: offset and column of what follows, and its indent inside the quote."""
    after = _after_white(body, at + 1)
    inside = _column(body, at + 1, after, column + 1)
    return after, inside, max(0, inside - column - 2)


def _break_tail(body: str, start: int, line_end: int) -> int:
    """Where the tail of a line begins that holds one of `*-_` and blanks only; `line_end` if there is none."""
    line = body[start:line_end].rstrip(" \t")
    mark = line[-1:]
    return start + len(line.rstrip(mark + " \t")) if mark in ("*", "-", "_") else line_end


def _only_definitions(paragraph: list[str]) -> bool:
    text = "\n".join(paragraph)
    return definitions_end(text) >= len(text)
