"""`trecho uninstall`: what it asks, what it removes, what it leaves."""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from conftest import run_cli
from psycopg import conninfo, sql
from psycopg.rows import dict_row
from support import ROOT, Connection, Ran, as_role
from test_migrate import objects

sys.path.insert(0, str(ROOT / "tests" / "server"))
from servers import PrivateServer

from trecho.privileged import ROLES


def connect(dsn: str) -> Connection:
    return psycopg.Connection.connect(dsn, autocommit=True, row_factory=dict_row)


def name_of(dsn: str) -> str:
    return str(conninfo.conninfo_to_dict(dsn)["dbname"])


def put(dsn: str, count: int = 1) -> None:
    with connect(dsn) as conn:
        for number in range(count):
            conn.execute("SELECT trecho.put_document('docs', '# Um', %s)", (f"{number}.md",))


@pytest.mark.parametrize("documents", [0, 1, 3])
def test_uninstall__without_confirmation_names_what_would_be_lost_and_changes_nothing(trecho, dsn, documents):
    put(dsn, documents)
    before = objects(dsn)
    ran = trecho("uninstall", dsn=dsn)
    assert (ran.code, ran.out) == (4, "")
    plural = "" if documents == 1 else "s"
    assert f"error: not confirmed: {documents} document{plural} of database '{name_of(dsn)}'" in ran.err
    assert ("exist only here" in ran.err) == (documents > 0)
    assert f"trecho uninstall --yes {name_of(dsn)}" in ran.err
    assert objects(dsn) == before


def test_uninstall__name_of_another_database_is_refused(trecho, dsn):
    before = objects(dsn)
    ran = trecho("uninstall", "--yes", "another", dsn=dsn)
    assert ran.code == 2
    assert f"error: this is database '{name_of(dsn)}'" in ran.err
    assert objects(dsn) == before


def test_uninstall__leaves_the_catalog_as_before_trecho_migrate(trecho, empty_dsn):
    with connect(empty_dsn) as conn:
        conn.execute("CREATE EXTENSION vector; CREATE EXTENSION unaccent; CREATE EXTENSION plpython3u")
    before = objects(empty_dsn)
    assert trecho("migrate", dsn=empty_dsn).code == 0
    put(empty_dsn, 2)
    assert len(objects(empty_dsn) - before) > 300
    ran = trecho("uninstall", "--json", "--yes", name_of(empty_dsn), dsn=empty_dsn)
    report = json.loads(ran.out)
    assert (ran.code, report["way"], report["documents"]) == (0, "migrate", 2)
    assert objects(empty_dsn) == before
    assert trecho("migrate", dsn=empty_dsn).code == 0


def test_uninstall__leaves_extensions_and_their_schema_as_they_were(trecho, empty_dsn):
    """trecho migrate lets the roles use a schema that is not open to all; that goes too."""
    with connect(empty_dsn) as conn:
        conn.execute("CREATE SCHEMA extensions; CREATE EXTENSION vector SCHEMA extensions")
        conn.execute("CREATE EXTENSION unaccent SCHEMA extensions; CREATE EXTENSION plpython3u")
    assert trecho("migrate", dsn=empty_dsn).code == 0
    assert trecho("uninstall", "--yes", name_of(empty_dsn), dsn=empty_dsn).code == 0
    with connect(empty_dsn) as conn:
        rows = conn.execute("SELECT extname FROM pg_extension ORDER BY 1").fetchall()
        assert [row["extname"] for row in rows] == ["plpgsql", "plpython3u", "unaccent", "vector"]


