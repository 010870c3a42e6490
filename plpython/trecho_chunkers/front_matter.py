"""Front matter: the block of metadata between `---` lines at the top of a Markdown file.

It reads a subset of YAML, with the scalars of YAML 1.2's core schema, into JSON values:

- block mappings and lists, nested to 32 levels; flow lists `[a, b]` and mappings `{a: 1}`;
- plain scalars, 'single' and "double" quoted ones, over several lines too; literal `|` and folded `>` blocks;
- comments; `true`/`false`, `null`/`~`, decimal integers and floats. Everything else is text: dates stay as
  written, and so do numbers with leading zeros (`0079`) or over 18 digits.

Not read: anchors, aliases, tags, complex keys, pairs inside flow lists, several documents. Such an entry, and
one with a mistake in it, is kept as raw text: metadata["_unread"] lists {"line", "text", "error"} of each.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple, NoReturn

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

UNREAD = "_unread"
_MOST_LEVELS = 32
_NOT_CLOSED = "a bracket is not closed"

_OPEN = re.compile(r"---[ \t]*\n")
_CLOSE = re.compile(r"^(?:---|\.\.\.)[ \t]*$", re.MULTILINE)
_KEY = re.compile(
    r"""("(?:[^"\\\n]|\\[^\n])*+"[ ]*+|'(?:[^'\n]|'')*+'[ ]*+"""
    r"""|(?![-?:](?:[ \n]|$))[^ \t\n#&*!|>'"%@`{}\[\],](?:[^:\n]|:(?![ \t\n]|$))*+):(?=[ \t\n]|$)"""
)
# What tells front matter from text between two thematic breaks: a key without blanks.
_FIRST_KEY = re.compile(r"""[ ]*(["']?)[\w.@$/-]+\1[ ]*:(?=[ \t]|$)""")
# An entry of one line that needs no thought: a key of one word, and a text in quotes without escapes or a plain one.
_FIELD = re.compile(
    r"""([A-Za-z_][\w.-]*+):[ ]++(?:"([^"\\\n]*+)"|([^\W_](?:[^\n:#]|:(?![ \t\n])|(?<![ \t])\#)*+))[ \t]*+\n"""
)
_COMMENT_REST = re.compile(r"[ \t]*(?:(?<![^ \t\n])\#[^\n]*)?(?=\n|\Z)")
_BLOCK_HEADER = re.compile(r"([|>])(?:([+-])([1-9])?|([1-9])([+-])?)?[ \t]*(?:(?<=[ \t])\#[^\n]*)?\Z")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\[\s\S])*+)"')
_SINGLE = re.compile(r"'((?:[^']|'')*+)'")
_PLAIN_FLOW = re.compile(
    r"(?:[^ \t\n,\[\]{}:#]|:(?![ \t\n,\[\]{}]|\Z)|(?<![ \t\n])\#|[ \t\n]++(?![#,\[\]{}: \t\n]|\Z))++"
)
_FLOW_GAP = re.compile(r"(?:[ \t\n]|(?<=[ \t\n])\#[^\n]*)*+")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(
    r"(?=[^.eE]*[.eE])[-+]?(?:\.[0-9]{1,30}|(?:0|[1-9][0-9]{0,29})(?:\.[0-9]{0,30})?)(?:[eE][-+]?[0-9]{1,3})?\Z"
)
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE"))
_FALSE = frozenset(("false", "False", "FALSE"))
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\s\S]))")
_ESCAPES = {
    "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_FOLD = re.compile(r"(?<![ \t])[ \t]*+\n(?:[ \t]*+\n)*+[ \t]*+")
_ESCAPED_BREAK = re.compile(r"(?<!\\)((?:\\\\)*)\\\n[ \t]*")


class FrontMatter(NamedTuple):
    """Metadata, and where the document's body starts."""

    metadata: dict[str, Json]
    body_start: int  # offset of the line after the closing one; 0 when there is no front matter


class _Unreadable(Exception):
    """Outside the subset, or not YAML."""


def read(text: str) -> FrontMatter:
    """Split off and read the front matter of a normalised text. Never raises, whatever the text.

    It must open on the first line and its first entry must be a `key:` of one word, else a document that
    merely starts with a thematic break would lose text.
    """
    opened = _OPEN.match(text)
    if opened is None:
        return FrontMatter({}, 0)
    closed = _CLOSE.search(text, opened.end())
    if closed is None:
        return FrontMatter({}, 0)
    block = text[opened.end() : closed.start()]
    first = re.search(r"^[ \t]*+[^\s#].*", block, re.MULTILINE)
    if first is not None and not _FIRST_KEY.match(first.group()):
        return FrontMatter({}, 0)
    metadata = _fields(block) or _Reader(block).document()
    return FrontMatter(metadata, min(len(text), closed.end() + 1))


def _fields(block: str) -> dict[str, Json] | None:
    """What `_Reader` reads of a block that holds nothing but `_FIELD`s; None for others. Five times as fast."""
    metadata: dict[str, Json] = {}
    at = 0
    while at < len(block):
        found = _FIELD.match(block, at)
        if found is None:
            return None
        key, quoted, plain = found.groups()
        metadata[key] = quoted if plain is None else resolve_plain(plain.rstrip(" \t"))
        at = found.end()
    return metadata


def resolve_plain(text: str) -> Json:
    """The value of a plain scalar under the core schema, as far as JSON and our rules go."""
    if text in _NULLS:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INTEGER.match(text):
        return int(text)
    if _FLOAT.match(text):
        number = float(text)
        return text if number in (float("inf"), float("-inf")) else number
    return text


def scalar_text(value: Json) -> str:
    """A text or number as one line of text; empty for anything else."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return ""


class _Line(NamedTuple):
    indent: int
    text: str  # from the first non-blank on, without trailing blanks; empty for a blank or comment line
    start: int  # offset of the line in the block


class _Reader:
    """A recursive descent over lines; flow collections and quoted scalars are read by offset."""

    def __init__(self, block: str) -> None:
        self._block = block
        self._raw = block.split("\n")
        if self._raw and not self._raw[-1]:
            self._raw.pop()
        self._lines: list[_Line] = []
        self._starts: list[int] = []
        start = 0
        for raw in self._raw:
            text = raw.strip(" \t")
            indent = len(raw) - len(raw.lstrip(" "))
            self._lines.append(_Line(indent, "" if text.startswith("#") else text, start))
            self._starts.append(start)
            start += len(raw) + 1
        self._level = 0

    def document(self) -> dict[str, Json]:
        """The whole block as a mapping; what cannot be read goes to `_unread`."""
        result: dict[str, Json] = {}
        unread: list[Json] = []
        at = self._skip(0)
        indent = self._lines[at].indent if at < len(self._lines) else 0
        while at < len(self._lines):
            self._level = 0
            try:
                key, value, after = self._entry(at, indent)
                result[key] = value
            except (_Unreadable, RecursionError) as error:
                after = at + 1
                while after < len(self._lines) and not self._opens_entry(after, indent):
                    after += 1
                raw = "\n".join(self._raw[at:after]).rstrip()
                unread.append({"line": at + 2, "text": raw, "error": str(error) or "nested too deeply"})
            at = self._skip(after)
        if unread:
            result[UNREAD] = unread
        return result

    def _opens_entry(self, at: int, indent: int) -> bool:
        line = self._lines[at]
        return line.indent <= indent and _KEY.match(line.text) is not None

    def _skip(self, at: int) -> int:
        while at < len(self._lines) and not self._lines[at].text:
            at += 1
        return at

    def _entry(self, at: int, indent: int) -> tuple[str, Json, int]:
        """One `key: value` of a mapping at `indent`."""
        line = self._lines[at]
        found = _KEY.match(line.text)
        if line.indent != indent or found is None:
            _fail("expected a key")
        if "\t" in self._raw[at][: line.indent + 1]:
            _fail("tab used for indentation")
        key = found.group(1).rstrip(" ")
        if key[0] in "\"'":
            key = _double(key[1:-1]) if key[0] == '"' else key[1:-1].replace("''", "'")
        elif " #" in key or ": " in key:
            _fail("expected a key")
        value, after = self._value(at, line.indent + found.end(), indent)
        return key, value, after

    def _value(self, at: int, column: int, indent: int) -> tuple[Json, int]:
        """The value that starts at `column` of line `at`, inside a collection at `indent`."""
        line = self._lines[at]
        rest = line.text[column - line.indent :]
        lead = len(rest) - len(rest.lstrip(" \t"))
        rest = rest[lead:]
        column += lead
        if not rest or (rest[0] == "#" and lead):
            after = self._skip(at + 1)
            if after < len(self._lines):
                below = self._lines[after].indent
                # `- ` at the key's own indent belongs to the key, in a mapping only.
                beside = below == indent and _is_item(self._lines[after].text) and _KEY.match(line.text)
                if below > indent or beside:
                    return self._node(after, indent)
            return None, at + 1
        mark = rest[0]
        if mark in "|>":
            return self._block_scalar(at, rest, indent)
        if mark in "\"'[{":
            offset = line.start + column
            value, end = self._quoted(offset) if mark in "\"'" else self._flow(offset)
            return value, self._line_after(end)
        if mark in "&*!%@`":
            _fail(f"{mark!r} is outside the subset")
        return self._plain(at, rest, indent)

    def _node(self, at: int, parent: int) -> tuple[Json, int]:
        """The collection or scalar whose first line is `at`, below a collection at indent `parent`."""
        self._level += 1
        if self._level > _MOST_LEVELS:
            _fail(f"nested over {_MOST_LEVELS} levels")
        line = self._lines[at]
        if "\t" in self._raw[at][: line.indent + 1]:
            _fail("tab used for indentation")
        result: Json
        if _is_item(line.text):
            result, after = self._sequence(at)
        elif _KEY.match(line.text):
            result, after = self._mapping(at)
        else:
            result, after = self._value(at, line.indent, parent)
        after = self._skip(after)
        if after < len(self._lines) and self._lines[after].indent > parent:
            _fail("unexpected indentation or text")
        self._level -= 1
        return result, after

    def _mapping(self, at: int) -> tuple[dict[str, Json], int]:
        indent = self._lines[at].indent
        mapping: dict[str, Json] = {}
        while (
            at < len(self._lines) and self._lines[at].indent == indent and not _is_item(self._lines[at].text)
        ):
            key, value, at = self._entry(at, indent)
            mapping[key] = value
            at = self._skip(at)
        return mapping, at

    def _sequence(self, at: int) -> tuple[list[Json], int]:
        indent = self._lines[at].indent
        items: list[Json] = []
        while at < len(self._lines) and self._lines[at].indent == indent and _is_item(self._lines[at].text):
            line = self._lines[at]
            rest = line.text[1:].lstrip(" ")
            if "\t" in rest[:1]:
                _fail("tab used for indentation")
            if _is_item(rest) or _KEY.match(rest):
                # A collection inside an item: read it as if it stood on a line of its own.
                self._lines[at] = _Line(indent + len(line.text) - len(rest), rest, line.start)
                value, at = self._node(at, indent)
            else:
                value, at = self._value(at, indent + 1, indent)
            items.append(value)
            at = self._skip(at)
        return items, at

    def _plain(self, at: int, rest: str, indent: int) -> tuple[Json, int]:
        parts = [_uncommented(rest)]
        done = parts[0] != rest
        after = at + 1
        breaks = 1
        while not done and after < len(self._lines):
            raw = self._raw[after].strip(" \t")
            line = self._lines[after]
            if not raw:
                breaks += 1
                after += 1
                continue
            if line.indent <= indent or not line.text:
                break
            text = _uncommented(line.text)
            parts.append(" " if breaks == 1 else "\n" * (breaks - 1))
            parts.append(text)
            done = text != line.text
            breaks = 1
            after += 1
        joined = "".join(parts)
        if any(": " in part or part.endswith(":") for part in parts):
            _fail("a mapping inside a plain scalar: quote the value")
        return resolve_plain(joined), after

    def _block_scalar(self, at: int, header: str, indent: int) -> tuple[Json, int]:
        found = _BLOCK_HEADER.match(header)
        if found is None:
            _fail("wrong header of a block scalar")
        chomp = found.group(2) or found.group(5) or ""
        given = found.group(3) or found.group(4)
        after = at + 1
        width = indent + int(given) if given else 0
        lines: list[str] = []
        while after < len(self._raw):
            raw = self._raw[after]
            lead = len(raw) - len(raw.lstrip(" "))
            if lead == len(raw):  # nothing but blanks
                lines.append(raw[width:] if width else "")
            else:
                if not width:
                    width = max(lead, indent + 1)
                if lead < width:
                    break
                lines.append(raw[width:])
            after += 1
        body = "\n".join(lines) if header[0] == "|" else _folded(lines)
        text = body.rstrip("\n")
        ends = len(lines) - len("\n".join(lines).rstrip("\n").split("\n")) + 1 if text else len(lines)
        if chomp == "+":
            text += "\n" * ends
        elif not chomp and text:
            text += "\n"
        return text, after

    def _quoted(self, at: int) -> tuple[str, int]:
        double = self._block[at] == '"'
        found = (_DOUBLE if double else _SINGLE).match(self._block, at)
        if found is None:
            _fail("a quote is not closed")
        inner = found.group(1)
        if double:
            return _double(inner), found.end()
        return _fold_quoted(inner).replace("''", "'"), found.end()

    def _flow(self, at: int) -> tuple[Json, int]:
        """The flow node at offset `at` and the offset after it."""
        block = self._block
        mark = block[at : at + 1]
        if mark == "":
            _fail(_NOT_CLOSED)
        if mark in "\"'":
            return self._quoted(at)
        if mark in "[{":
            self._level += 1
            if self._level > _MOST_LEVELS:
                _fail(f"nested over {_MOST_LEVELS} levels")
            result = self._flow_list(at + 1) if mark == "[" else self._flow_mapping(at + 1)
            self._level -= 1
            return result
        if mark in "&*!%@`|>":
            _fail(f"{mark!r} is outside the subset")
        found = _PLAIN_FLOW.match(block, at)
        if found is None or (mark in "-?" and block[at + 1 : at + 2] in ("", " ", "\n", ",", "]", "}")):
            _fail("unexpected character in a flow collection")
        return resolve_plain(_fold_quoted(found.group().rstrip(" \t\n"))), found.end()

    def _gap(self, at: int) -> int:
        found = _FLOW_GAP.match(self._block, at)
        return at if found is None else found.end()

    def _flow_list(self, at: int) -> tuple[list[Json], int]:
        items: list[Json] = []
        while True:
            at = self._gap(at)
            if self._block[at : at + 1] == "]":
                return items, at + 1
            value, at = self._flow(at)
            items.append(value)
            at = self._gap(at)
            mark = self._block[at : at + 1]
            if mark == ",":
                at += 1
            elif mark != "]":
                _fail("expected a comma or ] in a flow list" if mark else _NOT_CLOSED)

    def _flow_mapping(self, at: int) -> tuple[dict[str, Json], int]:
        mapping: dict[str, Json] = {}
        while True:
            at = self._gap(at)
            if self._block[at : at + 1] == "}":
                return mapping, at + 1
            begin = at
            name, at = self._flow(at)
            if isinstance(name, (list, dict)):
                _fail("a key must be a scalar")
            quoted = self._block[begin] in "\"'"
            key = str(name) if quoted else self._block[begin:at].rstrip(" \t\n")
            at = self._gap(at)
            value: Json = None
            if self._block[at : at + 1] == ":":
                at = self._gap(at + 1)
                if self._block[at : at + 1] not in (",", "}"):
                    value, at = self._flow(at)
                    at = self._gap(at)
            mapping[key] = value
            mark = self._block[at : at + 1]
            if mark == ",":
                at += 1
            elif mark != "}":
                _fail("expected a comma or } in a flow mapping" if mark else _NOT_CLOSED)

    def _line_after(self, end: int) -> int:
        """The line after the one in which a quoted scalar or flow collection ended, at offset `end`."""
        rest = _COMMENT_REST.match(self._block, end)
        if rest is None:
            _fail("text after the end of a value")
        return bisect_right(self._starts, rest.end())


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith(("- ", "-\t"))


def _uncommented(text: str) -> str:
    found = re.search(r"[ \t]#", text)
    return text[: found.start()].rstrip(" \t") if found else text


def _fold_quoted(text: str) -> str:
    """Line breaks of a flow scalar: one becomes a blank, n more become n line feeds."""
    if "\n" not in text:
        return text
    return _FOLD.sub(lambda found: "\n" * (found.group().count("\n") - 1) or " ", text)


def _folded(lines: list[str]) -> str:
    """A `>` block: single breaks between lines that are not indented further become blanks."""
    parts: list[str] = []
    breaks = 0
    before = ""  # the last line that is not empty
    for line in lines:
        if not line:
            breaks += 1
            continue
        indented = line[0] in " \t" or before[:1] in (" ", "\t")
        if before:
            if indented:
                parts.append("\n" * (breaks + 1))
            else:
                parts.append("\n" * breaks or " ")
        else:
            parts.append("\n" * breaks)
        parts.append(line)
        before = line
        breaks = 0
    parts.append("\n" * breaks)
    return "".join(parts)


def _double(inner: str) -> str:
    """The text of a double quoted scalar."""
    if "\n" in inner:
        # An escaped break joins two lines with nothing between; it must not be folded into a blank.
        pieces = [_fold_quoted(piece) for piece in _split_escaped_breaks(inner)]
        inner = "".join(pieces)
    return _ESCAPE.sub(_unescaped, inner) if "\\" in inner else inner


def _split_escaped_breaks(inner: str) -> list[str]:
    pieces: list[str] = []
    done = 0
    for found in _ESCAPED_BREAK.finditer(inner):
        pieces.append(inner[done : found.end(1)])
        done = found.end()
    pieces.append(inner[done:])
    return pieces


def _unescaped(found: re.Match[str]) -> str:
    code = found.group(1) or found.group(2) or found.group(3)
    if code is None:
        char = _ESCAPES.get(found.group(4))
        if char is None:
            _fail(f"unknown escape \\{found.group(4)}")
        return char
    number = int(code, 16)
    if number == 0 or 0xD800 <= number <= 0xDFFF or number > 0x10FFFF:
        _fail(f"\\{found.group()[1:]} is no character of a text")
    return chr(number)


def _fail(message: str) -> NoReturn:
    raise _Unreadable(message)
