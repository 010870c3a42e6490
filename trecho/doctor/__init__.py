"""`trecho doctor`: compare the index with its sources and with itself, and mend what is damaged when asked to."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from trecho.config import SCOPES
from trecho.console import harmless, print_json
from trecho.db import connection, find_dsn
from trecho.doctor.findings import EVERY_PROJECT, Finding, Report, page
from trecho.doctor.repair import repair
from trecho.doctor.sources import SOURCE_REPAIRS, as_indexed, compare, visit_sources
from trecho.doctor.vectors import RESAMPLED, compare_vectors

HELP = "compare the index with its sources and with itself; --repair mends it"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `trecho doctor`: where the sources are is said as to `trecho sync`."""
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="compare with this folder, not with trecho.toml",
    )
    parser.add_argument("--scope", choices=SCOPES, default=None, help="what FOLDER holds (default: docs)")
    parser.add_argument("--set", dest="set_name", metavar="NAME", help="name of the source set of FOLDER")
    parser.add_argument(
        "--git",
        nargs="?",
        const="",
        default=None,
        metavar="COMMIT",
        help="compare with a commit (default: the one last indexed)",
    )
    parser.add_argument("--repo", type=Path, default=Path(), metavar="FOLDER", help="repository of --git")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (default: as trecho sync)")
    parser.add_argument("--project", metavar="NAME", help="project (default: the configuration's)")
    parser.add_argument(
        "--branch", metavar="NAME", help="branch (default: as trecho sync; HEAD's where git feeds it)"
    )
    parser.add_argument(
        "--no-sources",
        action="store_true",
        help="look at the database alone, at every project unless --project",
    )
    parser.add_argument("--quick", action="store_true", help="leave out what computes every row anew")
    parser.add_argument(
        "--vectors",
        type=int,
        default=0,
        metavar="N",
        help="embed N passages anew and compare their vectors (asks the provider; default: none)",
    )
    parser.add_argument("--repair", action="store_true", help="mend what is found, then look again")
    parser.add_argument("--no-embed", action="store_true", help="with --repair: leave vectors to a worker")


def run(args: argparse.Namespace) -> int:
    """Exit codes: 0 nothing wrong; 1 damage; 5 not usable; 6 behind its sources or pending; 7 texts failed."""
    dsn = find_dsn(args.dsn)
    args = as_indexed(args, dsn)
    report = examine(args, dsn)
    if args.repair and any(finding.severity != "skipped" for finding in report.findings):
        before = report
        repaired = repair(args, dsn, before)
        report = examine(args, dsn)
        report.repaired = repaired | dict(_behind(before) - _behind(report))
    if args.json:
        print_json(asdict(report) | {"exit_code": int(report.exit_code)})
    else:
        print("\n".join(map(harmless, page(report, args.repair))))
    return report.exit_code


def _behind(report: Report) -> Counter[str]:
    """How many documents, or commits, each check of the sources finds behind."""
    found: Counter[str] = Counter()
    for finding in report.findings:
        if finding.check in SOURCE_REPAIRS:
            found[finding.check] += finding.findings or 0
    return found


def examine(args: argparse.Namespace, dsn: str) -> Report:
    """Look, and change nothing."""
    with connection(dsn, application_name="trecho doctor", autocommit=True) as conn:
        differences, config = visit_sources(
            args, dsn, conn, lambda target, files: compare(conn, target, files)
        )
        project = None if args.no_sources and not args.project else args.project or config.project
        report = Report(project or EVERY_PROJECT)
        report.findings += differences
        if args.vectors:
            report.findings += compare_vectors(conn, project, args.vectors, report)
        rows = conn.execute(
            "SELECT * FROM trecho.check_index(%s, %s, true)", (project, not args.quick)
        ).fetchall()
        usable = conn.execute(
            "SELECT coalesce(bool_or(h.usable), true) AS usable FROM unnest(%s::text[]) AS p,"
            " LATERAL trecho.index_health(p) AS h",
            ([project] if project else [],),
        ).fetchone()
    report.usable = bool(usable and usable["usable"])
    for row in rows:
        if row["severity"] == "ok":
            if row["check_name"] not in report.passed:
                report.passed.append(row["check_name"])
        else:
            report.findings.append(
                Finding(
                    row["check_name"],
                    row["severity"],
                    row["object"],
                    row["findings"],
                    row["example"],
                    row["repair"],
                )
            )
    failed = {finding.check for finding in report.findings}
    report.passed = [name for name in report.passed if name not in failed]
    if not differences:
        report.passed.insert(0, "sources")
    if args.vectors and RESAMPLED not in failed:
        report.passed.append(RESAMPLED)
    return report
