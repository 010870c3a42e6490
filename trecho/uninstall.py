"""`trecho uninstall`: take out of a database what trecho migrate or CREATE EXTENSION put there."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg
from psycopg import errors, sql

from trecho import db
from trecho.console import note, print_json
from trecho.errors import ExitCode, OperatorNeeded, Refused, TrechoError, UsageError
from trecho.privileged import ROLES, Facts, read_facts
from trecho.runner import Options, locked
from trecho.statements import quote_name

Connection = psycopg.Connection[Any]

HELP = (
    "Remove schema trecho and everything in it from a database, and the roles where nothing else uses them."
)

# Everything outside schema trecho that depends on something, named as DROP would name it. A row type and an array
# type come and go with their table.
OUTSIDE = """
SELECT pg_catalog.concat(i.type, ' ', i.identity) AS object
  FROM (SELECT DISTINCT d.classid, d.objid, d.objsubid FROM pg_catalog.pg_depend AS d
         WHERE d.classid = ANY (ARRAY['pg_class', 'pg_proc', 'pg_type', 'pg_constraint', 'pg_trigger', 'pg_policy',
                                      'pg_attrdef', 'pg_operator', 'pg_cast']::regclass[])) AS d
  CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, d.objsubid) AS i
 WHERE i.schema IS DISTINCT FROM 'trecho' AND i.schema IS DISTINCT FROM 'pg_toast'
   AND i.identity !~ '( on|^for) trecho[.]'
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_type AS t
                    WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid AND (t.typtype = 'c' OR t.typelem <> 0))
"""

SHARED_USE = """
SELECT DISTINCT r.rolname AS role, coalesce(b.datname, 'the cluster') AS place
  FROM pg_catalog.pg_shdepend AS s
  JOIN pg_catalog.pg_roles AS r ON r.oid = s.refobjid AND s.refclassid = 'pg_authid'::regclass
  LEFT JOIN pg_catalog.pg_database AS b ON b.oid = s.dbid
 WHERE r.rolname = ANY (%s)
 ORDER BY 1, 2
"""

MEMBERS = """
SELECT DISTINCT g.rolname AS role, m.rolname AS member
  FROM pg_catalog.pg_auth_members AS a
  JOIN pg_catalog.pg_roles AS g ON g.oid = a.roleid
  JOIN pg_catalog.pg_roles AS m ON m.oid = a.member
 WHERE g.rolname = ANY (%s) AND m.rolname <> ALL (%s) AND m.rolname <> session_user
 ORDER BY 1, 2
"""


@dataclass
class Report:
    """What was removed. documents: how many were lost, of them application_documents that nothing else holds."""

    database: str
    way: str  # migrate, extension or none
    documents: int = 0
    application_documents: int = 0
    also_removed: list[str] = field(default_factory=list)
    roles_removed: list[str] = field(default_factory=list)
    roles_kept: list[str] = field(default_factory=list)
    roles_reason: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `trecho uninstall`."""
    parser.add_argument(
        "--yes", metavar="DATABASE", help="name of the database, which confirms that its documents go"
    )
    parser.add_argument(
        "--cascade", action="store_true", help="also drop what others have built on it, such as views"
    )
    parser.add_argument("--keep-roles", action="store_true", help="leave the roles, whoever uses them")
    parser.add_argument(
        "--lock-timeout", metavar="SECONDS", type=float, default=5.0, help="longest wait for a table (5)"
    )


def run(args: argparse.Namespace) -> int:
    """Exit codes: 0 done, 2 another database is named, 3 operator first, 4 not confirmed or in use by others."""
    if args.lock_timeout < 0:
        raise UsageError("--lock-timeout must be zero or more", hint="Leave it out for the default.")
    options = Options(lock_timeout_ms=round(args.lock_timeout * 1000))
    with db.connect(db.find_dsn(args.dsn), application_name="trecho uninstall", autocommit=True) as conn:
        try:
            with locked(conn, options, note):
                report = uninstall(
                    conn, args.yes, cascade=args.cascade, keep_roles=args.keep_roles, options=options
                )
        except errors.LockNotAvailable as error:
            raise TrechoError(
                f"somebody uses the tables of trecho: {error.diag.message_primary}",
                hint="Stop the workers and applications (pg_stat_activity shows them), then run it again.",
            ) from error
    if args.json:
        print_json(asdict(report))
        return ExitCode.DONE
    if report.way == "none":
        print(f"nothing to do: database {report.database!r} has no schema trecho")
    else:
        print(f"removed trecho and {_counted(report)} from database {report.database!r}")
    for item in report.also_removed:
        print(f"removed {item}")
    if report.roles_removed:
        print(f"removed roles {', '.join(report.roles_removed)}")
    if report.roles_kept:
        print(f"kept roles {', '.join(report.roles_kept)}: {report.roles_reason}")
    return ExitCode.DONE


