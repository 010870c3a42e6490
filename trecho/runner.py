"""Apply what this release ships: privileged layer, migrations, functions; one transaction under one lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import IsolationLevel, errors, sql

from trecho.drift import CATALOG_OBJECTS, Drift, made_again, made_by, note_objects
from trecho.errors import ClientTooOld, OperatorNeeded, Refused, TrechoError
from trecho.privileged import (
    CLIENT_ADVICE,
    Facts,
    Need,
    find_needs,
    operator_script,
    privileged_sources,
    read_facts,
)
from trecho.resources import CHUNKER_FILE, Release, sha256
from trecho.statements import Markers, Statement, parse, quote_name, quote_text, read_markers, resolve

Connection = psycopg.Connection[Any]
Report = Callable[[str], None]

# First eight bytes of SHA-256 of 'trecho migrate', as bigint. Never changes: releases exclude each other.
LOCK_KEY = -1111495483864100428

# The runner's own tables, made before the first migration.
RUNNER_TABLES = Path(__file__).with_name("runner_tables.sql").read_text(encoding="utf-8")

RECORD = """
INSERT INTO trecho.schema_migrations AS m (name, kind, checksum, release, duration_ms)
VALUES ({}, {}, {}, {}, {})
ON CONFLICT ON CONSTRAINT schema_migrations_pkey DO UPDATE
   SET checksum = EXCLUDED.checksum, release = EXCLUDED.release, applied_at = EXCLUDED.applied_at,
       applied_by = EXCLUDED.applied_by, duration_ms = EXCLUDED.duration_ms
"""

REMEMBER_CHUNKING = """
INSERT INTO trecho.installation (chunking) VALUES ({})
ON CONFLICT ON CONSTRAINT installation_pkey DO UPDATE SET chunking = EXCLUDED.chunking
"""

# Version 1 needs partitions, which a function makes.
FIRST_VERSION = """
DO $do$ BEGIN
    IF pg_catalog.to_regprocedure('trecho._ensure_version()') IS NOT NULL THEN
        PERFORM trecho._ensure_version();
    END IF;
