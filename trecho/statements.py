"""SQL files as statements: split by the server's own parser, with lines, markers and tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pglast
import pglast.keywords
import pglast.parser

from trecho.errors import Refused, TrechoError

# @extschema:vector@ stands for the schema of that extension, as in extension scripts.
TOKEN = re.compile(r"@extschema:([a-z0-9_]+)@")
MARKER = re.compile(r"^-- (why|breaks old clients|needs operator|transaction|verify): *(.*?) *$")
_SAFE_NAME = re.compile(r"^[a-z_][a-z0-9_]*$")


@dataclass(frozen=True)
class Statement:
    """One statement of a file.

    line: 1-based line of its first word. node: pglast's tree. lead: blanks and comments in front of it.
    """

    file: str
    line: int
    text: str
    node: Any
    lead: str = ""

    @property
    def kind(self) -> str:
        """Name of the tree's class, such as 'CreateStmt'."""
        return type(self.node).__name__

    @property
    def summary(self) -> str:
        """The first line, at most 100 characters."""
        first = self.text.strip().split("\n", 1)[0].strip()
        return first if len(first) <= 100 else first[:97] + "..."

    def line_of(self, position: int | None) -> int:
        """Line in the file of a 1-based character position in the statement, as the server reports it."""
        if position is None:
            return self.line
        return self.line + self.text.count("\n", 0, max(0, position - 1))


@dataclass(frozen=True)
class Markers:
    """What the head of a migration states."""

    why: str
    breaks_old_clients: bool
    needs_operator: bool
    transaction: bool
    verify: str


class ParseFailed(TrechoError):
    """A file is not SQL that PostgreSQL accepts."""


def resolve(text: str, schemas: Mapping[str, str], file: str) -> str:
    """Replace the tokens by quoted schema names. Raises: Refused for a token of no known extension."""

    def schema_of(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in schemas:
            raise Refused(
                f"{file} uses {match.group(0)}, and no extension of that name is known",
                hint=f"Known extensions: {', '.join(sorted(schemas))}.",
            )
        return quote_name(schemas[name])

    return TOKEN.sub(schema_of, text)


def quote_name(name: str) -> str:
    """The name as SQL identifier; quoted unless it is plain lower case."""
    keywords = pglast.keywords.RESERVED_KEYWORDS | pglast.keywords.TYPE_FUNC_NAME_KEYWORDS
    plain = _SAFE_NAME.match(name) and name not in keywords
    return name if plain else '"' + name.replace('"', '""') + '"'


def quote_text(value: str) -> str:
    """The value as SQL string constant, for scripts that are printed and not run from here."""
    quoted = "'" + value.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in value else quoted


def parse(text: str, file: str) -> list[Statement]:
    """Split a text into statements.

    Raises: ParseFailed, naming file and line.
    """
    try:
        raw = pglast.parse_sql(text)
    except pglast.parser.ParseError as error:
        message = str(error.args[0]) if error.args else str(error)
        position = error.args[1] if len(error.args) > 1 and isinstance(error.args[1], int) else 0
        line = text.count("\n", 0, position) + 1
        shown = text.split("\n")[line - 1].strip()[:100]
        raise ParseFailed(
            f"{file}:{line}: {message}", detail=shown, hint="Correct the file; nothing was run."
        ) from error
    statements = []
    after = 0  # where the statement before ended
    for item in raw:
        start = item.stmt_location or 0
        end = start + item.stmt_len if item.stmt_len else len(text)
        start = _skip_blanks(text, start, end)
        line = text.count("\n", 0, start) + 1
        statements.append(Statement(file, line, text[start:end].rstrip(), item.stmt, text[after:start]))
        after = end
    return statements


def _skip_blanks(text: str, start: int, end: int) -> int:
    """Offset of the first character that is neither blank nor comment."""
    while start < end:
        if text[start].isspace():
            start += 1
        elif text.startswith("--", start):
            stop = text.find("\n", start, end)
            start = end if stop < 0 else stop + 1
        elif text.startswith("/*", start):
            depth, start = 1, start + 2
            while depth and start < end:
                if text.startswith("/*", start):
                    depth, start = depth + 1, start + 2
                elif text.startswith("*/", start):
                    depth, start = depth - 1, start + 2
                else:
                    start += 1
        else:
            break
    return start


def read_markers(text: str, file: str) -> Markers:
    """Markers of a migration: comments before anything else.

    Raises: Refused when one is missing, doubled or not yes|no.
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if not line.startswith("--"):
            break
        match = MARKER.match(line)
        if match is None:
            continue
        name, value = match.groups()
        if name in found:
            raise Refused(f"{file} states -- {name}: twice", hint="Keep one of them.")
        found[name] = value
    if not found.get("why"):
        raise Refused(f"{file} does not open with -- why:", hint="Write -- why: and the reason in one line.")
    values: dict[str, bool] = {}
    for name, needed in (("breaks old clients", True), ("needs operator", True), ("transaction", False)):
        if name not in found and not needed:
            values[name] = True
            continue
        if found.get(name) not in ("yes", "no"):
            raise Refused(
                f"{file} does not state -- {name}: yes|no",
                hint=f"Write -- {name}: no (or yes) below -- why:.",
            )
        values[name] = found[name] == "yes"
    return Markers(
        why=found["why"],
        breaks_old_clients=values["breaks old clients"],
        needs_operator=values["needs operator"],
        transaction=values["transaction"],
        verify=found.get("verify", ""),
    )
