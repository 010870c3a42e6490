"""`trecho preflight`: everything this project needs of a server, tried before anything is installed and after."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql

from trecho import db, resources
from trecho.console import print_json
from trecho.errors import ExitCode, TrechoError
from trecho.privileged import EXTENSIONS, Facts, Need, find_needs, privileged_sources
from trecho.runner import SETTINGS, Options, Plan, make_plan
from trecho.statements import parse

HELP = "Check server, role, extensions, chunkers and grammars; change nothing."

Status = Literal["ok", "warn", "fail", "skipped"]
# A data directory with less room than this is worth a warning.
LOW_DISK_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class Check:
    """One line of the report. hint: what to do; empty when nothing is."""

    name: str
    status: Status
    message: str
    hint: str = ""
    operator: bool = False  # an operator must act: exit code 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `trecho preflight`."""
    parser.add_argument(
        "--chunking",
        choices=["server", "client"],
        help="check for this way of chunking (default: as the database was set up, else server)",
    )


def run(args: argparse.Namespace) -> int:
    """Exit codes: 0 all well (warnings included), 1 a check failed, 3 an operator must act."""
    checks = examine(db.find_dsn(args.dsn), args.chunking)
    code = exit_code(checks)
    if args.json:
        print_json({"checks": [asdict(check) for check in checks], "exit_code": int(code)})
        return code
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{check.status:<8}{check.name:<{width + 2}}{check.message}")
        if check.hint:
            print(f"{'':<{width + 10}}{check.hint}")
    print(summary(checks))
    return code


def summary(checks: list[Check]) -> str:
    """How many are of each status. What was skipped did not pass, and is named."""
    counts = ", ".join(
        f"{len([check for check in checks if check.status == status])} {status}"
        for status in ("ok", "warn", "fail", "skipped")
    )
    skipped = [check.name for check in checks if check.status == "skipped"]
    return counts + (f" (not checked: {', '.join(skipped)})" if skipped else "")


def exit_code(checks: list[Check]) -> ExitCode:
    """What a report means to a script."""
    failed = [check for check in checks if check.status == "fail"]
    if any(check.operator for check in failed):
        return ExitCode.OPERATOR
    return ExitCode.ERROR if failed else ExitCode.DONE


# What stands in the report when there is no connection.
_AFTER_CONNECTION = (
    "server", "pooler", "encoding", "letters", "collation", "extensions", "roles", "chunkers", "modules", "schema",
    "indexes", "shared memory", "disk",
)  # fmt: skip


def examine(dsn: str, chunking: str | None = None) -> list[Check]:
    """Run every check; what is tried is rolled back."""
    try:
        conn = db.connect(dsn, application_name="trecho preflight", autocommit=True)
    except TrechoError as error:
        return [
            Check("connection", "fail", str(error), error.hint),
            *(Check(name, "skipped", "no connection") for name in _AFTER_CONNECTION),
        ]
    with conn:
        release = resources.current()
        checks = [Check("connection", "ok", f"{db.server_name(conn)}, database {conn.info.dbname!r}")]
        checks.append(_pooler(conn, dsn))
        with conn.transaction(force_rollback=True):
            for setting in SETTINGS:
                conn.execute(setting)
            conn.execute("SET LOCAL lock_timeout = '2s'")
            plan = make_plan(conn, release, Options(chunking=chunking), probe=True)
            facts = plan.facts
            checks += [_server(facts), _role(facts), _encoding(facts), _letters(conn), _collation(conn)]
            checks += [_extension(facts, plan, name) for name in EXTENSIONS]
            checks += _layer(plan)
            checks += _modules(conn, plan, release)
            checks += [_schema(plan), _indexes(conn), *_machine(conn, facts)]
    return checks


def _server(facts: Facts) -> Check:
    need = _need(facts, "server_too_old")
    if need:
        return _failed("server", need)
    standby = ", a standby: it can be searched, not migrated" if facts.read_only else ""
    return Check("server", "warn" if facts.read_only else "ok", f"PostgreSQL {facts.version_text}{standby}")