END $do$
"""

SETTINGS = (
    # Names in our files are qualified; an operator or type of an attacker's schema must not be found instead.
    "SET LOCAL search_path = pg_catalog, pg_temp",
    "SET LOCAL client_min_messages = warning",
    "SET LOCAL statement_timeout = 0",
    "SET LOCAL idle_in_transaction_session_timeout = 0",
    "SET LOCAL check_function_bodies = on",
)


@dataclass(frozen=True)
class Options:
    """Choices of a run. Times in milliseconds."""

    chunking: str | None = None  # None: as this database was set up, else server
    lock_timeout_ms: int = 5_000  # longest wait of a statement for a lock on a table
    attempts: int = 5  # tries of the whole transaction when a lock was not to be had
    wait_ms: int = 300_000  # longest wait for another migration to end


@dataclass(frozen=True)
class Step:
    """One file to run. checksum: what is recorded; markers: of a migration; restores: what it puts back."""

    name: str
    kind: str
    text: str
    checksum: str
    statements: list[Statement] = field(repr=False)
    markers: Markers | None = None
    restores: tuple[Drift, ...] = ()

    @property
    def transaction(self) -> bool:
        return self.markers is None or self.markers.transaction

    @property
    def recorded(self) -> bool:
        """Whether it is a whole file; the others are single statements of a migration that ran long ago."""
        return self.kind != "restore"


@dataclass(frozen=True)
class Applied:
    """A row of schema_migrations."""

    name: str
    kind: str
    checksum: str
    release: str
    applied_at: datetime
    applied_by: str
    duration_ms: int | None


@dataclass
class Plan:
    """What a run would do."""

    facts: Facts
    chunking: str
    needs: list[Need]
    applied: dict[str, Applied]
    problems: list[str]
    steps: list[Step]
    drift: list[Drift] = field(default_factory=list)
    known: set[str] = field(default_factory=set)  # files whose functions are on record

    @property
    def operator_needs(self) -> list[Need]:
        return [need for need in self.needs if need.operator]

    @property
    def lasting_drift(self) -> list[Drift]:
        """What no step puts back."""
        return [item for item in self.drift if not any(item in step.restores for step in self.steps)]

    @property
    def pending(self) -> bool:
        """Whether a run would change anything."""
        return bool(self.steps) or bool(self.needs) or self.facts.chunking != self.chunking


@dataclass
class Result:
    """What a run did: (name, kind, milliseconds) of each file."""

    chunking: str
    applied: list[tuple[str, str, int]] = field(default_factory=list)
    drift: list[Drift] = field(default_factory=list)  # what no run puts back, as the last plan saw it


@dataclass(frozen=True)
class _Job:
    """What a run carries along."""

    release: Release
    options: Options
    report: Report
    result: Result


class StatementFailed(TrechoError):
    """A statement of a migration failed."""

    def __init__(self, statement: Statement, error: psycopg.Error, *, changed: str) -> None:
        diag = error.diag
        line = statement.line_of(int(diag.statement_position) if diag.statement_position else None)
        evidence = [f"statement: {statement.summary} (begins in line {statement.line})"]
        if diag.message_detail:
            evidence.append(diag.message_detail)
        if diag.context:
            evidence.append(f"context: {diag.context}")
        reason = diag.message_primary or str(error).strip()
        super().__init__(
            f"{statement.file}:{line}: {reason} (SQLSTATE {error.sqlstate})",
            detail="\n".join(evidence),
            hint=f"{diag.message_hint} {changed}" if diag.message_hint else changed,
        )
        self.sqlstate = error.sqlstate
        self.file = statement.file
        self.line = line
        self.statement = statement.summary

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "file": self.file, "line": self.line, "statement": self.statement}


class OperatorScript(OperatorNeeded):
    """What an operator must do first, with the script for it."""

    def __init__(self, needs: list[Need], script: str) -> None:
        first, *rest = needs
        hint = first.hint
        if CLIENT_ADVICE not in hint and any(CLIENT_ADVICE in need.hint for need in rest):
            hint = f"{hint.removesuffix('.')}, {CLIENT_ADVICE}."
        # What the script cannot do (install a package, update an extension) is said with its own advice.
        also = [need.message if "script" in need.hint else f"{need.message}. {need.hint}" for need in rest]
        super().__init__(first.message, hint=hint, detail="\n".join(f"also: {text}" for text in also))
        self.needs = needs
        self.script = script

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "needs": [n.as_json() for n in self.needs], "script": self.script}


# --------------------------------------------------------------------------------------------------------
# Planning


def make_plan(conn: Connection, release: Release, options: Options, *, probe: bool = False) -> Plan:
    """Compare the release with the database, in the caller's transaction; changes nothing.

    probe: also try (and roll back) to create an extension that the catalog says this role may not create.
    Raises: Refused for files that break the rules; ParseFailed for files that are not SQL.
    """
    facts = read_facts(conn)
    applied = _read_state(conn, facts)
    if facts.extension is not None:  # its scripts upgrade it
        return Plan(facts, "server", [], applied, [], [], _drift(_read_objects(conn, facts), "server"))
    chunking = options.chunking or facts.chunking or "server"
    needs = find_needs(facts, release, chunking, conn if probe and not facts.read_only else None)
    problems = _problems(release, applied, facts, chunking)
    objects = _read_objects(conn, facts)
    drift = _drift(objects, chunking)
    if not facts.superuser:
        needs += _drifted_chunkers(drift, facts, needs)
    known = {row["file"] for row in objects}
    steps = (
        []
        if any(need.code in ("server_too_old", "encoding") for need in needs)
        else list(_pending(release, facts, chunking, applied, needs, drift, known))
    )
    plan = Plan(facts, chunking, needs, applied, problems, steps, drift, known)
    for step in steps:
        if step.markers and step.markers.needs_operator and not facts.superuser:
            plan.needs.append(
                Need(
                    "migration_needs_operator",
                    f"{step.name} needs an operator, and {facts.role!r} is not a superuser:"
                    f" {step.markers.why}",
                    "Have a superuser run trecho migrate, or the script of trecho migrate --sql.",
                    operator=True,
                )
            )
    return plan


@contextmanager
def _as_owner(conn: Connection) -> Iterator[None]:
    conn.execute("SET LOCAL ROLE trecho_owner")
    yield
    conn.execute("RESET ROLE")  # after an error the transaction is rolled back, and the role with it


def _read_state(conn: Connection, facts: Facts) -> dict[str, Applied]:
    if not facts.owns or facts.schema_owner != "trecho_owner":
        return {}
    with _as_owner(conn):
        if _scalar(conn, "SELECT pg_catalog.to_regclass('trecho.schema_migrations') IS NULL"):
            return {}
        rows = conn.execute(
            "SELECT name, kind, checksum, release, applied_at, applied_by, duration_ms"
            "  FROM trecho.schema_migrations"
        ).fetchall()
        facts.chunking = _scalar(conn, "SELECT chunking FROM trecho.installation")
    return {row["name"]: Applied(**row) for row in rows}


def _read_objects(conn: Connection, facts: Facts) -> list[dict[str, Any]]:
    """Functions and views as they were made, with what stands there now (NULL where nothing does)."""
    if not facts.owns or facts.schema_owner != "trecho_owner":
        return []
    with _as_owner(conn):
        if _scalar(conn, "SELECT pg_catalog.to_regclass('trecho.schema_objects') IS NULL"):
            return []
        rows = conn.execute(
            "SELECT o.object, o.file, o.fingerprint AS made, c.fingerprint AS present"
            f"  FROM trecho.schema_objects AS o LEFT JOIN ({CATALOG_OBJECTS}) AS c ON c.object = o.object"
            ' ORDER BY o.object COLLATE pg_catalog."C"'
        ).fetchall()
    return [dict(row) for row in rows]


def _drift(objects: list[dict[str, Any]], chunking: str) -> list[Drift]:
    return [
        Drift(row["object"], row["file"], "missing" if row["present"] is None else "altered")
        for row in objects
        if row["present"] != row["made"] and (chunking == "server" or row["file"] != CHUNKER_FILE)
    ]


def _drifted_chunkers(drift: list[Drift], facts: Facts, needs: list[Need]) -> list[Need]:
    """A chunk function that somebody without superuser cannot put back."""
    gone = [item for item in drift if item.file == CHUNKER_FILE]
    if not gone or any(need.file == CHUNKER_FILE for need in needs):
        return []
    return [
        Need(
            "chunkers_not_current",
            f"{gone[0]}, and only a superuser may create PL/Python functions, which {facts.role!r} is not",
            f"Have a superuser run the script below, {CLIENT_ADVICE}.",
            operator=True,
            file=CHUNKER_FILE,
        )
    ]


def _scalar(conn: Connection, query: str) -> Any:
    row = conn.execute(query).fetchone()
    return None if row is None else next(iter(row.values()))


def _problems(release: Release, applied: dict[str, Applied], facts: Facts, chunking: str) -> list[str]:
    """Reasons to refuse, each naming its file."""
    problems = []
    shipped = {source.name: source for source in release.migrations}
    ran = {name: row for name, row in applied.items() if row.kind == "migration"}
    for name, row in sorted(ran.items()):
        who = f"{row.applied_at:%Y-%m-%d} by {row.applied_by}, release {row.release}"
        if name not in shipped:
            problems.append(f"{name} is missing here, but ran in this database ({who})")
        elif shipped[name].checksum != row.checksum:
            problems.append(f"{name} was edited after it ran in this database ({who})")
    last = max(ran, default="")
    problems += [
        f"{name} is out of order: {last} ran before it" for name in shipped if name not in ran and name < last
    ]
    return problems


def _pending(
    release: Release,
    facts: Facts,
    chunking: str,
    applied: dict[str, Applied],
    needs: list[Need],
    drift: list[Drift],
    known: set[str],
) -> Iterator[Step]:
    """Files to run. known: those whose functions are on record; a database of an older release has none."""
    wanted = {need.file for need in needs}
    altered: dict[str, tuple[Drift, ...]] = {}
    for item in drift:
        altered[item.file] = (*altered.get(item.file, ()), item)
    for name, text in privileged_sources(release, facts, chunking):
        checksum = sha256(text)
        changed = name not in applied or applied[name].checksum != checksum or name in altered
        if name in wanted or (facts.superuser and changed):
            statements = parse(text, name)
            yield Step(name, "privileged", text, checksum, statements, restores=altered.get(name, ()))
    for source in release.migrations:
        for item in altered.get(source.name, ()):
            statements = made_again(
                parse(resolve(source.text, facts.schemas, source.name), source.name), item.name
            )
            if statements:
                text = "\n".join(f"{statement.text};" for statement in statements)
                yield Step(source.name, "restore", text, source.checksum, statements, restores=(item,))
        markers = read_markers(source.text, source.name)
        if source.name not in applied:
            text = resolve(source.text, facts.schemas, source.name)
            statements = parse(text, source.name)
            lone_statement(source.name, markers, statements)
            yield Step(source.name, "migration", text, source.checksum, statements, markers)
    for source in release.behaviour:
        text = resolve(source.text, facts.schemas, source.name)
        checksum = sha256(text)
        changed = source.name not in applied or applied[source.name].checksum != checksum
        if (
            changed
            or source.name in altered
            or (source.name not in known and made_by(parse(text, source.name)))
        ):
            statements = parse(text, source.name)
            yield Step(source.name, "sql", text, checksum, statements, restores=altered.get(source.name, ()))


def _files_made(applied: list[Step], plan: Plan, release: Release) -> dict[str, list[str]]:
    """What these files make, and the chunk functions where a DBA's script has made them unrecorded."""
    shipped = {source.name: source for source in release.migrations}
    files = {
        step.name: made_by(
            step.statements
            if step.recorded
            else parse(resolve(shipped[step.name].text, plan.facts.schemas, step.name), step.name)
        )
        for step in applied
    }
    if plan.chunking == "server" and CHUNKER_FILE not in files and CHUNKER_FILE not in plan.known:
        (text,) = [s.text for s in release.privileged if s.name == CHUNKER_FILE]
        files[CHUNKER_FILE] = made_by(parse(text, CHUNKER_FILE))
    return files


