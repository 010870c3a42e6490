"""Code: one chunk per symbol, large containers by their members, the rest in windows.

The tree is never walked in Python. A query, one level deep, gives the declarations of the file; the same
query gives the members of each container that is too large to stay whole. All else is arithmetic on offsets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import parsing
from .identity import slug
from .languages import GRAMMARS, LineLeads, language_of
from .model import Chunk, Deadline, Settings
from .windows import chunk_windows, window_spans

WINDOW = "window"
# Why a file in a language of GRAMMARS was not cut by symbol.
PARSE_ERROR = "window:parse-error"  # it does not parse
PARSE_LIMIT = "window:parse-limit"  # parsing it could take too much: nesting, size or work

# A file whose unreadable parts, at its top level, are more than this share of its bytes does not parse.
_MAX_ERROR_SHARE = 0.25

# Bounds of what goes into symbols and contexts.
_MAX_NAME_BYTES = 200
_MAX_SYMBOL_CHARS = 400
_MAX_HEADER_BYTES = 160
_MAX_HEADERS = 3
# What follows a symbol on its last line, such as `;` or a comment, stays with it up to this many bytes.
_MAX_LINE_REST_BYTES = 200
# The key line of a YAML mapping, with its comments, goes to its first entry up to this many lines.
_MAX_KEY_LINES = 10
# A gap of closing brackets and the like, up to this size, goes to what stands before it.
_MAX_MARKS_BYTES = 120

_WORD = re.compile(rb"[0-9A-Za-z\x80-\xff]")
_JOINTS = re.compile(r"[:./\\]+")
_FIRST_INDENT = re.compile(rb"\n( +)[^\s#]")
_SCALAR = rb"[ ]*[\"']?([^\s\"'#,{}]+)"
_FLOW_NAME = re.compile(rb"[{,]\s*name:" + _SCALAR)

_new = tuple.__new__  # a NamedTuple without the call in between


# One declaration: bytes [begin, end) with what belongs to it, whole lines where it has them alone; its kind; its name
# where the pattern or the position gives it, else empty; its node and what was captured. No class: they are many.
_Item = tuple[int, int, str, str, Any, dict[str, list[Any]]]


class _Region(NamedTuple):
    """A stretch whose declarations become chunks: the file, or a container too large to stay whole."""

    begin: int
    end: int
    node: Any  # whose children are looked at
    kind: str = ""  # of the container; empty for the file
    symbol: str = ""
    anchor: str = ""
    context: str = ""
    headers: tuple[str, ...] = ()


def chunk_code(path: str, text: str, settings: Settings, deadline: Deadline) -> list[Chunk]:
    """Cut source code into chunks.

    Args: path: decides the language; never read. text: normalised.
    Returns: chunks in order; windows where the language has no grammar here, or where the text does not parse
        (`kind` window:parse-error) or is not safe to parse (window:parse-limit).
    Raises: ChunkError: 58P01 when the grammar is not installed, TR008 once the deadline has passed.
    Source: docs/languages.md says what a symbol is in each language.
    """
    language = language_of(path)
    grammar = GRAMMARS.get(language) if language is not None else None
    if language is None or grammar is None:
        return chunk_windows(text, settings, deadline)
    loaded = parsing.load(language)
    data = text.encode()
    if not parsing.may_parse(data, language, grammar):
        return chunk_windows(text, settings, deadline, PARSE_LIMIT)
    with loaded.lock:
        tree = parsing.parse(loaded, data, deadline)
        if tree is None:
            return chunk_windows(text, settings, deadline, PARSE_LIMIT)
        root = tree.root_node
        if root.has_error and _fails(loaded, root, len(data)):
            return chunk_windows(text, settings, deadline, PARSE_ERROR)
        return _Cutter(loaded, data, text, settings, deadline, root.has_error).cut(root)


def _fails(loaded: parsing.Loaded, root: Any, size: int) -> bool:
    """Whether errors at the top level leave too little of the file to trust."""
    if root.is_error:
        return True
    errors = 0
    for index, captures in loaded.cursor.matches(root):
        if loaded.roles[index] == "error":
            node = captures["error"][0]
            errors += node.end_byte - node.start_byte
    return errors > size * _MAX_ERROR_SHARE


class _Cutter:
    """The chunks of one file in the making. Offsets are bytes until a chunk is made."""

    def __init__(
        self,
        loaded: parsing.Loaded,
        data: bytes,
        text: str,
        settings: Settings,
        deadline: Deadline,
        has_error: bool,
    ) -> None:
        self._language = loaded.language
        self._separator = loaded.grammar.separator
        self._comment = loaded.grammar.line_comment
        self._matches = (loaded.cursor if has_error else loaded.clean_cursor).matches
        self._line_leads = None if has_error else loaded.grammar.line_leads
        self._patterns = loaded.patterns
        self._roles = loaded.roles
        self._data = data
        self._text = text
        self._settings = settings
        self._most_breaks = min(settings.container_max_lines, settings.symbol_max_lines)
        self._deadline = deadline
        self._chunks: list[Chunk] = []
        self._offset, self._line = 0, 1  # one character and the line it is on
        self._ascii = len(data) == len(text)
        self._byte = self._char = 0  # one place in both counts
        self._last_begin = -1  # byte where the last chunk begins, when it is a whole symbol
        self._anchors: dict[str, int] = {}

    def cut(self, root: Any) -> list[Chunk]:
        """Go through the file in order, and into each container that is split, without recursion."""
        stack = [self._steps(_Region(0, len(self._data), root, context=self._language))]
        while stack:
            inner = next(stack[-1], None)
            if inner is None:
                stack.pop()
            else:
                stack.append(self._steps(inner))
        return self._chunks

    # --- regions -------------------------------------------------------------------------------------------

    def _steps(self, region: _Region) -> Iterator[_Region]:
        """Make the chunks of a region; yield each region inside it where that one's turn is."""
        self._deadline.check()
        items = self._items(region)
        if items and items[0][2] == "document":
            yield from self._documents(region, items)
            return
        done = region.begin
        if region.kind and items:
            items[0] = self._header(region, items[0])
            done = items[0][0]
        data = self._data
        opens = True
        for begin, end, kind, name, node, captures in items:
            if (
                begin > done
                and not (begin == done + 1 and data[done] == 10)  # one blank line, as between most
                and self._gap(region, done, begin, opens)
            ):
                begin = done  # noqa: PLW2901  # with the marks before it
            inner = self._symbol(region, begin, end, kind, name, node, captures)
            if inner is not None:
                yield inner
            done = end
            opens = False
        if done < region.end:
            self._gap(region, done, region.end)

    def _header(self, region: _Region, first: _Item) -> _Item:
        """Make a chunk of what stands before the first member of a container, or give it to that member."""
        data, begin = self._data, region.begin
        if (region.kind == "key" and data.count(b"\n", begin, first[0]) <= _MAX_KEY_LINES) or _WORD.search(
            data, begin, first[0]
        ) is None:
            return (begin, *first[1:])
        headers = region.headers[:-1]
        self._symbol(
            region._replace(symbol="", anchor="", context=self._context(headers), headers=headers),
            begin,
            first[0],
            region.kind,
            region.symbol,
            None,
            {},
            region.anchor,
        )
        return first

    def _documents(self, region: _Region, items: list[_Item]) -> Iterator[_Region]:
        """YAML documents. One alone is the file itself, unless it is a Kubernetes object."""
        done = region.begin
        for number, (begin, end, kind, _, node, captures) in enumerate(items, 1):
            body = captures["body"][0] if "body" in captures else None
            name = None if body is None else self._manifest_name(body)
            if name is None and len(items) == 1:
                if body is not None:
                    yield region._replace(node=body)
                    done = region.end
                break
            if self._gap(region, done, begin, opens=number == 1):
                begin = done  # noqa: PLW2901
            inner = self._symbol(region, begin, end, kind, name or f"doc{number}", node, captures)
            if inner is not None:
                yield inner
            done = end
        self._gap(region, done, region.end)

    def _manifest_name(self, mapping: Any) -> str | None:
        """`Deployment/web` of a Kubernetes object, its kind alone where it has no name; None for others."""
        data = self._data
        values: dict[bytes, bytes] = {}
        for _, captures in self._matches(mapping):
            if "name" in captures:
                key = captures["name"][0]
                pair = (captures.get("symbol") or captures["container"])[0]
                values.setdefault(data[key.start_byte : key.end_byte], data[key.end_byte : pair.end_byte])
        if b"apiVersion" not in values or b"kind" not in values:
            return None
        kind = values[b"kind"].partition(b"#")[0].lstrip(b":")
        name = _direct_name(values.get(b"metadata", b""))
        return _clean(kind.strip() + b"/" + name if name else kind)

    def _symbol(  # noqa: PLR0912  # the path of every symbol: calls would cost as much as the rest
        self,
        region: _Region,
        begin: int,
        end: int,
        kind: str,
        name: str,
        node: Any,
        captures: dict[str, list[Any]],
        anchor: str = "",
    ) -> _Region | None:
        """Make the chunk of one declaration, windows where it is too large for one, or give back the region
        of a container to be split."""
        data, text, settings = self._data, self._text, self._settings
        whole_end = end
        if not name:
            name = self._name(captures)
        symbol = name
        if region.symbol:
            symbol = f"{region.symbol}{self._separator}{name}"
            if len(symbol) > _MAX_SYMBOL_CHARS:
                symbol = "…" + symbol[1 - _MAX_SYMBOL_CHARS :]
        if not anchor:
            anchor = name.lower() if name.isascii() and name.isidentifier() else slug(_JOINTS.sub("-", name))
            if region.anchor:
                anchor = f"{region.anchor}/{anchor}" if anchor else region.anchor
        while data[end - 1] in b"\n \t" and end > begin:
            end -= 1
        breaks = data.count(b"\n", begin, end)
        large = end - begin > settings.chunk_max_bytes
        if large or breaks >= self._most_breaks:
            if (large or breaks >= settings.container_max_lines) and "body" in captures:
                headers = (*region.headers[1 - _MAX_HEADERS :], self._header_text(kind, node, captures, name))
                body = captures["body"][0]
                return _Region(begin, whole_end, body, kind, symbol, anchor, self._context(headers), headers)
            if large or breaks >= settings.symbol_max_lines:
                context = self._context((*region.headers, f"{kind} {symbol}"))
                self._windows(anchor, context, begin, end)
                return None
        anchors = self._anchors
        if anchor in anchors:
            anchor = self._unique(anchor)
        elif anchor:
            anchors[anchor] = 0
        if self._ascii:
            low, high = begin, end
        else:
            low, high = self._at(begin), self._at(end)
        content = text[low:high]
        if content.isspace():  # blanks that bytes do not count as such, U+00A0 for one
            self._last_begin = -1
            return None
        line = self._line + text.count("\n", self._offset, low)
        self._offset, self._line, self._last_begin = high, line + breaks, begin
        chunks = self._chunks
        chunks.append(
            _new(
                Chunk,
                (len(chunks) + 1, kind, symbol, anchor, region.context, line, line + breaks, content),
            )
        )
        return None

    def _header_text(self, kind: str, node: Any, captures: dict[str, list[Any]], name: str) -> str:
        """The line that opens a container, such as `impl<T> Foo<T>`."""
        if kind == "document":
            return name
        data, begin = self._data, node.start_byte
        if "name" in captures:
            begin = max(begin, data.rfind(b"\n", begin, captures["name"][0].start_byte) + 1)
        raw = data[begin : min(captures["body"][0].start_byte, begin + _MAX_HEADER_BYTES)]
        if self._comment:
            raw = raw.partition(self._comment)[0]
        return " ".join(raw.decode("utf-8", "ignore").split()).rstrip(" :{") or name

    # --- declarations --------------------------------------------------------------------------------------

    def _items(self, region: _Region) -> list[_Item]:  # noqa: PLR0912  # a call a declaration costs too much
        """The declarations of a region in order, each with its comments and attributes; none overlap."""
        data, patterns, comment = self._data, self._patterns, self._comment
        roles, line_leads = self._roles, self._line_leads
        # What the query captures under the node. The number keeps ties from being told apart by their nodes.
        found = [
            ((node := captures[roles[index]][0]).start_byte, index, number, node, captures)
            for number, (index, captures) in enumerate(self._matches(region.node))
        ]
        found.sort()
        items: list[_Item] = []
        lead = lead_end = -1  # the run of comments and attributes that stands before
        floor = region.begin  # where what stands before ends
        line_floor = region.begin  # the lowest place that comments may be taken from
        begins = -1  # where the declaration before begins; its end is known when the next one is
        declared: tuple[str, str, Any, dict[str, list[Any]]] | None = None
        find, rfind = data.find, data.rfind
        for start, index, _, node, captures in found:
            if start < floor:
                continue  # another pattern had it
            role, kind, name = patterns[index]
            if role == "error":
                continue
            begin = start
            if lead >= 0:
                between = data[lead_end:start]
                if between == b"\n" or not between or (between.isspace() and between.count(b"\n") <= 1):
                    begin = lead
            if line_leads is not None and begin == start:
                after = lead_end if lead_end > floor else floor
                if find(line_leads.opening, after, start) >= 0:
                    begin = self._over_line_leads(line_leads, region.node, lead, after, start)
            if role == "lead":
                lead = begin if begin < start else start if self._opens_line(floor, start) else -1
                lead_end = node.end_byte
                if data[lead_end - 1] == 10:
                    lead_end -= 1  # a Rust doc comment includes its line end
                continue
            lead = -1
            line = rfind(b"\n", floor, begin) + 1 or floor
            if line < begin and (not data[line:begin].isspace() or (line == floor and data[line - 1] != 10)):
                line = begin  # it shares its first line with what stands before
            elif comment:
                line = self._over_comments(line, begin, line_floor)
            if declared is not None:
                if floor < line and data[floor] == 10 != data[floor - 1]:  # most
                    end = floor + 1
                else:
                    end = self._line_end(floor, line)
                items.append((begins, end, *declared))
            floor = node.end_byte
            line_floor = start + 1
            begins = line
            declared = (kind, name, node, captures)
        if declared is not None:
            items.append((begins, self._line_end(floor, region.end), *declared))
        return items

    def _over_line_leads(self, leads: LineLeads, parent: Any, lead: int, after: int, start: int) -> int:
        """Go up from `start` over line comments that no blank line parts from it or from each other.

        Args: parent: whose children are looked at; its tree has no errors. lead: where the run of other leads begins
            that ends at `after`; -1 where none does.
        Returns: where the uppermost of them begins, else `lead` where they reach it, else `start`.
        """
        node, opening, other, _, alone = leads
        data = self._data
        if lead < 0 and (only := alone.fullmatch(data, after, start)) is not None:  # most
            return only.start(1)
        lines = data[after:start].split(b"\n")
        if lines.pop().strip() or not lines:
            return start
        below = data.rfind(b"\n", after, start)  # where the line above ends
        found: list[int] = []  # where comments begin, from the lowest up
        while lines:
            line = lines.pop()
            text = line.lstrip()
            begins = below - len(text)
            if not lines and after and data[after - 1] != 10:  # the rest of the line that `after` is on
                if lead >= 0 and (not text or (text.startswith(opening) and not text.startswith(other))):
                    return lead
                break
            if not text.startswith(opening) or text.startswith(other):
                break
            found.append(begins)
            below -= len(line) + 1
        # They may be the end of a string or of another comment, unless nothing else stands before them.
        if found and not data[after : found[-1]].isspace():
            while found:
                first = parent.named_descendant_for_byte_range(found[-1], found[-1] + len(opening))
                if first is not None and first.type == node and first.start_byte == found[-1]:
                    break
                found.pop()
        return found[-1] if found else start

    def _opens_line(self, floor: int, start: int) -> bool:
        """Whether the line that `start` is on holds nothing else before it."""
        data = self._data
        line = data.rfind(b"\n", floor, start) + 1
        if line == 0:
            if floor > 0 and data[floor - 1] != 10:
                return False
            line = floor
        return line == start or data[line:start].isspace()

    def _over_comments(self, line: int, begin: int, floor: int) -> int:
        """Go up from the start of a line over the comment lines of the same indentation."""
        data = self._data
        opening = data[line:begin] + self._comment
        while line > floor and data[line - 1] == 10:
            above = data.rfind(b"\n", 0, line - 1) + 1
            if above < floor or not data.startswith(opening, above):
                break
            line = above
        return line

    def _line_end(self, end: int, limit: int) -> int:
        """The end of the line that a declaration ends on, or `end` where too much stands there."""
        data = self._data
        if end >= limit:
            return limit
        if data[end - 1] == 10:
            return end
        if data[end] == 10:
            return end + 1
        line_end = data.find(b"\n", end, min(limit, end + _MAX_LINE_REST_BYTES)) + 1
        if line_end:
            return line_end
        return limit if limit - end <= _MAX_LINE_REST_BYTES else end

    def _name(self, captures: dict[str, list[Any]]) -> str:
        """The name of a declaration within its container."""
        nodes = captures.get("name")
        if nodes is None:
            return ""
        data, node = self._data, nodes[0]
        raw = data[node.start_byte : node.end_byte]
        name = raw.decode() if len(raw) <= _MAX_NAME_BYTES else ""
        if not name.isidentifier():
            name = _clean(raw)
        if "trait" in captures:
            node = captures["trait"][0]
            return f"<{_without_generics(name)} as {_clean(data[node.start_byte : node.end_byte])}>"
        if "scope" in captures:
            node = captures["scope"][0]
            scope = _clean(data[node.start_byte : node.end_byte]).lstrip("*")
            return f"{_without_generics(scope)}{self._separator}{name}"
        return _without_generics(name) if "<" in name else name

    # --- chunks --------------------------------------------------------------------------------------------

    def _gap(self, region: _Region, begin: int, end: int, opens: bool = False) -> bool:
        """Make windows of what stands between declarations.

        Marks without a word, such as a closing brace, go to the symbol before them; True says that they
        should go to the one after them instead, because none stands before.
        """
        inside = self._data[begin:end].strip()
        if not inside:
            return False
        if len(inside) <= _MAX_MARKS_BYTES and _WORD.search(inside) is None:
            if opens:
                return True
            if self._last_begin >= 0 and self._extend(begin, end):
                return False
        self._windows(region.anchor, region.context, begin, end)
        return False

    def _extend(self, begin: int, end: int) -> bool:
        """Let the last chunk, a whole symbol, reach to `end`, if it stays within the bounds."""
        data, settings, first = self._data, self._settings, self._last_begin
        end = begin + len(data[begin:end].rstrip())
        if (
            end - first > settings.chunk_max_bytes
            or data.count(b"\n", first, end) >= settings.symbol_max_lines
        ):
            return False
        low, high = self._at(first), self._at(end)
        last = self._chunks.pop()
        self._add(last[1:5], low, high)
        return True

    def _windows(self, anchor: str, context: str, begin: int, end: int) -> None:
        text, settings = self._text, self._settings
        low, high = self._at(begin), self._at(end)
        spans = self._one_window(begin, end, low, high) or window_spans(
            text, low, high, settings, self._deadline
        )
        for span in spans:
            self._add((WINDOW, "", self._unique(anchor), context), *span)
        self._last_begin = -1

    def _one_window(self, begin: int, end: int, low: int, high: int) -> list[tuple[int, int]]:
        """The span of the only window, as window_spans gives it; nothing where it takes more than one."""
        data, settings = self._data, self._settings
        if (
            end - begin > settings.chunk_max_bytes
            or settings.stable_windows
            or data.count(b"\n", begin, end) >= settings.window_lines
        ):
            return []
        inside = self._text[low:high].rstrip()
        high = low + len(inside)
        blank = len(inside) - len(inside.lstrip())
        if blank:
            line = inside.rfind("\n", 0, blank) + 1
            low += line if line or begin == 0 or data[begin - 1] == 10 else blank
        return [(low, high)] if high > low else []

    def _add(self, names: tuple[str, str, str, str], low: int, high: int) -> None:
        """Add the chunk of characters [low, high); `names` are kind, symbol, anchor and context."""
        text, offset = self._text, self._offset
        if low >= offset:
            line = self._line + text.count("\n", offset, low)
        else:
            line = self._line - text.count("\n", low, offset)
        content = text[low:high]
        last_line = line + content.count("\n")
        self._offset, self._line = high, last_line
        chunks = self._chunks
        chunks.append(_new(Chunk, (len(chunks) + 1, *names, line, last_line, content)))

    def _at(self, offset: int) -> int:
        """The character offset of a byte offset; cheap when asked near the one before."""
        if self._ascii:
            return offset
        if offset >= self._byte:
            self._char += len(self._data[self._byte : offset].decode())
        else:
            self._char -= len(self._data[offset : self._byte].decode())
        self._byte = offset
        return self._char

    def _unique(self, anchor: str) -> str:
        if not anchor:
            return anchor
        anchors = self._anchors
        count = anchors.get(anchor, -1) + 1
        anchors[anchor] = count
        if not count:
            return anchor
        while (candidate := f"{anchor}-{count}") in anchors:
            count += 1
        anchors[anchor] = count
        anchors[candidate] = 0
        return candidate

    def _context(self, headers: tuple[str, ...]) -> str:
        """The language, and the containers from the outermost to the innermost."""
        return "\n".join([self._language, *headers])


def _clean(raw: bytes) -> str:
    """A name in one line, without the quotes around it."""
    name = raw.decode() if len(raw) <= _MAX_NAME_BYTES else raw[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
    if name.isidentifier():
        return name
    name = " ".join(name.split())
    if len(name) > 2 and name[0] == name[-1] and name[0] in "\"'`":
        name = name[1:-1]
    return name


def _without_generics(name: str) -> str:
    """`Foo` of `Foo<T>` and of `Foo[T]`; other types, such as `&Foo` or `[T]`, as they are."""
    if not (name[:1].isalpha() or name[:1] == "_"):
        return name
    return name.partition("<")[0].partition("[")[0].rstrip()


def _direct_name(metadata: bytes) -> bytes:
    """The value of `name` among the direct entries of a YAML mapping, or nothing."""
    indent = _FIRST_INDENT.search(metadata)
    if indent is None:
        found = _FLOW_NAME.search(metadata)
    else:
        found = re.search(rb"\n" + indent[1] + rb"name:" + _SCALAR, metadata)
    return b"" if found is None else found[1]
