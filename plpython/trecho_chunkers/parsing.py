"""The native parser at arm's length: loaded once, never given what it may not survive, stopped in time.

A crash in native code takes the database server down, and a long parse cannot be cancelled from outside. So
texts are looked at before they are parsed, and work is counted while they are. Both bounds count the text and
the parser's own steps, never seconds: the same text always gives the same chunks. The deadline stands behind
them and is an error.
"""

from __future__ import annotations

import importlib
import re
import signal
import sys
import threading
from itertools import accumulate
from types import FrameType
from typing import Any, NamedTuple

from .languages import GRAMMARS, Grammar
from .model import ChunkError, Deadline

# Standard SQL state undefined_file: something that must be installed is not there.
NOT_INSTALLED = "58P01"

# Larger texts are not parsed. Real code stays far below: trees take some 20 to 50 times the text's size.
MAX_PARSE_BYTES = 2 * 1024 * 1024
# Brackets open at once, strings and comments included. Real files stay below 60.
MAX_BRACKET_DEPTH = 400
# The YAML and Python scanners keep a stack of indentations in 1,024 bytes. The YAML one writes past its
# end at 254 levels and kills the process, so the bound is well below.
MAX_INDENT_LEVELS = 100
# YAML's scanner keeps rows and columns in 16 bits.
MAX_YAML_LINES = 32_000
MAX_YAML_COLUMNS = 32_000

# Scanners look ahead within one step, where no step is counted: to the end of the text from each comment that nothing
# closes, or over all blanks from each one that is none to the grammar. What they go back for is read again, in pieces,
# and counted. Real code reads a few pieces again, at its end. A text with many odd blanks is given in pieces at once.
_PIECE_BYTES = 4096
_MOST_READS_AGAIN = 8192
_ODD_BLANKS = (b"\xc2\x85", b"\xc2\xa0", b"\xe1\x9a\x80", b"\xe2\x80", b"\xe2\x81\x9f", b"\xe3\x80\x80")
_MANY_ODD_BLANKS = 256

# The parser reports every 100 steps. Real code takes 0.4 to 1.4 steps a byte. Text that makes the parser keep
# many readings alive takes more, and a step then costs up to 50 times as much; so each report must be paid for
# by progress through the text. Minified code takes 3 to 5 steps a byte: it falls to windows, and loses little.
_BYTES_PER_REPORT = 72
_FREE_REPORTS = 150
_MAX_REPORTS = 5000
_REPORTS_BETWEEN_LOOKS = 16
# Reports that find the parser at work on an error. Code with a few errors gives none or a handful; half a mebibyte of
# `$a $a` as Python gives hundreds, and each of its steps costs fifty times as much.
_MAX_ERROR_REPORTS = 60


class Pattern(NamedTuple):
    """What a pattern of a query says of the nodes it captures."""

    role: str  # symbol, container, lead or error
    kind: str
    name: str  # fixed name, or empty


class Loaded(NamedTuple):
    """A grammar ready for use."""

    language: str
    grammar: Grammar
    parser: Any  # tree_sitter.Parser
    cursor: Any  # tree_sitter.QueryCursor over the grammar's query, one level deep
    patterns: list[tuple[str, str, str]]  # what `Pattern` holds, by pattern index
    roles: list[str]  # of `patterns`
    # Over the same patterns, less the last ones: the grammar's line leads, and errors.
    clean_cursor: Any
    lock: threading.Lock  # parser and cursor serve one caller at a time


_ROLE = re.compile(r"@(symbol|container|lead|error)\b")

_loaded: dict[str, Loaded] = {}


def load(language: str) -> Loaded:
    """The grammar of a language of `GRAMMARS`, loaded at its first use.

    Raises: ChunkError (58P01) when tree_sitter or the grammar is missing or does not fit.
    """
    found = _loaded.get(language)
    if found is None:
        found = _loaded[language] = _load(language)
    return found


