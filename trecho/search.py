"""`trecho search`: embed the query as the active version wants it, ask the database, show what it found."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from trecho.console import note, print_json
from trecho.db import Connection, connection, find_dsn
from trecho.errors import (
    ExitCode,
    TrechoError,
    UsageError,
    VectorOfOtherVersion,
    VectorWithoutVersion,
    from_database,
)
from trecho.providers import TextRejected, provider_for
from trecho.status import default_project
from trecho.trace import Trace, write_trace

HELP = "find passages by words, by meaning, or both"
MODES = ("hybrid", "lexical", "semantic")
SCOPES = ("docs", "adr", "session", "code")
# A query has words when an excerpt of itself has one to mark.
_HAS_WORDS: LiteralString = (
    "SELECT strpos(trecho.excerpt(%(query)s, %(query)s, start_mark => chr(1)), chr(1)) > 0 AS has_words"
)


def number(least: int, most: int) -> Callable[[str], int]:
    """Type of an argument: a whole number within bounds, so that a value out of them is an error of usage."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be between {least} and {most}, got {value}")
        return value

    return read


def session(text: str) -> str:
    """Type of an argument: a UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a UUID, got {text!r}") from None


@dataclass(frozen=True)
class Request:
    """A search as the command line gives it. arguments: of trecho.search, by name, those that were given."""

    query: str
    mode: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What came back. mode: the mode that answered, lexical where no query vector could be had.

    has_words: False when the query holds nothing that words could find, such as stop words alone.
    """

    mode: str
    has_words: bool
    index_version: int | None
    label: str | None
    rows: list[dict[str, Any]]


def configure_filters(parser: argparse.ArgumentParser) -> None:
    """Arguments that trecho search and trecho evidence share."""
    parser.add_argument(
        "query",
        metavar="QUERY",
        help='words or a question; "quoted" parts must match, -word must not',
    )
    parser.add_argument("--mode", choices=MODES, default="hybrid", help="default: hybrid")
    parser.add_argument(
        "--scope", action="append", choices=SCOPES, dest="scopes", help="only this scope (repeatable)"
    )
    parser.add_argument(
        "--project",
        metavar="NAME",
        help="project (default: of trecho.toml here or above, else default)",
    )
    parser.add_argument("--branch", metavar="NAME", default="main", help="branch (default: main)")
    parser.add_argument(
        "--path",
        metavar="PREFIX",
        dest="path_prefix",
        help="only documents whose path begins like this",
    )
    parser.add_argument(
        "--session", metavar="UUID", type=session, dest="session_id", help="only this session"
    )
    parser.add_argument(
        "--language",
        action="append",
        metavar="NAME",
        dest="languages",
        help="only this language (repeatable)",
    )
    parser.add_argument(
        "--updated-after",
        metavar="TIME",
        help="only documents that changed here after this time",
    )
    parser.add_argument(
        "--per-document", type=number(1, 2**31 - 1), metavar="N", help="most passages of one document"
    )


def configure(parser: argparse.ArgumentParser) -> None:
    configure_filters(parser)
    parser.add_argument("-k", type=number(1, 1000), default=10, metavar="N", help="results (default: 10)")
    parser.add_argument(
        "--skip",
        type=number(0, 100_000),
        default=0,
        metavar="N",
        help="results of earlier pages to leave out",
    )
    parser.add_argument("--prefix", action="store_true", help="the last word may be unfinished")
    parser.add_argument(
        "--explain", action="store_true", help="show how the answer came about instead of the answer"
    )
    parser.add_argument(
        "--trace", metavar="FILE", type=Path, help="also write a record of the search (see trecho trace)"
    )


def run(args: argparse.Namespace) -> int:
    request = request_of(args, k=args.k, skip=args.skip, prefix=args.prefix)
    with connection(find_dsn(args.dsn), application_name="trecho search", autocommit=True) as conn:
        if args.explain:
            answer = ask(conn, request, "SELECT * FROM trecho.explain_search({arguments})")
            if args.json:
                print_json({"query": request.query, "mode": answer.mode, "parts": answer.rows})
            else:
                print("\n".join(_explanation(answer.rows)))
            return ExitCode.DONE
        answer = ask(
            conn,
            request,
            "SELECT s.*, trecho.excerpt(s.content, %(query)s) AS excerpt"
            " FROM trecho.search({arguments}) AS s ORDER BY s.rank",
        )
    warn(answer)
    if args.trace:
        write_trace(args.trace, Trace.of(request.query, answer.mode, request.arguments, answer))
    if args.json:
        print_json(
            {
                "query": request.query,
                "mode": answer.mode,
                "has_words": answer.has_words,
                "index_version": answer.index_version,
                "label": answer.label,
                "results": answer.rows,
            }
        )
    elif answer.rows:
        print("\n\n".join(_result(row) for row in answer.rows))
    else:
        note("nothing found")
    return ExitCode.DONE


def warn(answer: Answer) -> None:
    """Say on stderr that words had no part in an answer that should rest on them."""
    if answer.has_words or answer.mode == "semantic":
        return
    note(
        "note: the query has no searchable words (it holds none, or only stop words and exclusions)"
        + ("" if answer.mode == "lexical" else "; answered by its vector alone")
    )