def test_uninstall__second_time_there_is_nothing_to_do(trecho, dsn):
    assert trecho("uninstall", "--yes", name_of(dsn), dsn=dsn).code == 0
    for args in ([], ["--yes", name_of(dsn)]):
        ran = trecho("uninstall", *args, dsn=dsn)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith("nothing to do: database")


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("CREATE VIEW public.way AS SELECT trecho.chunking() AS way", "view public.way"),
        ("CREATE TABLE public.mine (scope trecho.chunk_scope, note text)", "table column public.mine.scope"),
        ("CREATE TABLE public.mine (id bigint REFERENCES trecho.documents)", "table constraint"),
        ("CREATE TABLE public.mine (id bigint DEFAULT nextval('trecho.revision_seq'))", "default value"),
        (
            "CREATE FUNCTION public.mine(trecho.documents) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
            "function public.mine(trecho.documents)",
        ),
    ],
    ids=["view", "column", "foreign key", "default", "function"],
)
def test_uninstall__what_others_built_on_it_is_named_and_goes_only_when_told(trecho, dsn, made, told):
    with connect(dsn) as conn:
        conn.execute(made)
    before = objects(dsn)
    ran = trecho("uninstall", "--yes", name_of(dsn), dsn=dsn)
    assert ran.code == 4
    assert f"error: others have built on trecho in database '{name_of(dsn)}': " in ran.err
    assert told in ran.err
    assert objects(dsn) == before
    ran = trecho("uninstall", "--yes", name_of(dsn), "--cascade", dsn=dsn)
    assert ran.code == 0, ran.err
    assert told in ran.out
    with connect(dsn) as conn:
        assert conn.execute("SELECT FROM pg_namespace WHERE nspname = 'trecho'").fetchall() == []


def test_uninstall__the_role_that_migrates_may_do_it(trecho, dsn, make_role):
    ran = trecho("uninstall", "--yes", name_of(dsn), dsn=as_role(dsn, make_role("trecho_owner")))
    assert ran.code == 0, ran.err
    with connect(dsn) as conn:
        assert conn.execute("SELECT FROM pg_namespace WHERE nspname = 'trecho'").fetchall() == []


def test_uninstall__another_role_is_told_what_a_superuser_must_run(trecho, dsn, plain_role):
    before = objects(dsn)
    ran = trecho("uninstall", "--yes", name_of(dsn), dsn=as_role(dsn, plain_role))
    assert ran.code == 3
    assert f"role '{plain_role}' may not drop schema trecho" in ran.err
    assert "DROP SCHEMA trecho CASCADE" in ran.err
    assert objects(dsn) == before


def test_uninstall__schema_of_somebody_else_is_left_alone(trecho, empty_dsn):
    with connect(empty_dsn) as conn:
        conn.execute("CREATE SCHEMA trecho; CREATE TABLE trecho.documents (id int)")
    before = objects(empty_dsn)
    ran = trecho("uninstall", "--yes", name_of(empty_dsn), dsn=empty_dsn)
    assert ran.code == 4 and "not to trecho_owner" in ran.err
    assert objects(empty_dsn) == before


def test_uninstall__table_in_use_stops_it_with_nothing_changed(trecho, dsn):
    before = objects(dsn)
    with connect(dsn) as reader:
        reader.autocommit = False
        reader.execute("SELECT count(*) FROM trecho.documents")
        ran = trecho("uninstall", "--yes", name_of(dsn), "--lock-timeout", "0.1", dsn=dsn)
        reader.rollback()
    assert ran.code == 1
    assert "somebody uses the tables of trecho" in ran.err
    assert objects(dsn) == before


def test_uninstall__roles_that_another_database_uses_stay(trecho, dsn, template):
    ran = trecho("uninstall", "--json", "--yes", name_of(dsn), dsn=dsn)
    report = json.loads(ran.out)
    assert report["roles_removed"] == []
    assert report["roles_kept"] == list(ROLES)
    assert "in use in " in report["roles_reason"]


# ---- roles, on a server where nothing else is --------------------------------------------------------------


@pytest.fixture(scope="module")
def lonely() -> Iterator[str]:
    """DSN of a private server on which no other database uses the roles."""
    server = PrivateServer(f"test-{uuid.uuid4().hex[:8]}")
    try:
        yield server.start()
    finally:
        server.run("clean")


@pytest.fixture
def lonely_dsn(lonely: str) -> str:
    """DSN of a new database there."""
    name = f"d_{uuid.uuid4().hex[:8]}"
    with connect(lonely) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return conninfo.make_conninfo(lonely, dbname=name)