def _need(facts: Facts, code: str) -> Need | None:
    found = find_needs(facts, resources.current(), "client")
    return next((need for need in found if need.code == code), None)


def _failed(name: str, need: Need) -> Check:
    return Check(name, "fail", need.message, need.hint.replace(" below", " of trecho migrate"), operator=True)


def _role(facts: Facts) -> Check:
    return Check(
        "role",
        "ok",
        f"{facts.role!r}, {'superuser' if facts.superuser else 'not a superuser'}"
        f"{', acts as trecho_owner' if facts.owns else ''}",
    )


def _encoding(facts: Facts) -> Check:
    need = _need(facts, "encoding")
    return _failed("encoding", need) if need else Check("encoding", "ok", facts.encoding)


def _letters(conn: db.Connection) -> Check:
    row = conn.execute(
        "SELECT pg_catalog.lower('AÇÃO') = 'ação' AS folds,"
        "       d.datcollate AS collate, d.datctype AS ctype"
        "  FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()"
    ).fetchone()
    assert row is not None
    if row["folds"]:
        return Check("letters", "ok", f"LC_CTYPE {row['ctype']} folds AÇÃO to ação")
    return Check(
        "letters",
        "fail",
        f"LC_CTYPE {row['ctype']} does not fold AÇÃO to ação: words in capitals would not be found",
        "Create the database with a locale that knows Unicode: createdb --template template0 --locale C.UTF-8 NAME.",
        operator=True,
    )


def _collation(conn: db.Connection) -> Check:
    """After an upgrade of the C library or ICU, text may sort in another order than its indexes are in."""
    row = conn.execute(
        "SELECT d.datcollversion AS recorded, d.datname AS name,"
        "       pg_catalog.pg_database_collation_actual_version(d.oid) AS actual"
        "  FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()"
    ).fetchone()
    assert row is not None
    if row["recorded"] is None or row["recorded"] == row["actual"]:
        version = f"version {row['recorded']}" if row["recorded"] else "one that has no version"
        return Check("collation", "ok", f"{version}, as when the database was made")
    name = sql.Identifier(row["name"]).as_string(conn)
    return Check(
        "collation",
        "warn",
        f"version {row['actual']} now, {row['recorded']} when the indexes were built: look-ups of text may fail",
        f"REINDEX DATABASE CONCURRENTLY {name}; ALTER DATABASE {name} REFRESH COLLATION VERSION;",
    )


def _extension(facts: Facts, plan: Plan, name: str) -> Check:
    if name == "plpython3u" and plan.chunking == "client":
        return Check(f"extension {name}", "skipped", "not needed: this database chunks in the client")
    need = next((need for need in plan.needs if need.code.startswith(f"{name}_")), None)
    if need is None:
        ext = facts.extensions[name]
        return Check(f"extension {name}", "ok", f"{ext.installed} in schema {ext.schema}")
    if need.operator:
        return _failed(f"extension {name}", need)
    return Check(
        f"extension {name}", "ok", f"{facts.extensions[name].available} available; trecho migrate creates it"
    )


def _layer(plan: Plan) -> list[Check]:
    """Roles, schema and chunk functions."""
    checks = []
    for name, file in (("roles", "10_roles.sql"), ("chunkers", "20_chunkers.sql")):
        if name == "chunkers" and plan.chunking == "client":
            checks.append(Check(name, "skipped", "this database chunks in the client"))
            continue
        needs = [
            need
            for need in plan.needs
            if (need.file.endswith(file) and not need.code.startswith("plpython3u_"))
            or need.code == ("schema_foreign" if name == "roles" else "foreign_functions")
        ]
        checks += [_failed(name, need) for need in needs if need.operator]
        todo = [need for need in needs if not need.operator]
        if not needs:
            stamp = f"version {plan.facts.chunker_version}, stamp {plan.facts.stamp}"
            checks.append(Check(name, "ok", "complete" if name == "roles" else f"current ({stamp})"))
        elif len(todo) == len(needs):
            checks.append(Check(name, "warn", todo[0].message, todo[0].hint))
    return checks


