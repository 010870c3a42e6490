"""Fixtures of all tests: a real server, a template database migrated once a run, a clone for each test."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, sql
from psycopg.rows import DictRow, dict_row
from pytest_postgresql.janitor import DatabaseJanitor
from support import ROOT, Connection, Ran, Server

from trecho import cli, resources, secrets_gate


def _server_dsn() -> str:
    """TRECHO_TEST_DSN, else the server of this checkout, which is started; never TRECHO_DSN."""
    given = os.environ.get("TRECHO_TEST_DSN")
    if given:
        return given
    started = subprocess.run(
        [str(ROOT / "scripts" / "server.sh"), "start"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    lines = started.stdout.split()
    if started.returncode or not lines:
        raise pytest.UsageError(
            f"no PostgreSQL to test on: make server failed:\n{started.stderr}\n"
            "Set TRECHO_TEST_DSN to a superuser's DSN to use another server."
        )
    return lines[-1]


# Another way to set databases up (docs/managed.md): chunks cut in the client; vector and unaccent in a schema of that name,
# and connections with an empty search_path.
CHUNKING = os.environ.get("TRECHO_TEST_CHUNKING", "server")
EXTENSION_SCHEMA = os.environ.get("TRECHO_TEST_EXTENSION_SCHEMA", "")


def dsn_of(server: Server, dbname: str) -> str:
    """DSN of a migrated database."""
    options = {"options": "-c search_path="} if EXTENSION_SCHEMA else {}
    return conninfo.make_conninfo(server.dsn, dbname=dbname, **options)


_SERVER: list[Server] = []


def the_server() -> Server:
    """The server of this run, found once."""
    if not _SERVER:
        _SERVER.append(Server(_server_dsn()))
    return _SERVER[0]


def pytest_report_header() -> str:
    """Which server and Python the results are about."""
    with the_server().connect() as conn:
        row = conn.execute("SELECT current_setting('server_version') AS version").fetchone()
    info = conninfo.conninfo_to_dict(the_server().dsn)
    place = f"{info.get('host')}:{info.get('port')}"
    return f"PostgreSQL {row and row['version']} at {place}, Python {sys.version.split()[0]}"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server under test, superuser."""
    server = the_server()
    if os.environ.get("TRECHO_TEST_DSN"):
        yield server
        return
    # The private server of a checkout holds nothing that cannot be made again, and dropping a database without
    # fsync takes a tenth of the time. Somebody else's server keeps its settings.
    with server.connect(autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET fsync = off")
        conn.execute("SELECT pg_reload_conf()")
        yield server
        conn.execute("ALTER SYSTEM RESET fsync")
        conn.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="session")
def run_name(server: Server) -> Iterator[str]:
    """Prefix of every database and role of this run: two runs at once, of any checkouts, do not collide."""
    checkout = f"trecho_test_{hashlib.sha256(str(ROOT).encode()).hexdigest()[:4]}"
    name = f"{checkout}_{uuid.uuid4().hex[:8]}"
    with server.connect(autocommit=True, application_name=name) as conn:  # open as long as the run lives
        _sweep(server, conn, checkout)
        yield name