def uninstall(
    conn: Connection, confirmed: str | None, *, cascade: bool, keep_roles: bool, options: Options
) -> Report:
    """Remove it in the caller's transaction.

    Raises: Refused without the right confirmation, or when others have built on it; OperatorNeeded.
    """
    conn.execute(f"SET LOCAL lock_timeout = {options.lock_timeout_ms}")
    facts = read_facts(conn)
    way = "extension" if facts.extension else "migrate" if facts.schema_owner else "none"
    report = Report(facts.database, way)
    if confirmed is not None and confirmed != facts.database:
        raise UsageError(
            f"this is database {facts.database!r} on {facts.place}, not {confirmed!r}",
            hint="Name the database that --dsn leads to.",
        )
    if way != "none":
        _check_may(facts)
        _count(conn, facts, report)
    elif confirmed is None:
        return report
    if confirmed is None:
        raise Refused(
            f"not confirmed: {_counted(report)} of database {facts.database!r} on {facts.place} would be lost",
            detail=f"{report.application_documents} of them were put by applications and exist only here."
            if report.application_documents
            else "",
            hint=f"Back up what is needed, then name the database: trecho uninstall --yes {quote_name(facts.database)}",
        )
    if way != "none":
        _drop(conn, facts, report, cascade)
    if not keep_roles:
        _drop_roles(conn, facts, report)
    return report


def _counted(report: Report) -> str:
    return f"{report.documents} document{'' if report.documents == 1 else 's'}"


def _check_may(facts: Facts) -> None:
    if facts.extension is None and facts.schema_owner != "trecho_owner":
        raise Refused(
            f"schema trecho in database {facts.database!r} belongs to {facts.schema_owner}, not to trecho_owner",
            hint="It is not what trecho migrate made. Look at it, and drop it by hand.",
        )
    if facts.superuser or (facts.extension is None and facts.owns):
        return
    what = "extension trecho" if facts.extension else "schema trecho"
    statement = "DROP EXTENSION trecho;" if facts.extension else "DROP SCHEMA trecho CASCADE;"
    raise OperatorNeeded(
        f"role {facts.role!r} may not drop {what} on {facts.place}",
        hint=f"Have a superuser run trecho uninstall, or in database {facts.database!r}: {statement}",
    )


def _count(conn: Connection, facts: Facts, report: Report) -> None:
    """Documents as the tables have them; none where they are not there."""
    if conn.execute(
        "SELECT FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass('trecho.documents')"
    ).rowcount:
        conn.execute("SET LOCAL ROLE trecho_owner")
        row = conn.execute(
            "SELECT count(*) AS documents, count(*) FILTER (WHERE d.source_set = '') AS put FROM trecho.documents AS d"
        ).fetchone()
        conn.execute("RESET ROLE")
        assert row is not None
        report.documents, report.application_documents = row["documents"], row["put"]


def _drop(conn: Connection, facts: Facts, report: Report, cascade: bool) -> None:
    def outside() -> set[str]:
        return {row["object"] for row in conn.execute(OUTSIDE)}

    before = outside()
    if report.way == "extension":
        conn.execute("DROP EXTENSION trecho CASCADE")
        # Nothing is left in it but what somebody else has put there; CASCADE above took what depended on it.
        conn.execute("DROP SCHEMA IF EXISTS trecho")
    else:
        if not facts.superuser:
            conn.execute("SET LOCAL ROLE trecho_owner")
        conn.execute("DROP SCHEMA trecho CASCADE")
        conn.execute("RESET ROLE")
    report.also_removed = sorted(before - outside())
    if report.also_removed and not cascade:
        raise Refused(
            f"others have built on trecho in database {facts.database!r}: {report.also_removed[0]}",
            detail="\n".join(f"also: {item}" for item in report.also_removed[1:]),
            hint="Nothing was removed. Drop them first, or let them go too: --cascade.",
        )


def _drop_roles(conn: Connection, facts: Facts, report: Report) -> None:
    """All four or none: one alone would leave the others without the rights they had through it."""
    present = [role for role in ROLES if role in facts.roles]
    if not present:
        return
    try:
        with conn.transaction():
            _revoke_schemas(conn, facts, present)
            report.roles_reason = _used_by(conn, facts, present)
            if not report.roles_reason:
                for role in reversed(present):
                    conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
                report.roles_removed = present
    except (errors.InsufficientPrivilege, errors.DependentObjectsStillExist) as error:
        report.roles_reason = str(error.diag.message_primary)
    if not report.roles_removed:
        report.roles_kept = present


def _revoke_schemas(conn: Connection, facts: Facts, roles: list[str]) -> None:
    """Take back USAGE on the schemas of extensions, which trecho migrate grants where they are not open."""
    granted = conn.execute(
        "SELECT DISTINCT n.nspname AS schema, r.rolname AS role FROM pg_catalog.pg_namespace AS n"
        " CROSS JOIN LATERAL pg_catalog.aclexplode(n.nspacl) AS a"
        " JOIN pg_catalog.pg_roles AS r ON r.oid = a.grantee"
        " WHERE n.nspname = ANY (%s) AND r.rolname = ANY (%s) AND a.privilege_type = 'USAGE'",
        ([ext.schema for ext in facts.extensions.values() if ext.schema], roles),
    ).fetchall()
    for row in granted:
        conn.execute(
            sql.SQL("REVOKE USAGE ON SCHEMA {} FROM {}").format(
                sql.Identifier(row["schema"]), sql.Identifier(row["role"])
            )
        )


def _used_by(conn: Connection, facts: Facts, roles: list[str]) -> str:
    """Who else needs the roles; empty when nobody does."""
    places = [row["place"] for row in conn.execute(SHARED_USE, (roles,))]
    if places:
        names = sorted(set(places))
        return f"in use in {', '.join(names[:5])}{' and others' if len(names) > 5 else ''}"
    members = [f"{row['member']} of {row['role']}" for row in conn.execute(MEMBERS, (roles, list(ROLES)))]
    if members:
        return f"others are members: {', '.join(members[:5])}{' and others' if len(members) > 5 else ''}"
    return ""