def _modules(conn: db.Connection, plan: Plan, release: resources.Release) -> list[Check]:
    """Every module of the chunkers, imported where they will run; each grammar tried by a parse."""
    if plan.chunking == "client":
        return _client_modules()
    if any(need.operator for need in plan.needs):
        return [Check("modules", "skipped", "the chunk functions cannot be made yet")]
    if plan.facts.read_only and plan.facts.stamp != release.chunker_stamp:
        return [
            Check(
                "modules", "skipped", "a standby: the chunk functions of this release cannot be tried there"
            )
        ]
    try:
        with conn.transaction(force_rollback=True):
            if plan.facts.stamp != release.chunker_stamp:
                for name, text in privileged_sources(release, plan.facts, "server"):
                    for statement in parse(text, name):
                        conn.execute(statement.text.encode())
            rows = conn.execute(
                "SELECT module, version, path, ok, error FROM trecho.grammar_report()"
            ).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        return [Check("modules", "skipped", "this role may not call trecho.grammar_report()")]
    except psycopg.Error as error:
        return [Check("modules", "fail", f"PL/Python does not run: {error.diag.message_primary or error}")]
    return [_module(row, "in the server") for row in rows]


def _module(row: dict[str, Any], where: str) -> Check:
    name = f"module {row['module']}"
    if row["ok"]:
        return Check(name, "ok", f"{row['version']} at {row['path'] or 'a place of its own'} {where}")
    if row["module"].startswith("trecho_chunkers"):
        return Check(
            name, "fail", f"does not work {where}: {row['error']}", "This is a defect of trecho: report it."
        )
    return Check(
        name,
        "warn",
        f"does not work {where}: {row['error']}",
        "Code of this language cannot be cut by symbol there: install the package for that Python (docs/install.md).",
    )


def _client_modules() -> list[Check]:
    import importlib
    import importlib.metadata

    from trecho_chunkers.languages import GRAMMARS
    from trecho_chunkers.parsing import grammar_problem

    checks = []
    for language, grammar in sorted(GRAMMARS.items()):
        row: dict[str, Any] = {
            "module": f"{grammar.module} ({language})",
            "version": None,
            "path": None,
            "error": None,
        }
        try:
            row["version"] = importlib.metadata.version(grammar.package)
            row["path"] = getattr(importlib.import_module(grammar.module), "__file__", None)
            row["error"] = grammar_problem(language)
        except ImportError as error:
            row["error"] = str(error)
        row["ok"] = row["error"] is None
        checks.append(_module(row, "in this client"))
    return checks


def _schema(plan: Plan) -> Check:
    if plan.problems:
        return Check("schema", "fail", plan.problems[0], "trecho migrate status shows all of it.")
    pending = [step for step in plan.steps if step.kind != "privileged"]
    if pending:
        return Check("schema", "warn", f"{len(pending)} files are pending", "Run trecho migrate.")
    return Check("schema", "ok", "every migration has run")


def _indexes(conn: db.Connection) -> Check:
    rows = conn.execute(
        "SELECT i.indexrelid::pg_catalog.regclass::text AS name FROM pg_catalog.pg_index AS i"
        "  JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid"
        "  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'trecho' AND NOT (i.indisvalid AND i.indisready) ORDER BY 1"
    ).fetchall()
    names = ", ".join(row["name"] for row in rows)
    if names:
        return Check(
            "indexes",
            "fail",
            f"invalid, so not used: {names}",
            f"Run REINDEX INDEX CONCURRENTLY {rows[0]['name']}.",
        )
    return Check("indexes", "ok", "all valid")