def _load(language: str) -> Loaded:
    grammar = GRAMMARS[language]
    try:
        tree_sitter = importlib.import_module("tree_sitter")
        module = importlib.import_module(grammar.module)
        native = tree_sitter.Language(getattr(module, grammar.function)())
        parser = tree_sitter.Parser(native)
        clean_query = tree_sitter.Query(native, grammar.query)
        # What only texts with errors need comes last, so that patterns keep their numbers.
        leads = grammar.line_leads.query if grammar.line_leads is not None else ""
        source = f"{grammar.query}\n{leads}\n(ERROR) @error\n"
        query = tree_sitter.Query(native, source)
    except (ImportError, AttributeError, ValueError) as error:
        raise ChunkError(
            f"no usable grammar for {language}: {error}",
            NOT_INSTALLED,
            f"Install tree-sitter and {grammar.package} for the Python that runs the chunkers (on a server: "
            "the one of plpython3u), for example with pip, then reconnect.",
        ) from error
    cursor, clean_cursor = tree_sitter.QueryCursor(query), tree_sitter.QueryCursor(clean_query)
    for one in (cursor, clean_cursor):
        one.set_max_start_depth(1)
    patterns: list[tuple[str, str, str]] = []
    for index in range(query.pattern_count):
        role, kind, name = _pattern(query, source, index)
        patterns.append((role, kind, name))
    roles = [role for role, _, _ in patterns]
    return Loaded(language, grammar, parser, cursor, patterns, roles, clean_cursor, threading.Lock())


def _pattern(query: Any, source: str, index: int) -> Pattern:
    text = source.encode()[query.start_byte_for_pattern(index) : query.end_byte_for_pattern(index)].decode()
    role = _ROLE.search(text)
    if role is None:
        raise ValueError(f"pattern {index} of the query captures no role")
    settings = query.pattern_settings(index)
    return Pattern(role[1], settings.get("kind") or "", settings.get("name") or "")


# --- before the parse --------------------------------------------------------------------------------------

