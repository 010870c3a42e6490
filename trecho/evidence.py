"""`trecho evidence`: the best passages, packed into a text budget, for a prompt or a reader."""

from __future__ import annotations

import argparse

from trecho.console import note, print_json
from trecho.db import connection, find_dsn
from trecho.errors import ExitCode
from trecho.search import ask, configure_filters, number, request_of, warn

HELP = "the passages that answer a question, packed into a number of characters"


def configure(parser: argparse.ArgumentParser) -> None:
    configure_filters(parser)
    parser.add_argument(
        "-k", type=number(1, 1000), default=20, metavar="N", help="passages considered (default: 20)"
    )
    parser.add_argument(
        "--max-chars",
        type=number(200, 2**31 - 1),
        default=8000,
        metavar="N",
        help="characters of the answer at most (default: 8000)",
    )


def run(args: argparse.Namespace) -> int:
    request = request_of(args, k=args.k, max_chars=args.max_chars)
    with connection(find_dsn(args.dsn), application_name="trecho evidence", autocommit=True) as conn:
        answer = ask(conn, request, "SELECT trecho.evidence({arguments}) AS text")
    text = answer.rows[0]["text"]
    warn(answer)
    if args.json:
        print_json(
            {
                "query": request.query,
                "mode": answer.mode,
                "has_words": answer.has_words,
                "index_version": answer.index_version,
                "evidence": text,
            }
        )
    elif text:
        print(text)
    else:
        note("nothing found")
    return ExitCode.DONE