def _pooler(conn: db.Connection, dsn: str) -> Check:
    """A pooler in transaction mode gives each transaction another backend; session locks do not survive that."""
    row = conn.execute("SELECT pg_catalog.pg_backend_pid() AS pid").fetchone()
    if row and row["pid"] == conn.info.backend_pid:
        return Check("pooler", "ok", "none: this is the server itself")
    conn.execute("SELECT pg_catalog.set_config('trecho.preflight', 'here', false)")
    kept = True
    try:
        with db.connect(dsn, application_name="trecho preflight") as other:
            other.execute("SELECT 1")  # in a transaction: takes the backend that was last free
            found = conn.execute(
                "SELECT pg_catalog.current_setting('trecho.preflight', true) AS here"
            ).fetchone()
            kept = bool(found and found["here"] == "here")
    except TrechoError as error:
        return Check("pooler", "warn", f"one is in between; its mode is not known ({error})")
    if kept:
        return Check("pooler", "ok", "one is in between, and sessions keep their backend")
    return Check(
        "pooler",
        "fail",
        "one is in between, in transaction mode: locks of a session do not hold",
        "Give trecho a direct connection, or a pool in session mode; searches may use this one.",
        operator=True,
    )


_MACHINE = """
CREATE FUNCTION pg_temp.trecho_machine(OUT shm_free bigint, OUT disk_free bigint, OUT disk_total bigint)
LANGUAGE plpython3u AS $f$
import os
def room(path):
    try:
        s = os.statvfs(path)
        return s.f_bavail * s.f_frsize, s.f_blocks * s.f_frsize
    except OSError:
        return None, None
data = plpy.execute("SELECT pg_catalog.current_setting('data_directory') AS d")[0]["d"]
disk = room(data)
return room("/dev/shm")[0], disk[0], disk[1]
$f$
"""


def _machine(conn: db.Connection, facts: Facts) -> list[Check]:
    """What only code inside the server can see."""
    names = ("shared memory", "disk")
    reason = ""
    if not facts.superuser:
        reason = "only a superuser can look at the machine of the server"
    elif facts.read_only:
        reason = "a standby: the function that looks at its machine cannot be made there"
    elif facts.extensions["plpython3u"].installed is None:
        reason = "plpython3u is not created, and nothing else can look at the machine of the server"
    if reason:
        return [Check(name, "skipped", reason) for name in names]
    with conn.transaction(force_rollback=True):
        conn.execute(sql.SQL(_MACHINE))
        row = conn.execute(
            "SELECT m.*, pg_catalog.current_setting('dynamic_shared_memory_type') AS kind,"
            "       pg_catalog.pg_size_bytes(pg_catalog.current_setting('maintenance_work_mem')) AS wanted"
            "  FROM pg_temp.trecho_machine() AS m"
        ).fetchone()
    assert row is not None
    return [_shared_memory(row), _disk(row)]


def _shared_memory(row: dict[str, Any]) -> Check:
    free, wanted = row["shm_free"], row["wanted"]
    if row["kind"] != "posix" or free is None:
        return Check(
            "shared memory", "skipped", f"dynamic_shared_memory_type is {row['kind']}; /dev/shm is not used"
        )
    if free >= wanted:
        return Check(
            "shared memory", "ok", f"/dev/shm has {_mib(free)}, maintenance_work_mem is {_mib(wanted)}"
        )
    return Check(
        "shared memory",
        "warn",
        f"/dev/shm has {_mib(free)}, less than maintenance_work_mem ({_mib(wanted)}):"
        " building an HNSW index with workers would fail",
        "Give the container more (docker run --shm-size), or lower maintenance_work_mem.",
    )


def _disk(row: dict[str, Any]) -> Check:
    free = row["disk_free"]
    if free is None:
        return Check("disk", "skipped", "the data directory cannot be looked at")
    message = f"{_mib(free)} of {_mib(row['disk_total'])} free where the data is"
    if free < LOW_DISK_BYTES:
        return Check("disk", "warn", message, "A new index version needs room for all chunks once more.")
    return Check("disk", "ok", message)


def _mib(size: int) -> str:
    return f"{size / 1024**3:.1f} GiB" if size >= 1024**3 else f"{size / 1024**2:.0f} MiB"
