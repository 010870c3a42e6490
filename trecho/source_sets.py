"""`trecho set`: the source sets of a project; hand one over to another, or remove one that nothing brings any more."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from trecho.console import harmless, note, print_json
from trecho.db import Connection, connection, find_dsn
from trecho.errors import ExitCode, UsageError
from trecho.status import counted, default_project

HELP = "list, hand over or remove source sets"
_USAGE = {"list": [], "rename": ["OLD", "NEW"], "remove": ["NAME"]}


def configure(parser: argparse.ArgumentParser) -> None:
    # One positional and not nested commands, so that --json and --debug stand anywhere.
    parser.add_argument(
        "action",
        choices=tuple(_USAGE),
        help="list; rename OLD NEW: NEW gets the documents of OLD; remove NAME with its documents",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of sets, as list shows them")
    parser.add_argument(
        "--project", metavar="NAME", help="project (default: of trecho.toml here or above, else default)"
    )
    parser.add_argument("--branch", metavar="NAME", default="main", help="branch (default: main)")


def run(args: argparse.Namespace) -> int:
    wanted = _USAGE[args.action]
    if len(args.names) != len(wanted):
        raise UsageError(
            f"trecho set {args.action} takes {' and '.join(wanted) or 'no name'}, got {len(args.names)} names",
            hint=f"Write trecho set {' '.join([args.action, *wanted])}; quote a name that holds spaces.",
        )
    if args.action == "rename" and args.names[0] == args.names[1]:
        raise UsageError(
            f"{args.names[0]} is its own name already", hint="trecho set list shows the sets there are."
        )
    project = args.project or default_project()
    with connection(find_dsn(args.dsn), application_name="trecho set", autocommit=True) as conn:
        if args.action == "list":
            rows = conn.execute("SELECT * FROM trecho.list_source_sets(%s)", (project,)).fetchall()
            if args.json:
                print_json({"project": project, "sets": rows})
            else:
                print(
                    "\n".join(map(harmless, page(rows))) if rows else f"project {project} has no source sets"
                )
            return ExitCode.DONE
        if args.action == "rename":
            count = _value(
                conn, "SELECT trecho.rename_source_set(%s, %s, %s, %s)", *args.names, project, args.branch
            )
            done = f"{counted(count)} of {args.names[0]} handed over to {args.names[1]}"
        else:
            count = _value(
                conn, "SELECT trecho.drop_source_set(%s, %s, %s)", args.names[0], project, args.branch
            )
            done = f"{counted(count)} of {args.names[0]} removed"
        if not count:
            _explain_nothing(conn, args.names[0], project, args.branch)
    if args.json:
        print_json({"project": project, "branch": args.branch, "documents": count})
    elif count:
        note(f"{done} ({project}/{args.branch})")
    return ExitCode.DONE


def _explain_nothing(conn: Connection, name: str, project: str, branch: str) -> None:
    """A name with a slip of the pen must not look as if it had been done."""
    rows = conn.execute("SELECT * FROM trecho.list_source_sets(%s)", (project,)).fetchall()
    sets = ", ".join(row["source_set"] for row in rows if row["branch"] == branch) or "none"
    note(f"note: source set {name} has no documents in {project}/{branch}; sets that have some: {sets}")


def page(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Sets for a person, under headings."""
    yield f"{'branch':<16} {'documents':>9}  {'named by':<40}  source set"
    for row in rows:
        by = row["configuration"] or "(no configuration)"
        if row["named"] is False:
            by = f"not any more: {by}"
        yield f"{row['branch']:<16} {row['documents']:>9}  {by:<40}  {row['source_set']}"


def _value(conn: Connection, query: str, *values: object) -> int:
    row = conn.execute(query.encode(), values).fetchone()
    return int(next(iter(row.values()))) if row else 0