def lone_statement(name: str, markers: Markers, statements: list[Statement]) -> None:
    """Check a file that cannot run in a transaction. Raises: Refused."""
    if markers.transaction:
        return
    if len(statements) != 1:
        raise Refused(
            f"{name} is marked -- transaction: no and holds {len(statements)} statements",
            hint="Keep one idempotent statement in it and move the rest to another migration.",
        )
    if statements[0].kind != "IndexStmt" and not markers.verify:
        raise Refused(
            f"{name} is marked -- transaction: no and does not say how to verify it",
            hint="Add -- verify: and a query that gives true once the statement has done its work.",
        )


# --------------------------------------------------------------------------------------------------------
# Applying


def migrate(conn: Connection, release: Release, options: Options, report: Report) -> Result:
    """Bring the database to the release. conn: autocommit, rows by name; nothing else may use it meanwhile.

    Raises: OperatorScript (nothing was changed), Refused, StatementFailed, TrechoError.
    """
    if not conn.autocommit:
        raise ValueError("migrate needs a connection in autocommit mode")
    conn.prepare_threshold = None  # every statement runs once; poolers in transaction mode stay possible
    if _scalar(conn, "SELECT pg_catalog.pg_is_in_recovery()"):
        raise TrechoError(
            "this server is a standby and cannot be migrated",
            hint="Connect to the primary; standbys follow it.",
        )
    conn.isolation_level = (
        IsolationLevel.READ_COMMITTED
    )  # the pending list must be seen after the lock is held
    conn.read_only = False
    job = _Job(release, options, report, Result(chunking="server"))
    for attempt in range(1, options.attempts + 1):
        try:
            while _run_segment(conn, job):
                pass
            return job.result
        except (StatementFailed, psycopg.Error) as error:
            if not _transient(error) or attempt == options.attempts:
                raise
            pause = 0.2 * 2**attempt
            report(
                f"a lock was not to be had ({error}); trying again in {pause:.1f} s"
                f" ({attempt} of {options.attempts})"
            )
            time.sleep(pause)
    raise AssertionError("unreachable")


