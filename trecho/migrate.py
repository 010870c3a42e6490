"""`trecho migrate`: plan, apply, print as a script, show the state."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trecho import db, resources
from trecho.console import note, print_json
from trecho.drift import Drift
from trecho.errors import ExitCode, Refused, TrechoError, UsageError
from trecho.lint import RULES, Finding, lint_statements
from trecho.privileged import Facts
from trecho.runner import (
    SETTINGS,
    OperatorScript,
    Options,
    Plan,
    check,
    make_plan,
    migrate,
    script,
    script_for_operator,
)

HELP = "Create or upgrade the schema trecho in a database; safe to run at every deploy."


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `trecho migrate`."""
    parser.add_argument(
        "what", nargs="?", choices=["status"], help="status: show what has run and what is pending"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--plan", action="store_true", help="show what would run; change nothing (exit 3: operator first)"
    )
    mode.add_argument("--sql", action="store_true", help="print what is pending as one script for psql")
    parser.add_argument(
        "--chunking",
        choices=["server", "client"],
        help="where documents are cut: server (default) needs plpython3u there; the database remembers it",
    )
    parser.add_argument(
        "--script", metavar="FILE", type=Path, help="write the script for the DBA there, not to stdout"
    )
    parser.add_argument(
        "--lock-timeout", metavar="SECONDS", type=float, default=5.0, help="longest wait for a table (5)"
    )
    parser.add_argument(
        "--attempts", metavar="N", type=int, default=5, help="tries when a lock was not to be had (5)"
    )
    parser.add_argument(
        "--wait", metavar="SECONDS", type=float, default=300.0, help="wait for another migration (300)"
    )


def run(args: argparse.Namespace) -> int:
    """Exit codes: 0 done, 3 operator first, 4 refused, 6 pending (status only)."""
    if args.what and (args.plan or args.sql):
        raise UsageError(
            "status goes with neither --plan nor --sql",
            hint="trecho migrate status says what is pending, trecho migrate --plan what that would do.",
        )
    if args.attempts < 1 or args.lock_timeout < 0 or args.wait < 0:
        raise UsageError(
            "--attempts must be 1 or more, and times zero or more", hint="Leave them out for the defaults."
        )
    release = resources.current()
    options = Options(
        chunking=args.chunking,
        lock_timeout_ms=round(args.lock_timeout * 1000),
        attempts=args.attempts,
        wait_ms=round(args.wait * 1000),
    )
    with db.connect(db.find_dsn(args.dsn), application_name="trecho migrate", autocommit=True) as conn:
        if args.what or args.plan or args.sql:
            with conn.transaction(force_rollback=True):
                for setting in SETTINGS:
                    conn.execute(setting)
                plan = make_plan(conn, release, options, probe=args.plan)
            if args.what:
                return _status(plan, release, args)
            return _print_sql(plan, release, args) if args.sql else _print_plan(plan, release, args)
        try:
            result = migrate(conn, release, options, _quiet if args.json else note)
        except OperatorScript as error:
            _hand_over(error, args)
            raise
    for item in result.drift:
        note(f"warning: {item}; trecho migrate status says what to do")
    if args.json:
        print_json(
            {
                "applied": [{"name": n, "kind": k, "duration_ms": ms} for n, k, ms in result.applied],
                "chunking": result.chunking,
                "release": release.version,
            }
        )
    elif not result.applied:
        print(f"nothing to do: the database is at release {release.version}")
    else:
        print(f"applied {len(result.applied)} files; the database is at release {release.version}")
    return ExitCode.DONE


def _quiet(_text: str) -> None:
    pass


def _hand_over(error: OperatorScript, args: argparse.Namespace) -> None:
    """Give the script for the DBA: to the file, or to stdout (with --json it is part of the document)."""
    if args.script:
        args.script.write_text(error.script, encoding="utf-8")
        error.hint = error.hint.replace("the script below", f"the script {args.script}")
    elif not args.json:
        print(error.script, end="")


def _where(plan: Plan) -> str:
    facts = plan.facts
    return f"database {facts.database!r} on {facts.place}, role {facts.role!r}, chunking {plan.chunking}"


def _way(plan: Plan) -> str:
    """How the database was set up: migrate, extension or none."""
    if plan.facts.extension is not None:
        return "extension"
    return "migrate" if plan.facts.schema_owner else "none"


def _verdict(plan: Plan, release: resources.Release) -> TrechoError | None:
    try:
        check(plan, release)
    except TrechoError as error:
        return error
    return None


def _lint(plan: Plan) -> dict[str, list[Finding]]:
    """Findings of each pending file. Tables that the plan itself makes are new, so nobody waits for them."""
    created: set[str] = set()
    found = {}
    for step in plan.steps:
        findings = lint_statements(step.statements, created)
        # What runs as a superuser is told as a need; a lone statement outside the transaction is marked as such.
        meant = {"needs-operator", "not-checked"} if step.kind == "privileged" else set()
        if not step.transaction:
            meant.add("no-transaction")
        found[step.name] = [finding for finding in findings if finding.rule not in meant]
    return found


