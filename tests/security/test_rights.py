"""What plain roles may do: the functions of their group and nothing else, whatever their search_path holds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psycopg
import pytest
from psycopg import sql
from psycopg.rows import DictRow, dict_row
from support import Connection, as_role

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.load import Passage, Source, load

TEXT = "# Guia\n\n## Backup\n\nO backup noturno usa pg_basebackup.\n"
HOSTILE = """
CREATE SCHEMA hostil;
CREATE FUNCTION hostil.lower(text) RETURNS text LANGUAGE sql AS $$ SELECT 'sequestrado' $$;
CREATE FUNCTION hostil.sha256(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT '\\x00'::bytea $$;
CREATE FUNCTION hostil.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'epoch'::timestamptz $$;
CREATE FUNCTION hostil.coalesce_trap(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'sequestrado'; END $$;
CREATE OPERATOR hostil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostil.coalesce_trap);
CREATE TABLE hostil.documents (x integer);
CREATE TABLE hostil.pg_class (x integer);
GRANT USAGE ON SCHEMA hostil TO PUBLIC;
"""


# What no group may do: leave something in the schema, or become somebody else.
FORBIDDEN = (
    "CREATE TABLE trecho.mine (x integer)",
    "CREATE FUNCTION trecho.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "CREATE OR REPLACE FUNCTION trecho.chunking() RETURNS text LANGUAGE sql AS 'SELECT 1'",
    "CREATE VIEW trecho.mine AS SELECT 1",
    "CREATE FUNCTION pg_temp.mine() RETURNS integer LANGUAGE plpython3u AS 'return 1'",
    "ALTER TABLE trecho.chunks ADD COLUMN mine integer",
    "ALTER FUNCTION trecho.chunking() RESET search_path",
    "DROP TABLE trecho.documents",
    "DROP SCHEMA trecho CASCADE",
    "CREATE TRIGGER mine BEFORE INSERT ON trecho.documents FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "GRANT SELECT ON trecho.documents TO PUBLIC",
    "SET ROLE trecho_owner",
    "SET SESSION AUTHORIZATION trecho_owner",
)


def call_of(function: DictRow) -> str:
    """A call of exactly this function, with NULL for every argument."""
    arguments = ", ".join(f"NULL::{name}" for name in function["types"])
    return f"SELECT trecho.{function['short']}({arguments})"


def connect(dsn: str, role: str) -> Connection:
    return psycopg.Connection[DictRow].connect(as_role(dsn, role), row_factory=dict_row, autocommit=True)


@pytest.fixture
def hostile_dsn(dsn: str) -> str:
    """A database with a schema of look-alikes, first in everybody's search_path, and one document."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(HOSTILE)
        conn.execute("SELECT trecho.put_document('docs', %s, source_path => 'a.md')", (TEXT,))
        name = conn.info.dbname
        conn.execute(
            sql.SQL("ALTER DATABASE {} SET search_path = hostil, trecho, pg_catalog").format(
                sql.Identifier(name)
            )
        )
    return dsn


def test_reader__runs_the_reader_functions_and_nothing_else_of_the_catalog(
    hostile_dsn: str, make_role: Callable[..., str]
) -> None:
    reader = make_role("trecho_reader")
    with psycopg.Connection[DictRow].connect(hostile_dsn, row_factory=dict_row, autocommit=True) as conn:
        granted = {
            r["name"]
            for r in conn.execute(
                "SELECT p.oid::regprocedure::text AS name FROM pg_catalog.pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a"
                " WHERE p.pronamespace OPERATOR(pg_catalog.=) 'trecho'::regnamespace AND a.grantee IN ('trecho_reader'::regrole, 0)"
            ).fetchall()
        }
        allowed = {
            r["name"]
            for r in conn.execute(
                "SELECT p.oid::regprocedure::text AS name FROM pg_catalog.pg_proc AS p"
                " WHERE p.pronamespace OPERATOR(pg_catalog.=) 'trecho'::regnamespace AND has_function_privilege(%s, p.oid, 'EXECUTE')",
                (reader,),
            ).fetchall()
        }
        relations = conn.execute(
            "SELECT c.oid::regclass::text AS name, c.relkind::text AS kind FROM pg_catalog.pg_class AS c"
            " WHERE c.relnamespace OPERATOR(pg_catalog.=) 'trecho'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')"
        ).fetchall()
        denied = conn.execute(
            "SELECT p.oid::regprocedure::text AS name, p.proname AS short,"
            "       ARRAY(SELECT pg_catalog.format_type(t, NULL) FROM unnest(p.proargtypes) AS t) AS types"
            "  FROM pg_catalog.pg_proc AS p WHERE p.pronamespace OPERATOR(pg_catalog.=) 'trecho'::regnamespace"
            "   AND NOT has_function_privilege(%s, p.oid, 'EXECUTE')",
            (reader,),
        ).fetchall()
    assert allowed == granted and len(allowed) > 10 and len(denied) > 40
    with connect(hostile_dsn, reader) as conn:
        rows = conn.execute("SELECT * FROM trecho.search('backup', mode => 'lexical')").fetchall()
        assert [r["source_path"] for r in rows] == ["a.md"]
        assert conn.execute("SELECT doc_id FROM trecho.list_documents()").fetchall() == [{"doc_id": "a.md"}]
        resolved = conn.execute("SELECT state FROM trecho.resolve(%s)", (rows[0]["chunk_id"],)).fetchone()
        assert resolved == {"state": "live"}
        health = conn.execute("SELECT usable FROM trecho.index_health()").fetchone()
        assert health == {"usable": True}
        for relation in relations:
            if relation["name"].endswith("metrics"):  # a view that shows the caller's projects alone
                assert conn.execute("SELECT * FROM trecho.metrics").fetchall()
                continue
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(f"SELECT * FROM {relation['name']}".encode())
            if relation["kind"] in ("r", "p"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(f"DELETE FROM {relation['name']}".encode())
        for function in denied:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(call_of(function).encode())
        for statement in FORBIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement.encode())


@pytest.mark.parametrize("group", ["", "trecho_reader", "trecho_writer", "trecho_operator"])
def test_group__may_run_what_is_granted_to_it_and_every_other_object_is_refused(
    dsn: str, make_role: Callable[..., str], group: str
) -> None:
    role = make_role(*([group] if group else []))
    holds = {
        "": set(),
        "trecho_reader": {"trecho_reader"},
        "trecho_writer": {"trecho_reader", "trecho_writer"},
        "trecho_operator": {"trecho_reader", "trecho_writer", "trecho_operator"},
    }[group]
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, autocommit=True) as conn:
        functions = conn.execute(
            "SELECT p.oid::regprocedure::text AS name, p.proname AS short,"
            "       ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) AS t) AS types,"
            "       has_function_privilege(%s, p.oid, 'EXECUTE') AS allowed,"
            "       ARRAY(SELECT pg_get_userbyid(a.grantee)::text FROM aclexplode(p.proacl) AS a) AS grantees"
            "  FROM pg_proc AS p WHERE p.pronamespace = 'trecho'::regnamespace ORDER BY 1",
            (role,),
        ).fetchall()
        relations = conn.execute(
            "SELECT c.relname AS name, c.relkind::text AS kind FROM pg_class AS c"
            " WHERE c.relnamespace = 'trecho'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f') ORDER BY 1"
        ).fetchall()
    for function in functions:
        assert function["allowed"] == bool(holds & set(function["grantees"])), function["name"]
    assert len(relations) > 25 and {r["kind"] for r in relations} >= {"r", "p", "v", "S"}
    with connect(dsn, role) as conn:
        for function in functions:
            if not function["allowed"]:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(call_of(function).encode())
        for relation in relations:
            name = f'trecho."{relation["name"]}"'
            if relation["kind"] == "v" and holds:
                assert conn.execute(f"SELECT * FROM {name}".encode()).fetchall()
                continue
            if relation["kind"] == "S":
                tried = [f"SELECT nextval('{name}')", f"SELECT setval('{name}', 1)", f"SELECT * FROM {name}"]
            else:
                tried = [
                    f"SELECT FROM {name}",
                    f"DELETE FROM {name}",
                    f"TRUNCATE {name}",
                    f"COPY {name} TO STDOUT",
                ]
                if relation["kind"] != "v":
                    tried.append(f"INSERT INTO {name} DEFAULT VALUES")
            if relation["kind"] == "v":
                tried = tried[:1]
            for statement in tried:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(statement.encode())
        for statement in FORBIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement.encode())