def _transient(error: Exception) -> bool:
    """Whether the same run may succeed later: locks, and roles that another database makes at this moment."""
    cause = error.__cause__ if isinstance(error, StatementFailed) else error
    if isinstance(cause, errors.LockNotAvailable | errors.DeadlockDetected | errors.SerializationFailure):
        return True
    in_roles = isinstance(error, StatementFailed) and error.file.startswith("sql/privileged/")
    return in_roles and isinstance(cause, errors.InternalError_ | errors.UniqueViolation)


@contextmanager
def locked(conn: Connection, options: Options, report: Report) -> Iterator[None]:
    """A transaction that holds the lock of migrations.

    The wait polls: a session that waits inside a statement would hold a snapshot, and the CREATE INDEX
    CONCURRENTLY of the one it waits for would wait for that snapshot.
    """
    deadline = time.monotonic() + options.wait_ms / 1000
    told = False
    while True:
        with conn.transaction():
            for setting in SETTINGS:
                conn.execute(setting)
            if _scalar(conn, f"SELECT pg_catalog.pg_try_advisory_xact_lock({LOCK_KEY})"):
                yield
                return
            holder = _holder(conn)
        if time.monotonic() >= deadline:
            raise TrechoError(
                f"another migration has not ended in {options.wait_ms / 1000:.0f} s: {holder}",
                hint="Look at it in pg_stat_activity; run trecho migrate again when it has ended.",
            )
        if not told:
            report(f"waiting for another migration: {holder}")
            told = True
        time.sleep(0.1)