def _plan_json(plan: Plan, verdict: TrechoError | None) -> dict[str, Any]:
    lint = _lint(plan)
    return {
        "server": plan.facts.server,
        "server_version": plan.facts.version_text,
        "database": plan.facts.database,
        "role": plan.facts.role,
        "superuser": plan.facts.superuser,
        "chunking": plan.chunking,
        "needs": [need.as_json() for need in plan.needs],
        "pending": [
            {
                "name": step.name,
                "kind": step.kind,
                "why": step.markers.why if step.markers else None,
                "breaks_old_clients": step.markers.breaks_old_clients if step.markers else None,
                "transaction": step.transaction,
                "statements": len(step.statements),
                "lint": [asdict(finding) for finding in lint[step.name]],
            }
            for step in plan.steps
        ],
        "drift": [{**asdict(item), "restorable": item not in plan.lasting_drift} for item in plan.drift],
        "problems": plan.problems,
        "way": _way(plan),
        "extension": plan.facts.extension,
        "exit_code": int(verdict.exit_code) if verdict else 0,
    }


def _print_plan(plan: Plan, release: resources.Release, args: argparse.Namespace) -> int:
    verdict = _verdict(plan, release)
    if isinstance(verdict, OperatorScript):
        if args.script:
            _hand_over(verdict, args)
        else:  # a plan shows what is missing; the script is long
            verdict.hint = verdict.hint.replace("the script below", "the script that trecho migrate prints")
    if args.json:
        print_json(_plan_json(plan, verdict))
        return verdict.exit_code if verdict else ExitCode.DONE
    print(f"plan for {_where(plan)}")
    for need in plan.operator_needs:
        print(f"operator  {need.message}")
        print(f"          {need.hint}")
    lint = _lint(plan)
    for step in plan.steps:
        print(f"pending   {step.name}{_remarks(step.markers)}")
        for item in step.restores:
            print(f"  restore {item}")
        for finding in lint[step.name]:
            print(f"  look    {finding} ({RULES[finding.rule]})")
    if not plan.pending:
        print("nothing to do")
    if verdict:
        raise verdict
    return ExitCode.DONE


def _remarks(markers: Any) -> str:
    if markers is None:
        return ""
    remarks = [markers.why]
    if markers.breaks_old_clients:
        remarks.append("breaks old clients")
    if not markers.transaction:
        remarks.append("runs outside the transaction")
    return "  -- " + "; ".join(remarks)


def _print_sql(plan: Plan, release: resources.Release, args: argparse.Namespace) -> int:
    verdict = _verdict(plan, release)
    if isinstance(verdict, Refused):
        raise verdict
    beyond_sql = [
        need for need in plan.operator_needs if not need.file and need.code != "migration_needs_operator"
    ]
    if beyond_sql:
        raise OperatorScript(beyond_sql, script_for_operator(plan, release))
    text = script(plan, release) if plan.pending else "-- trecho: nothing to do\n"
    if args.script:
        args.script.write_text(text, encoding="utf-8")
    elif args.json:
        print_json({"script": text, "files": [step.name for step in plan.steps]})
    else:
        print(text, end="")
    return ExitCode.DONE


def _status(plan: Plan, release: resources.Release, args: argparse.Namespace) -> int:
    verdict = None if plan.facts.extension else _verdict(plan, release)
    code = verdict.exit_code if verdict else ExitCode.DONE
    behind = plan.facts.extension is not None and plan.facts.extension != release.version
    if not verdict and (plan.pending or plan.drift or behind):
        code = ExitCode.NOT_CURRENT
    if args.json:
        rows = sorted(plan.applied.values(), key=lambda row: row.name)
        print_json(
            {**_plan_json(plan, verdict), "applied": [vars(row) for row in rows], "exit_code": int(code)}
        )
        return code
    print(_where(plan))
    if plan.facts.extension:
        print(f"set up    with CREATE EXTENSION trecho, version {plan.facts.extension}")
    elif plan.facts.schema_owner:
        print("set up    with trecho migrate")
    for row in sorted(plan.applied.values(), key=lambda row: (row.kind != "privileged", row.name)):
        took = "" if row.duration_ms is None else f", {row.duration_ms} ms"
        print(
            f"applied   {row.name}  ({row.applied_at:%Y-%m-%d %H:%M} by {row.applied_by},"
            f" release {row.release}{took})"
        )
    for step in plan.steps:
        print(f"pending   {step.name}{_remarks(step.markers)}")
    for item in plan.drift:
        print(f"drift     {item}{_remedy(item, plan)}")
    for problem in plan.problems:
        print(f"refused   {problem}")
    for need in plan.operator_needs:
        print(f"operator  {need.message}")
    if behind:
        print(f"pending   {_extension_upgrade(plan.facts, release)}")
    print(f"release   {release.version}: {'current' if code == 0 else 'not current'}")
    return code


def _remedy(item: Drift, plan: Plan) -> str:
    if item in plan.lasting_drift:
        return ": run the statements of that file about it by hand, CREATE as CREATE OR REPLACE"
    return ": trecho migrate puts it back"


def _extension_upgrade(facts: Facts, release: resources.Release) -> str:
    if facts.extension_available == release.version:
        return f"ALTER EXTENSION trecho UPDATE, from {facts.extension} to {release.version}"
    there = facts.extension_available or "none"
    return f"the server has the files of {there}: install those of {release.version}, then ALTER EXTENSION … UPDATE"
