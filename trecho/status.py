"""`trecho status`: what state the index of a project is in, for a person, for a program, for a monitor."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from trecho.config import find_config, load_config
from trecho.console import harmless, print_json
from trecho.db import connection, find_dsn
from trecho.errors import ExitCode, UsageError

# Failures named on the page; --json has more.
_SHOWN = 5
HELP = "what the index holds and what state it is in; --check for monitors"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--project", metavar="NAME", help="project (default: of trecho.toml here or above, else default)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit 5 when not usable, 6 when not current, 7 when something failed",
    )
    parser.add_argument(
        "--prometheus",
        action="store_true",
        help="print trecho.metrics in the text format of Prometheus, all projects",
    )


def run(args: argparse.Namespace) -> int:
    if args.prometheus:
        if args.check or args.json or args.project:
            raise UsageError("--prometheus goes alone", hint="Its labels name the projects.")
        with connection(find_dsn(args.dsn), application_name="trecho status", autocommit=True) as conn:
            rows = conn.execute("SELECT name, labels, value, help FROM trecho.metrics").fetchall()
        print("\n".join(exposition(rows)))
        return ExitCode.DONE
    project = args.project or default_project()
    with connection(find_dsn(args.dsn), application_name="trecho status", autocommit=True) as conn:
        health = conn.execute("SELECT * FROM trecho.index_health(%s)", (project,)).fetchone() or {}
        contents = conn.execute("SELECT * FROM trecho.index_contents(%s)", (project,)).fetchall()
        passes = conn.execute("SELECT * FROM trecho.list_passes(%s, 5)", (project,)).fetchall()
        failed = conn.execute("SELECT * FROM trecho.list_failed(%s)", (project,)).fetchall()
        sets = conn.execute("SELECT * FROM trecho.list_source_sets(%s)", (project,)).fetchall()
    if args.json:
        print_json(
            {
                "project": project,
                "health": health,
                "contents": contents,
                "source_sets": sets,
                "passes": passes,
                "failed": [row | {"text_hash": row["text_hash"].hex()} for row in failed],
                "exit_code": int(_check(health)),
            }
        )
    else:
        print("\n".join(map(harmless, _page(project, health, contents, passes, failed, sets))))
    return _check(health) if args.check else ExitCode.DONE


def default_project() -> str:
    """Project of the trecho.toml here or above; 'default' without one."""
    path = find_config()
    return load_config(path).project if path else "default"


def counted(documents: int) -> str:
    """A number of documents in words."""
    return f"{documents} document{'' if documents == 1 else 's'}"


def _check(health: dict[str, Any]) -> ExitCode:
    if not health["usable"]:
        return ExitCode.NOT_USABLE
    if health["failed_embeddings"] or health["failed_documents"]:
        return ExitCode.SOME_FAILED
    return ExitCode.DONE if health["current"] else ExitCode.NOT_CURRENT


def exposition(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Figures in the text format that Prometheus reads: HELP and TYPE once for each name, then its series."""
    for name in dict.fromkeys(row["name"] for row in rows):
        series = [row for row in rows if row["name"] == name]
        yield f"# HELP {name} {series[0]['help']}"
        yield f"# TYPE {name} gauge"
        for row in series:
            labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in row["labels"].items())
            yield f"{name}{{{labels}}} {row['value']:.12g}" if labels else f"{name} {row['value']:.12g}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _page(
    project: str,
    health: dict[str, Any],
    contents: list[dict[str, Any]],
    passes: list[dict[str, Any]],
    failed: list[dict[str, Any]],
    sets: list[dict[str, Any]],
) -> list[str]:
    lines = [
        f"project    {project}",
        f"usable     {'yes' if health['usable'] else 'no: no pass has completed and no document was put'}",
        f"current    {'yes' if health['current'] else 'no: ' + '; '.join(_why_not_current(health))}",
        f"version    {health['active_version']} ({health['active_label']})",
        f"documents  {health['documents']}, "
        f"{health['application_documents']} of them put by applications (back those up)",
        f"chunks     {health['chunks']}: {health['pending_embeddings']} wait for a vector, "
        f"{health['failed_embeddings']} failed, {health['quarantined']} quarantined",
    ]
    if health["running_pid"]:
        lines.append(
            f"running    pass {health['running_pass'] or '?'} since {health['running_since'] or '?'}, "
            f"pid {health['running_pid']}"
        )
    if health["failed_documents"]:
        newest: dict[tuple[str, str], list[str]] = {}
        for row in passes:  # the newest first
            if row["outcome"] == "published":
                newest.setdefault((row["branch"], row["source_set"]), row["errors"])
        errors = [error for of_set in newest.values() for error in of_set]
        lines.append(
            f"left out   {health['failed_documents']} documents by the last publication of their set"
        )
        lines.extend(f"           {error}" for error in errors[:_SHOWN])
    if failed:
        lines.append(f"failed     {health['failed_embeddings']} passages, the last ones:")
        lines.extend(f"           {row['chunk_id']}: {row['last_error']}" for row in failed[:_SHOWN])
    if contents:
        lines.append("")
        lines.append(
            f"{'branch':<16} {'scope':<8} {'documents':>9} {'chunks':>9}  {'newest change':<19}  source set"
        )
        lines.extend(
            f"{row['branch']:<16} {row['scope']:<8} {row['documents']:>9} {row['chunks']:>9}  "
            f"{row['newest']:%Y-%m-%d %H:%M:%S}  {row['source_set'] or '(applications)'}"
            for row in contents
        )
    lines.extend(
        f"left over  source set {row['source_set']} ({row['branch']}): {counted(row['documents'])}, not in "
        + ("the configuration of its commits" if row["configuration"] == "git" else row["configuration"])
        + " any more (trecho set remove)"
        for row in sets
        if row["named"] is False
    )
    if passes:
        lines.append("")
        lines.append(
            f"{'pass':>6}  {'started':<19}  {'outcome':<10} {'written':>7} {'removed':>7} {'failed':>6}  source set"
        )
        lines.extend(
            f"{row['pass_id']:>6}  {row['started_at']:%Y-%m-%d %H:%M:%S}  {_outcome(row, health):<10} "
            f"{row['documents_written']:>7} {row['documents_removed']:>7} {row['documents_failed']:>6}  "
            f"{row['source_set']}{': ' + row['error'] if row['error'] else ''}"
            for row in passes
        )
    return lines


def _outcome(row: dict[str, Any], health: dict[str, Any]) -> str:
    """A pass whose connection is gone stands as running until the next one begins."""
    dead = row["outcome"] == "running" and row["pass_id"] != health["running_pass"]
    return "killed" if dead else str(row["outcome"])


def _why_not_current(health: dict[str, Any]) -> list[str]:
    reasons = []
    if not health["usable"]:
        reasons.append("not usable")
    if health["active_label"] != health["configured_version"]:
        reasons.append(f"the configured recipe is {health['configured_version']}")
    if health["pending_embeddings"]:
        reasons.append(f"{health['pending_embeddings']} texts wait for a vector (trecho embed)")
    if health["failed_embeddings"]:
        reasons.append(f"{health['failed_embeddings']} texts failed (trecho embed --retry-failed)")
    if health["failed_documents"]:
        reasons.append(f"{health['failed_documents']} documents could not be published")
    if health["running_pass"]:
        reasons.append("a pass runs")
    return reasons or ["a branch was last completed in another version"]