_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"()[]{}")
_FOLD = bytes.maketrans(b"[]{}", b"()()")
_BRACKET_BLOCK = 256
_FAR_INDENT = re.compile(rb"^[ \t]{%d}" % (MAX_INDENT_LEVELS // 2), re.MULTILINE)
_INDENTED_LINE = re.compile(rb"^([ \t]*)([^ \t\n][^\n]*)", re.MULTILINE)
_INDICATOR = re.compile(rb"[-?:](?:[ \t]|$)")
_MANY_INDICATORS = re.compile(rb"(?:[-?:][ \t][^-?:\n]{0,80}){%d}" % (MAX_INDENT_LEVELS // 4))
_LONG_LINE = re.compile(rb"[^\n]{%d}" % MAX_YAML_COLUMNS)


def may_parse(data: bytes, language: str, grammar: Grammar) -> bool:
    """Whether a text is within what the native parsers are known to bear. Linear, and fast."""
    if len(data) > MAX_PARSE_BYTES or not _shallow_brackets(data):
        return False
    if not grammar.indented:
        return True
    if language == "yaml" and (
        data.count(b"\n") > MAX_YAML_LINES
        or (len(data) > MAX_YAML_COLUMNS and _LONG_LINE.search(data) is not None)
        or _MANY_INDICATORS.search(data) is not None
    ):
        return False
    return _FAR_INDENT.search(data) is None or _indent_levels(data) <= MAX_INDENT_LEVELS


def _shallow_brackets(data: bytes) -> bool:
    """Whether brackets nest at most `MAX_BRACKET_DEPTH` deep, found by taking pairs out from the inside."""
    brackets = data.translate(_FOLD, _NOT_BRACKETS)
    if brackets.count(b"(") <= MAX_BRACKET_DEPTH or _shallow_blocks(brackets):
        return True
    most = MAX_BRACKET_DEPTH
    for _ in range(32):
        left = brackets.replace(b"()", b"")
        if len(left) == len(brackets):
            return left.count(b"(") <= most
        brackets = left
        most -= 1
    depths = list(accumulate((1 if bracket == 40 else -1 for bracket in brackets), initial=0))
    # The depth counts from the lowest point before it, so that stray closing brackets hide nothing.
    return max(map(int.__sub__, depths, accumulate(depths, min))) <= most


def _shallow_blocks(brackets: bytes) -> bool:
    """Whether counts of opening and closing brackets, block by block, prove enough. False proves nothing."""
    depth = lowest = 0
    for start in range(0, len(brackets), _BRACKET_BLOCK):
        block = brackets[start : start + _BRACKET_BLOCK]
        opening = block.count(b"(")
        closing = len(block) - opening
        lowest = min(lowest, depth - closing)
        if depth + opening - lowest > MAX_BRACKET_DEPTH:
            return False
        depth += opening - closing
    return True


def _indent_levels(data: bytes) -> int:
    """A bound on the indentations open at once: one for each deeper line and each `- ` or `: ` in it."""
    columns: list[int] = []
    levels: list[int] = [0]
    for found in _INDENTED_LINE.finditer(data):
        column = found.end(1) - found.start(1)
        while columns and columns[-1] >= column:
            columns.pop()
            levels.pop()
        columns.append(column)
        levels.append(levels[-1] + 1 + len(_INDICATOR.findall(found[2])))
        if levels[-1] > MAX_INDENT_LEVELS:
            break
    return levels[-1]


# --- the parse ---------------------------------------------------------------------------------------------


def parse(loaded: Loaded, data: bytes, deadline: Deadline) -> Any | None:
    """The syntax tree (tree_sitter.Tree), or None when the bound on work stopped the parser.

    Hold `loaded.lock` while calling. Raises: ChunkError (TR008) once the deadline has passed.
    """
    late = deadline.expired
    whole = data.isascii() or sum(map(data.count, _ODD_BLANKS)) <= _MANY_ODD_BLANKS
    seen = again = errors = 0
    # Bytes that the reports so far must be paid for with, less the free ones; and where to look further.
    owed = -_FREE_REPORTS * _BYTES_PER_REPORT
    most = owed + _MAX_REPORTS * _BYTES_PER_REPORT
    look = owed + _REPORTS_BETWEEN_LOOKS * _BYTES_PER_REPORT

    # An exception that left this function would crash the binding: it does not look for one.
    def stop(offset: int, in_error: bool) -> bool:
        nonlocal owed, look, errors
        owed += _BYTES_PER_REPORT
        if owed > offset:
            return True
        if owed >= look:
            look = owed + _REPORTS_BETWEEN_LOOKS * _BYTES_PER_REPORT
            if owed > most or late():
                return True
        if in_error:
            errors += 1
            return errors > _MAX_ERROR_REPORTS
        return False

    # Only a text that is read through a function is parsed under a progress callback.
    def read(offset: int, _point: object) -> bytes:
        nonlocal seen, again
        if whole and not seen:
            seen = len(data)
            return data
        piece = data[offset : offset + _PIECE_BYTES]
        if offset >= seen:
            seen = offset + 1
            return piece
        again += 1
        # Blanks to the end let a parse that reads too much again run out of work.
        return piece if again <= _MOST_READS_AGAIN else b" " * len(piece)

    parser = loaded.parser
    handler = _handler_of(signal.SIGINT)
    held: list[FrameType | None] = []
    # Ctrl-C waits until the parser has returned. Where Python does not handle the signal, as in a database
    # server, and in other threads there is nothing to put off.
    holds = callable(handler) and threading.get_ident() == threading.main_thread().ident
    if holds:
        _set_handler(signal.SIGINT, lambda _number, frame: held.append(frame))
    try:
        tree = parser.parse(read, progress_callback=stop)
        return tree if again <= _MOST_READS_AGAIN else None
    except ValueError:
        parser.reset()  # else the next parse would go on with this text
        deadline.check()
        return None
    finally:
        if holds:
            _set_handler(signal.SIGINT, handler)
        if held:
            handler(signal.SIGINT, held[0])


# The functions below those of the module: these cost 5 to 45 microseconds more, in names for the handlers.
_native_signal: Any = importlib.import_module(
    "_signal" if "_signal" in sys.builtin_module_names else "signal"
)
_handler_of: Any = _native_signal.getsignal
_set_handler: Any = _native_signal.signal


def grammar_problem(language: str) -> str | None:
    """Load one grammar of `GRAMMARS` and parse with it; what is wrong, or None. For preflight checks."""
    try:
        loaded = load(language)
        with loaded.lock:
            tree = parse(loaded, b"\n", Deadline(1000))
    except ChunkError as error:
        return f"{error}. {error.hint}"
    return None if tree is not None else f"the grammar of {language} does not parse an empty text"