def _holder(conn: Connection) -> str:
    row = conn.execute(
        "SELECT a.pid, a.usename, a.application_name, a.client_addr"
        "  FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid"
        " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
        "   AND l.classid = %s AND l.objid = %s AND l.database ="
        "       (SELECT d.oid FROM pg_catalog.pg_database AS d"
        "         WHERE d.datname = pg_catalog.current_database())",
        ((LOCK_KEY >> 32) & 0xFFFFFFFF, LOCK_KEY & 0xFFFFFFFF),
    ).fetchone()
    if row is None:
        return "it has just ended"
    client = row["client_addr"] or "this machine"
    return f"pid {row['pid']}, role {row['usename']}, {row['application_name']} from {client}"


def _run_segment(conn: Connection, job: _Job) -> bool:
    """Run what is pending up to a statement that cannot run in a transaction.

    Returns: whether more may be pending.
    """
    release, options, result = job.release, job.options, job.result
    lone: Step | None = None
    with locked(conn, options, job.report):
        conn.execute(f"SET LOCAL lock_timeout = {options.lock_timeout_ms}")
        plan = make_plan(conn, release, options, probe=True)
        result.chunking = plan.chunking
        result.drift = plan.lasting_drift
        check(plan, release)
        if not plan.pending:
            return False
        privileged = [step for step in plan.steps if step.kind == "privileged"]
        done = [(step, _run(conn, step)) for step in privileged]
        facts = read_facts(conn)
        _check_done(facts, release, plan.chunking)
        conn.execute("SET LOCAL ROLE trecho_owner")
        _run_text(conn, RUNNER_TABLES)
        # Until pgvector is loaded in this session, SET hnsw.* on a function is refused.
        conn.execute(f"SELECT '[1]'::{quote_name(facts.schemas['vector'])}.vector")
        conn.execute(sql.SQL(REMEMBER_CHUNKING).format(sql.Literal(plan.chunking)))
        for step in plan.steps:
            if step.kind == "privileged":
                continue
            if not step.transaction:
                lone = step
                # Held by the session over the commit, so that nobody slips in between.
                conn.execute(f"SELECT pg_catalog.pg_advisory_lock({LOCK_KEY})")
                break
            if step.markers and step.markers.needs_operator:
                with _as_operator(conn):
                    done.append((step, _run(conn, step)))
            else:
                done.append((step, _run(conn, step)))
        else:
            conn.execute(FIRST_VERSION)
        for step, duration_ms in done:
            _record(conn, step, release, duration_ms)
        _forget_sql(conn, release)
        conn.execute(note_objects(_files_made([step for step, _ in done], plan, release), release).encode())
    for step, duration_ms in done:
        result.applied.append((step.name, step.kind, duration_ms))
        job.report(f"applied {step.name} ({duration_ms} ms)")
    if lone is None:
        return False
    try:
        _run_lone(conn, lone, job)
    finally:
        if not conn.closed:
            conn.execute(f"SELECT pg_catalog.pg_advisory_unlock({LOCK_KEY})")
    return True


@contextmanager
def _as_operator(conn: Connection) -> Iterator[None]:
    conn.execute("RESET ROLE")
    yield
    conn.execute("SET LOCAL ROLE trecho_owner")