def _sweep(server: Server, conn: Connection, checkout: str) -> None:
    """Drop what runs of this checkout left behind that were killed."""
    rows = conn.execute(
        """
        SELECT d.datname FROM pg_database AS d
         WHERE starts_with(d.datname, %s)
           AND (pg_stat_file('base/' || d.oid || '/PG_VERSION', true)).modification < now() - interval '2 hours'
           AND NOT EXISTS (SELECT FROM pg_stat_activity AS a
                            WHERE a.application_name <> '' AND starts_with(d.datname, a.application_name))
        """,
        (f"{checkout}_",),
    ).fetchall()
    for row in rows:
        with suppress(psycopg.Error):  # another process of this run sweeps, too
            server.janitor(row["datname"]).drop()


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[resources.Release]:
    """The release as it was when the run began; commands run in this process use it, whatever is edited meanwhile."""
    release = copy_release(tmp_path_factory.mktemp("shipped"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "current", lambda: release)
        yield release


def copy_release(root: Path) -> resources.Release:
    """Copy what this checkout ships to an empty folder."""
    for folder in ("migrations", "sql", "plpython/trecho_chunkers"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return resources.Release(root, root / "plpython/trecho_chunkers")


@pytest.fixture(scope="session")
def template(server: Server, run_name: str, shipped: resources.Release) -> Iterator[str]:
    """Name of a database that the real runner has migrated, to be cloned."""
    name = f"{run_name}_template"
    with server.janitor(name):
        dsn = dsn_of(server, name)
        if EXTENSION_SCHEMA:
            with server.connect(name, autocommit=True) as conn:
                schema = sql.Identifier(EXTENSION_SCHEMA)
                conn.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
                for extension in ("vector", "unaccent"):
                    conn.execute(
                        sql.SQL("CREATE EXTENSION {} SCHEMA {}").format(sql.Identifier(extension), schema)
                    )
        ran = run_cli("migrate", "--chunking", CHUNKING, "--dsn", dsn)
        if ran.code:
            pytest.exit(f"trecho migrate failed on the template database:\n{ran.err}", returncode=1)
        yield name


class Bin:
    """Databases to drop, many at a time: each DROP waits for a checkpoint, and the first pays for all."""

    def __init__(self) -> None:
        self.janitors: list[DatabaseJanitor] = []
        self.kept: list[DatabaseJanitor] = []

    def add(self, janitor: DatabaseJanitor) -> None:
        self.janitors.append(janitor)
        if len(self.janitors) >= 24:
            self.empty()

    def empty(self) -> None:
        while self.janitors:
            self.janitors.pop().drop()


@pytest.fixture(scope="session")
def waste_bin() -> Iterator[Bin]:
    """Dropped now and then, and at the end of the run."""
    waste = Bin()
    yield waste
    waste.janitors += waste.kept
    waste.empty()


@pytest.fixture
def make_database(server: Server, run_name: str, waste_bin: Bin) -> Iterator[Callable[..., str]]:
    """Function that makes a database (options of DatabaseJanitor) and gives its DSN; dropped later."""
    janitors: list[DatabaseJanitor] = []

    def make(**options: Any) -> str:
        janitor = server.janitor(f"{run_name}_{uuid.uuid4().hex[:8]}", **options)
        janitor.init()
        janitors.append(janitor)
        if "template_dbname" in options:
            return dsn_of(server, janitor.dbname)
        return conninfo.make_conninfo(server.dsn, dbname=janitor.dbname)

    yield make
    for janitor in janitors:
        waste_bin.add(janitor)


@pytest.fixture(scope="session")
def shared_dsn(server: Server, run_name: str, template: str) -> Iterator[str]:
    """DSN (superuser) of one clone for all tests that commit nothing."""
    name = f"{run_name}_shared"
    with server.janitor(name, template_dbname=template):
        yield dsn_of(server, name)


@pytest.fixture
def shared_db(shared_dsn: str) -> Iterator[Connection]:
    """A connection (superuser, rows by name) whose transaction is rolled back; faster."""
    with psycopg.Connection[DictRow].connect(shared_dsn, row_factory=dict_row) as conn:
        yield conn
        conn.rollback()


@pytest.fixture
def empty_dsn(make_database: Callable[..., str]) -> str:
    """DSN (superuser) of a database in which nothing is prepared."""
    return make_database()


@pytest.fixture
def dsn(make_database: Callable[..., str], template: str) -> str:
    """DSN (superuser) of a fresh clone of the migrated template."""
    return make_database(template_dbname=template)


@pytest.fixture
def db(dsn: str) -> Iterator[Connection]:
    """A connection (superuser, rows by name, a transaction at the first statement) to a fresh clone."""
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row) as conn:
        yield conn


@pytest.fixture
def make_role(server: Server, run_name: str) -> Iterator[Callable[..., str]]:
    """Function that makes a login role, given roles to be member of and options such as CREATEROLE.

    Gives its name; dropped after the test with what it owns in databases that still exist.
    """
    roles: list[str] = []
    password = conninfo.conninfo_to_dict(server.dsn).get("password")  # so that as_role() can log in

    def make(*member_of: str, options: str = "") -> str:
        name = f"{run_name}_r{len(roles)}_{uuid.uuid4().hex[:6]}"
        with server.connect(autocommit=True) as conn:
            conn.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} {}").format(
                    sql.Identifier(name), sql.Literal(password), sql.SQL(options)
                )
            )
            roles.append(name)
            for group in member_of:
                conn.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), sql.Identifier(name)))
        return name

    yield make
    with server.connect(autocommit=True) as conn:
        for name in roles:
            for row in conn.execute(
                "SELECT DISTINCT d.datname FROM pg_shdepend AS s JOIN pg_database AS d ON d.oid = s.dbid"
                " JOIN pg_roles AS r ON r.oid = s.refobjid WHERE r.rolname = %s",
                (name,),
            ).fetchall():
                with server.connect(row["datname"], autocommit=True) as inside:
                    inside.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
            conn.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def plain_role(make_role: Callable[..., str]) -> str:
    """A login role with no rights of its own."""
    return make_role()


def run_cli(*args: str) -> Ran:
    """Run the command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main(list(args))
    return Ran(int(code), out.getvalue(), err.getvalue())


@pytest.fixture
def trecho(monkeypatch: pytest.MonkeyPatch, shipped: resources.Release) -> Callable[..., Ran]:
    """Run the command in this process: trecho("search", "prazo", dsn=dsn) gives exit code, stdout, stderr."""
    monkeypatch.delenv("TRECHO_DSN", raising=False)

    def run(*args: str, dsn: str | None = None) -> Ran:
        return run_cli(*args, *(("--dsn", dsn) if dsn else ()))

    return run


@pytest.fixture
def trecho_process() -> Callable[..., Ran]:
    """The same in a process of its own, with `env` added to the environment."""

    def run(
        *args: str, dsn: str | None = None, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> Ran:
        environment = {k: v for k, v in os.environ.items() if k != "TRECHO_DSN"} | (env or {})
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "plpython")])
        done = subprocess.run(
            [sys.executable, "-m", "trecho", *args, *(("--dsn", dsn) if dsn else ())],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd or ROOT,
            env=environment,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(autouse=True)
def nothing_scanned_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is a process of its own to the secret scan, which remembers what it has found harmless."""
    monkeypatch.setattr(secrets_gate, "_harmless", set())