@pytest.fixture
def cli(shipped: Any) -> Callable[..., Ran]:
    return run_cli


def roles(dsn: str) -> list[str]:
    with connect(dsn) as conn:
        return [
            row["rolname"]
            for row in conn.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'trecho%'")
        ]


@pytest.mark.slow
def test_uninstall__roles_go_when_nothing_else_uses_them(cli, lonely_dsn):
    with connect(lonely_dsn) as conn:
        conn.execute("CREATE SCHEMA extensions; CREATE EXTENSION vector SCHEMA extensions")
        conn.execute("CREATE EXTENSION unaccent SCHEMA extensions; CREATE EXTENSION plpython3u")
    before = objects(lonely_dsn)
    assert cli("migrate", "--dsn", lonely_dsn).code == 0
    assert set(roles(lonely_dsn)) == set(ROLES)
    ran = cli("uninstall", "--yes", name_of(lonely_dsn), "--dsn", lonely_dsn)
    assert ran.code == 0, ran.err
    assert f"removed roles {', '.join(ROLES)}" in ran.out
    assert roles(lonely_dsn) == []
    # A schema whose rights were given and taken back names its owner's, which it did not before.
    changed = {item[:3] for item in objects(lonely_dsn) ^ before}
    assert {name for _, _, name in changed} <= {"extensions"}


@pytest.mark.slow
def test_uninstall__roles_with_members_stay_and_the_members_are_named(cli, lonely_dsn):
    assert cli("migrate", "--dsn", lonely_dsn).code == 0
    with connect(lonely_dsn) as conn:
        conn.execute("CREATE ROLE app; GRANT trecho_reader TO app")
    ran = cli("uninstall", "--yes", name_of(lonely_dsn), "--dsn", lonely_dsn)
    assert ran.code == 0
    assert "others are members: app of trecho_reader" in ran.out
    assert set(roles(lonely_dsn)) == set(ROLES)
    with connect(lonely_dsn) as conn:
        conn.execute("DROP ROLE app")
    again = cli("uninstall", "--yes", name_of(lonely_dsn), "--dsn", lonely_dsn)
    assert f"removed roles {', '.join(ROLES)}" in again.out
    assert roles(lonely_dsn) == []


@pytest.mark.slow
def test_uninstall__keep_roles_leaves_them(cli, lonely_dsn):
    assert cli("migrate", "--dsn", lonely_dsn).code == 0
    assert cli("uninstall", "--keep-roles", "--yes", name_of(lonely_dsn), "--dsn", lonely_dsn).code == 0
    assert set(roles(lonely_dsn)) == set(ROLES)
    assert cli("uninstall", "--yes", name_of(lonely_dsn), "--dsn", lonely_dsn).code == 0
    assert roles(lonely_dsn) == []


@pytest.mark.slow
def test_migrate__five_databases_at_once_in_a_cluster_without_the_roles(lonely, shipped):
    """Roles belong to the cluster: each migration finds them missing, and one alone makes them."""
    from trecho import runner

    for _ in range(3):
        names = [f"m_{uuid.uuid4().hex[:8]}" for _ in range(5)]
        with connect(lonely) as conn:
            for name in names:
                conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        dsns = [conninfo.make_conninfo(lonely, dbname=name) for name in names]
        assert roles(lonely) == []
        barrier = threading.Barrier(len(dsns))

        def one(dsn: str, barrier: threading.Barrier = barrier) -> int:
            with connect(dsn) as conn:
                barrier.wait()
                return len(runner.migrate(conn, shipped, runner.Options(), lambda text: None).applied)

        with ThreadPoolExecutor(len(dsns)) as pool:
            applied = list(pool.map(one, dsns))
        assert len(set(applied)) == 1 and applied[0] > 20
        removed = [run_cli("uninstall", "--yes", name_of(dsn), "--dsn", dsn) for dsn in dsns]
        assert [ran.code for ran in removed] == [0] * len(dsns)
        assert roles(lonely) == []