def check(plan: Plan, release: Release) -> None:
    """Refuse a plan that must not run. Raises: Refused, ClientTooOld, OperatorScript."""
    if plan.facts.extension is not None:
        raise Refused(
            f"database {plan.facts.database!r} was set up with CREATE EXTENSION trecho (version"
            f" {plan.facts.extension})",
            hint="Upgrade it with ALTER EXTENSION trecho UPDATE; trecho migrate is for databases without the"
            " extension.",
        )
    if plan.problems:
        raise Refused(
            plan.problems[0],
            detail="\n".join(f"also: {problem}" for problem in plan.problems[1:]),
            hint="Restore the file as it was released and put the change into a new migration;"
            " where the database is of a newer release, upgrade this client.",
        )
    ahead = plan.facts.chunker_version
    if plan.chunking == "server" and ahead is not None and ahead > release.chunker_version:
        raise ClientTooOld(
            f"this database has chunkers of version {ahead}, and this client ships version"
            f" {release.chunker_version}",
            hint="Upgrade this client; an older release must not put its chunkers back.",
        )
    if plan.operator_needs:
        raise OperatorScript(plan.operator_needs, script_for_operator(plan, release))


def script_for_operator(plan: Plan, release: Release) -> str:
    """What a superuser runs so that the role of the plan can go on."""
    if any(need.code == "migration_needs_operator" for need in plan.needs):
        return script(plan, release)
    return operator_script(release, plan.facts, plan.chunking, plan.needs)


def _check_done(facts: Facts, release: Release, chunking: str) -> None:
    left = find_needs(facts, release, chunking)
    if left:
        raise TrechoError(
            f"the privileged layer ran and still lacks: {left[0].message}",
            detail="\n".join(f"also: {need.message}" for need in left[1:]),
            hint="Nothing was changed. This is a defect of trecho: report it.",
        )


def _run(conn: Connection, step: Step) -> int:
    """Run a file inside the transaction. Returns milliseconds."""
    started = time.perf_counter()
    for item in step.restores:
        if item.what == "altered":
            conn.execute(item.clearance.encode())
    for statement in step.statements:
        try:
            conn.execute(statement.text.encode())
        except psycopg.Error as error:
            raise StatementFailed(statement, error, changed="Nothing was changed.") from error
    return round((time.perf_counter() - started) * 1000)


def _run_text(conn: Connection, text: str) -> None:
    conn.execute(text.encode())


def _record(conn: Connection, step: Step, release: Release, duration_ms: int) -> None:
    if not step.recorded:
        return
    values = (step.name, step.kind, step.checksum, release.version, duration_ms)
    conn.execute(sql.SQL(RECORD).format(*(sql.Literal(value) for value in values)))


def _forget_sql(conn: Connection, release: Release) -> None:
    """Rows of function files that are no longer shipped: the objects themselves go by a migration."""
    names = [source.name for source in release.behaviour]
    conn.execute("DELETE FROM trecho.schema_migrations WHERE kind = 'sql' AND name <> ALL (%s)", (names,))


def _run_lone(conn: Connection, step: Step, job: _Job) -> None:
    """Run a statement that cannot run in a transaction, verify it, record it."""
    statement = step.statements[0]
    assert step.markers is not None
    settings = [setting.replace("SET LOCAL ", "SET ") for setting in SETTINGS]
    settings += [f"SET lock_timeout = {job.options.lock_timeout_ms}"]
    if not step.markers.needs_operator:
        settings.append("SET ROLE trecho_owner")
    started = time.perf_counter()
    try:
        for setting in settings:
            conn.execute(setting)
        index = _index_name(statement)
        if index and _scalar(conn, _INDEX_VALID.format(quote_text(index))) is False:
            # Left by a run that was killed; IF NOT EXISTS would take it for done.
            conn.execute(f"DROP INDEX CONCURRENTLY {index}")
        try:
            conn.execute(statement.text.encode())
        except psycopg.Error as error:
            raise StatementFailed(
                statement, error, changed="What precedes this file is applied; run trecho migrate again."
            ) from error
        verified = _scalar(conn, step.markers.verify or _INDEX_VALID.format(quote_text(index or "")))
        if verified is not True:
            raise TrechoError(
                f"{step.name} ran, and its verification fails",
                detail=step.markers.verify or f"index {index} is missing or invalid",
                hint="What precedes this file is applied; run trecho migrate again.",
            )
    finally:
        if not conn.closed:
            conn.execute("RESET ALL")
            conn.execute("RESET ROLE")
    duration_ms = round((time.perf_counter() - started) * 1000)
    with conn.transaction():
        conn.execute("SET LOCAL ROLE trecho_owner")
        _record(conn, step, job.release, duration_ms)
    job.result.applied.append((step.name, step.kind, duration_ms))
    job.report(f"applied {step.name} ({duration_ms} ms, outside a transaction)")


