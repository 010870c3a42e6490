"""`trecho evidence`: the best passages, packed into a text budget, for a prompt or a reader."""

from __future__ import annotations

import argparse

from trecho.console import note, print_json
from trecho.db import connection, find_dsn
from trecho.errors import ExitCode
from trecho.search import ask, configure_filters, request_of

HELP = "the passages that answer a question, packed into a number of characters"


def configure(parser: argparse.ArgumentParser) -> None:
    configure_filters(parser)
    parser.add_argument("-k", type=int, default=20, metavar="N", help="passages considered (default: 20)")
    parser.add_argument(
        "--max-chars",
        type=int,
        default=8000,
        metavar="N",
        help="characters of the answer at most (default: 8000)",
    )


def run(args: argparse.Namespace) -> int:
    request = request_of(args, k=args.k, max_chars=args.max_chars)
    with connection(find_dsn(args.dsn), application_name="trecho evidence", autocommit=True) as conn:
        answer = ask(conn, request, "SELECT trecho.evidence({arguments}) AS text")
    text = answer.rows[0]["text"]
    if args.json:
        print_json(
            {
                "query": request.query,
                "mode": answer.mode,
                "index_version": answer.index_version,
                "evidence": text,
            }
        )
    elif text:
        print(text)
    else:
        note("nothing found")
    return ExitCode.DONE