def test_writer__puts_and_removes_under_a_hostile_search_path(
    hostile_dsn: str, make_role: Callable[..., str]
) -> None:
    with connect(hostile_dsn, make_role("trecho_writer")) as conn:
        conn.execute(
            "SELECT trecho.put_document('docs', %s, source_path => 'b.md')",
            (TEXT.replace("noturno", "diário"),),
        )
        found = conn.execute("SELECT source_path FROM trecho.search('diário', mode => 'lexical')").fetchall()
        assert found[0] == {"source_path": "b.md"}
        pass_id = conn.execute("SELECT trecho.begin_pass('default', 'main', 's', '{docs}') AS id").fetchone()
        assert pass_id is not None
        conn.execute("SELECT trecho.stage_document(%s, 'docs', 'c.md', %s)", (pass_id["id"], TEXT))
        assert conn.execute("SELECT trecho.plan_pass(%s) AS n", (pass_id["id"],)).fetchone() == {"n": 1}
        conn.execute("SELECT trecho.publish_pass(%s, allow_pending => true)", (pass_id["id"],))
        conn.execute("SELECT trecho.release_pass()")
        assert conn.execute("SELECT trecho.remove_document('docs', 'c.md') AS gone").fetchone() == {
            "gone": True
        }
        for denied in (
            "trecho.purge('docs', 'a.md')",
            "trecho.drop_project('default')",
            "trecho.gc()",
            "trecho.grant_project('x', 'y')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(f"SELECT {denied}".encode())


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a;b--", "$$", "nome com espaço", "ção", "a\\b", "%s", "{}"])
def test_hostile_names__are_values_and_nothing_more(
    dsn: str, make_role: Callable[..., str], name: str
) -> None:
    with connect(dsn, make_role("trecho_operator")) as conn:
        conn.execute(
            "SELECT trecho.put_document('docs', %s, source_path => %s, project => %s, branch => %s, doc_id => %s)",
            (TEXT, name, name, name, name),
        )
        found = conn.execute(
            "SELECT doc_id, source_path FROM trecho.search('backup', mode => 'lexical', project => %s, branch => %s)",
            (name, name),
        ).fetchall()
        assert found == [{"doc_id": name, "source_path": name}]
        pass_id = conn.execute(
            "SELECT trecho.begin_pass(%s, %s, %s, '{docs}') AS id", (name, name, name)
        ).fetchone()
        assert pass_id is not None
        conn.execute("SELECT trecho.stage_document(%s, 'docs', %s, %s)", (pass_id["id"], name + "/x", TEXT))
        conn.execute("SELECT trecho.plan_pass(%s)", (pass_id["id"],))
        conn.execute("SELECT trecho.publish_pass(%s, allow_pending => true)", (pass_id["id"],))
        conn.execute("SELECT trecho.release_pass(%s)", (name,))
        assert conn.execute("SELECT trecho.drop_project(%s) AS n", (name,)).fetchone() == {"n": 2}


def two_projects(dsn: str, role: str) -> None:
    """A document each in projects um and dois, of which the role may read um alone."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for project in ("um", "dois"):
            conn.execute(
                "SELECT trecho.put_document('docs', %s, source_path => 'a.md', project => %s)",
                (TEXT, project),
            )
        conn.execute("SELECT trecho.revoke_project('trecho_reader', '*')")
        conn.execute("SELECT trecho.grant_project(%s, 'um')", (role,))


def test_projects__are_apart_for_readers_once_the_grant_on_all_is_taken_back(
    dsn: str, make_role: Callable[..., str]
) -> None:
    reader, member = make_role("trecho_reader"), make_role("trecho_reader")
    two_projects(dsn, reader)
    queries = (
        "SELECT count(*) AS n FROM trecho.search('backup', mode => 'lexical', project => %s)",
        "SELECT count(*) AS n FROM trecho.list_documents(project => %s)",
        "SELECT count(*) AS n FROM trecho.get_document('a.md', project => %s)",
        "SELECT count(*) AS n FROM trecho.resolve('a.md:1:0', project => %s)",
        "SELECT count(*) AS n FROM trecho.index_health(%s)",
        "SELECT count(*) AS n FROM trecho.list_passes(%s)",
        "SELECT count(*) AS n FROM trecho.index_contents(%s)",
        "SELECT count(*) AS n FROM trecho.list_failed(%s)",
        "SELECT trecho.evidence('backup', mode => 'lexical', project => %s)",
        "SELECT count(*) AS n FROM trecho.explain_search('backup', mode => 'lexical', project => %s)",
    )
    for query in queries:
        with connect(dsn, reader) as conn:
            conn.execute(query.encode(), ("um",))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(query.encode(), ("dois",))
        with connect(dsn, member) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(query.encode(), ("um",))


def test_definers__are_owned_by_no_superuser_and_none_is_written_in_python(shared_db: Connection) -> None:
    rows = shared_db.execute(
        "SELECT p.oid::regprocedure::text AS name, p.prosecdef AS definer, r.rolsuper AS superuser, r.rolname AS owner, l.lanname AS language"
        "  FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner JOIN pg_language AS l ON l.oid = p.prolang"
        " WHERE p.pronamespace = 'trecho'::regnamespace"
    ).fetchall()
    python = [row for row in rows if row["language"] == "plpython3u"]
    assert len(python) > 5 and not any(row["definer"] for row in python)
    assert all(row["superuser"] for row in python)
    definers = [row for row in rows if row["definer"]]
    assert len(definers) > 40
    assert {(row["owner"], row["superuser"]) for row in definers} == {("trecho_owner", False)}


LOOK_ALIKES = (
    "CREATE TEMP TABLE documents (document_id bigint, project text, doc_id text)",
    "CREATE TEMP TABLE chunks (x integer)",
    "CREATE TEMP TABLE placements (x integer)",
    "CREATE TEMP TABLE index_state (active_version integer)",
    "CREATE TEMP TABLE project_grants (role_name name, project text)",
    "INSERT INTO project_grants SELECT current_user, 'dois'",
    "INSERT INTO index_state VALUES (99)",
    "CREATE FUNCTION pg_temp._may_read(text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "CREATE FUNCTION pg_temp.sha256(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT 'x'::bytea $$",
    "CREATE FUNCTION pg_temp.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'postgres' $$",
    "CREATE FUNCTION pg_temp.pg_has_role(name, name, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "CREATE FUNCTION pg_temp.equal(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "CREATE OPERATOR pg_temp.= (LEFTARG = text, RIGHTARG = text, FUNCTION = pg_temp.equal)",
    "CREATE TYPE pg_temp.text AS (x integer)",
    "SET search_path = pg_temp, trecho, pg_catalog",
)


@pytest.mark.parametrize("group", ["trecho_reader", "trecho_writer", "trecho_operator"])
def test_temporary_look_alikes__change_nothing_and_open_no_project(
    dsn: str, make_role: Callable[..., str], group: str
) -> None:
    role = make_role(group)
    two_projects(dsn, role)
    asked = (
        "SELECT pg_catalog.to_jsonb(r)::pg_catalog.text AS r FROM trecho.search('backup', mode => 'lexical', project => 'um') AS r",
        "SELECT pg_catalog.to_jsonb(r)::pg_catalog.text AS r FROM trecho.list_documents('um') AS r",
        "SELECT pg_catalog.to_jsonb(r)::pg_catalog.text AS r FROM trecho.index_health('um') AS r",
        "SELECT trecho.content_hash('a', 'b', 'c') AS r",
        "SELECT trecho.chunk_id('a', 1, 'c') AS r",
        "SELECT pg_catalog.count(*) AS r FROM trecho.metrics WHERE starts_with(name, 'trecho_documents')",
    )
    with connect(dsn, role) as conn:
        before = [conn.execute(query.encode()).fetchall() for query in asked]
        for statement in LOOK_ALIKES:
            conn.execute(statement.encode())
        assert [conn.execute(query.encode()).fetchall() for query in asked] == before
        assert all(before)
        for query in (
            "SELECT * FROM trecho.search('backup', mode => 'lexical', project => 'dois')",
            "SELECT * FROM trecho.list_documents('dois')",
            "SELECT * FROM trecho.get_document('a.md', 'dois')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(query.encode())
        if group != "trecho_reader":
            conn.execute(
                "SELECT trecho.put_document('docs', %s, source_path => 'b.md', project => 'um')", (TEXT,)
            )
        if group == "trecho_operator":
            rows = conn.execute("SELECT check_name, severity FROM trecho.check_index('um')").fetchall()
            assert {(row["check_name"], row["severity"]) for row in rows} == {("pending vectors", "stale")}
            assert conn.execute("SELECT * FROM trecho.repair_index('um')").fetchall() == []


@pytest.mark.slow
def test_grants__keep_no_index_from_being_used(dsn: str, make_role: Callable[..., str]) -> None:
    """6,000 passages of one project, where reading them all is the slower plan; the reader may read that one alone."""
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((6000, 768)).astype(np.float32)
    vectors[:, 384:] = 0
    reader = make_role("trecho_reader")
    sources = [
        Source(
            f"{n}.md",
            [Passage(f"palavra comum termo{i % 300} {i}", vectors[i]) for i in range(4 * n, 4 * n + 4)],
            project="um",
        )
        for n in range(1500)
    ]
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        load(conn, sources, rebuild=True)
        conn.execute("RESET ROLE")
        conn.execute("SELECT trecho.revoke_project('trecho_reader', '*')")
        conn.execute("SELECT trecho.grant_project(%s, 'um')", (reader,))
        row = conn.execute(
            "SELECT c.embedding::text AS vector, e.extnamespace::regnamespace::text AS place"
            "  FROM trecho.chunks AS c, pg_extension AS e WHERE e.extname = 'vector' LIMIT 1"
        ).fetchone()
    assert row is not None
    given = {"v": row["vector"]}
    cast = f"%(v)s::{row['place']}.vector"
    scans = (
        "SELECT pg_stat_get_xact_numscans('trecho.chunks_1_words'::regclass) AS words,"
        " pg_stat_get_xact_numscans('trecho.chunks_1_vectors'::regclass) AS vectors,"
        " pg_stat_get_xact_numscans('trecho.chunks_1'::regclass) AS whole"
    )
    explained = (
        f"SELECT part, plan FROM trecho.explain_search('termo7', {cast}, mode => %(mode)s, project => 'um')"
    )

    def plans(conn: Connection, mode: str) -> list[DictRow]:
        return conn.execute(explained.encode(), {**given, "mode": mode}).fetchall()

    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row) as conn:
        of_superuser = {mode: plans(conn, mode) for mode in ("lexical", "semantic", "hybrid")}
    assert "chunks_1_words" in str(of_superuser["lexical"]) and "chunks_1_vectors" in str(
        of_superuser["hybrid"]
    )
    for mode, words, nearest in (("lexical", True, False), ("hybrid", True, True)):
        # A connection for each: what the one before counted may still be in its figures.
        with connect(dsn, reader) as conn, conn.transaction():
            rows = conn.execute(
                f"SELECT * FROM trecho.search('termo7', {cast}, mode => '{mode}', project => 'um')".encode(),
                given,
            ).fetchall()
            counted = conn.execute(scans.encode()).fetchone()
        assert len(rows) == 10 and counted is not None
        used = (counted["words"] > 0, counted["vectors"] > 0, counted["whole"])
        assert used == (words, nearest, 0), mode
    with connect(dsn, reader) as conn:
        for mode, wanted in of_superuser.items():
            assert plans(conn, mode) == wanted
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT * FROM trecho.search('termo7', mode => 'lexical', project => 'dois')")