# No row where the index does not exist.
_INDEX_VALID = (
    "SELECT i.indisvalid FROM pg_catalog.pg_index AS i WHERE i.indexrelid = pg_catalog.to_regclass({0})"
)


def _index_name(statement: Statement) -> str | None:
    node = statement.node
    if statement.kind != "IndexStmt" or not node.idxname:
        return None
    schema = node.relation.schemaname
    return ".".join(quote_name(part) for part in (schema, node.idxname) if part)


# --------------------------------------------------------------------------------------------------------
# Scripts


def script(plan: Plan, release: Release) -> str:
    """The whole of what is pending, for psql. It refuses to run on a database that has moved on since."""
    facts = plan.facts
    role = quote_name(facts.role)
    lines = [
        f"-- trecho {release.version}: {len(plan.steps)} files for database {facts.database}"
        f" on server {facts.server}.",
        f"--   psql -v ON_ERROR_STOP=1 -d {facts.database} -f THIS_FILE",
        "-- sql/privileged/ needs a superuser; the rest runs as trecho_owner.",
    ]
    lines = [" ".join(line.split()) if "psql" not in line else line for line in lines]
    lines += _opening(plan)
    for step in plan.steps:
        if step.kind == "privileged":
            lines.append(f"-- {step.name}")
            lines += [f"{item.clearance};" for item in step.restores if item.what == "altered"]
            lines.append(step.text.rstrip("\n"))
            if step.name.endswith("10_roles.sql") and not facts.superuser:
                lines.append(f"GRANT trecho_owner TO {role};  -- the role that migrates")
    lines += [
        "SET LOCAL ROLE trecho_owner;",
        RUNNER_TABLES.strip(),
        "-- Loads pgvector, without which SET hnsw.* on a function is refused.",
        f"SELECT '[1]'::{quote_name(facts.schemas['vector'])}.vector;",
        REMEMBER_CHUNKING.strip().format(quote_text(plan.chunking)) + ";",
    ]
    for step in plan.steps:
        lines.append(f"-- {step.name}")
        if step.kind != "privileged":
            lines += [f"{item.clearance};" for item in step.restores if item.what == "altered"]
            if not step.transaction:
                lines += ["COMMIT;", "SET ROLE trecho_owner;", step.text.rstrip("\n"), "RESET ROLE;"]
                lines += ["BEGIN;", *(f"{s};" for s in SETTINGS), "SET LOCAL ROLE trecho_owner;"]
            elif step.markers and step.markers.needs_operator:
                lines += ["RESET ROLE;", step.text.rstrip("\n"), "SET LOCAL ROLE trecho_owner;"]
            else:
                lines.append(step.text.rstrip("\n"))
        if not step.recorded:
            continue
        values = [quote_text(v) for v in (step.name, step.kind, step.checksum, release.version)]
        lines.append(RECORD.strip().format(*values, "NULL") + ";")
    lines += [note_objects(_files_made(plan.steps, plan, release), release) + ";"]
    lines += [FIRST_VERSION.strip() + ";", "COMMIT;", ""]
    return "\n".join(lines)


def _opening(plan: Plan) -> list[str]:
    ran = sorted(f"{row.name}:{row.checksum}" for row in plan.applied.values() if row.kind == "migration")
    return [
        "BEGIN ISOLATION LEVEL READ COMMITTED;",
        *(f"{setting};" for setting in SETTINGS),
        f"SELECT pg_catalog.pg_advisory_xact_lock({LOCK_KEY});",
        "DO $do$",
        "DECLARE v_ran text := '';",
        "BEGIN",
        "    IF pg_catalog.to_regclass('trecho.schema_migrations') IS NOT NULL THEN",
        "        SELECT coalesce(pg_catalog.string_agg(m.name || ':' || m.checksum, ','",
        "                                              ORDER BY m.name COLLATE pg_catalog.\"C\"), '')",
        "          INTO v_ran FROM trecho.schema_migrations AS m WHERE m.kind = 'migration';",
        "    END IF;",
        f"    IF v_ran <> {quote_text(','.join(ran))} THEN",
        "        RAISE EXCEPTION 'other migrations have run in this database than when this script was made'",
        "            USING HINT = 'Make it again with trecho migrate --sql.';",
        "    END IF;",
        "END",
        "$do$;",
    ]