def request_of(args: argparse.Namespace, **more: Any) -> Request:
    """The search that the arguments of a command ask for."""
    if not args.query.strip():
        raise UsageError(
            "the query is empty, so it has no searchable words", hint="Ask a question, or give a word."
        )
    arguments = {
        "project": args.project or default_project(),
        "branch": args.branch,
        "scopes": args.scopes,
        "path_prefix": args.path_prefix,
        "session_id": args.session_id,
        # As the database writes them.
        "languages": [name.lower() for name in args.languages] if args.languages else None,
        "updated_after": args.updated_after,
        "per_document": args.per_document,
        **more,
    }
    return Request(
        args.query, args.mode, {name: value for name, value in arguments.items() if value is not None}
    )


def ask(conn: Connection, request: Request, statement: LiteralString) -> Answer:
    """Run a statement over trecho.search or its like; {arguments} in it stands for the arguments.

    Where the vector cannot be had, hybrid is answered by words and a note says why. A version that changes between
    embedding and asking is asked again, once.
    """
    if "languages" in request.arguments:
        _name_languages(conn, request.arguments)
    try:
        return _ask(conn, request, statement)
    except (psycopg.errors.InvalidDatetimeFormat, psycopg.errors.DatetimeFieldOverflow) as error:
        raise UsageError(
            str(error.diag.message_primary), hint="Give --updated-after as 2026-03-01 or 2026-03-01T12:00-03."
        ) from error
    except psycopg.Error as error:
        known = from_database(error)
        if not isinstance(known, VectorOfOtherVersion | VectorWithoutVersion):
            raise
    return _ask(conn, request, statement)


def _name_languages(conn: Connection, arguments: Mapping[str, Any]) -> None:
    """A language that no document has finds nothing: say so, and which there are."""
    project, branch = arguments["project"], arguments["branch"]
    rows = conn.execute("SELECT language FROM trecho.list_languages(%s, %s)", (project, branch)).fetchall()
    there = [row["language"] for row in rows]
    unknown = sorted(set(arguments["languages"]).difference(there))
    if unknown:
        note(
            f"note: no document of {project}/{branch} is in language {', '.join(unknown)}; "
            f"there {'is' if len(there) == 1 else 'are'}: {', '.join(there) or 'none'}"
        )


def _ask(conn: Connection, request: Request, statement: LiteralString) -> Answer:
    recipe = conn.execute("SELECT * FROM trecho.query_recipe()").fetchone()
    mode = request.mode
    vector: str | None = None
    if mode != "lexical" and recipe is not None:
        try:
            vector = embed(recipe, request.query)
        except (TrechoError, TextRejected) as error:
            if mode == "semantic":
                raise
            note(f"note: answered by words alone, since the query has no vector: {error}")
    if vector is None and mode == "hybrid":
        mode = "lexical"
    values: dict[str, Any] = {**request.arguments, "mode": mode, "query": request.query}
    casts = {"scopes": "trecho.chunk_scope[]", "session_id": "uuid", "updated_after": "timestamptz"}
    parts: list[sql.Composable] = [
        sql.SQL("{} => {}{}").format(
            sql.Identifier(name), sql.Placeholder(name), sql.SQL("::" + casts[name] if name in casts else "")
        )
        for name in values
    ]
    if vector is not None and recipe is not None:
        values |= {"embedding": vector, "index_version": recipe["index_version"]}
        # Sent as text and left untyped: the server knows the type of the parameter, wherever pgvector lives.
        parts.append(sql.SQL("embedding => {}").format(sql.Literal(vector)))
        parts.append(sql.SQL("index_version => %(index_version)s"))
    query = sql.SQL(statement).format(arguments=sql.SQL(", ").join(parts))
    rows = conn.execute(query, values).fetchall()
    marked = conn.execute(_HAS_WORDS, {"query": request.query}).fetchone()
    has_words = bool(marked and marked["has_words"])
    if recipe is None:
        return Answer(mode, has_words, None, None, rows)
    return Answer(mode, has_words, recipe["index_version"], recipe["label"], rows)


def embed(recipe: Mapping[str, Any], query: str) -> str:
    """Vector of a query, 768 numbers, as text that PostgreSQL reads. Raises: TrechoError, TextRejected."""
    provider = provider_for(recipe)
    try:
        vector = provider.embed_query([query])[0]
    finally:
        provider.close()
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def _result(row: Mapping[str, Any]) -> str:
    source = row["source_path"] or f"session {row['session_id']}"
    heading = row["symbol"] or row["title"]
    head = (
        f"{row['rank']}. {source}:{row['start_line']}-{row['end_line']}"
        f"  {heading}  chunk {row['ordinal']}/{row['chunk_count']}  score {row['score']:.3f}"
    )
    return f"{head}\n   {row['excerpt']}"


def _explanation(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        lines.append(
            f"{row['part']:<8} {row['row_count'] or 0:>7} rows  {row['milliseconds']:>9.2f} ms  {row['detail']}"
        )
        if row["plan"]:
            lines.extend("    " + line for line in row["plan"].splitlines())
    return lines
