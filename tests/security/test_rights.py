"""What plain roles may do: the functions of their group and nothing else, whatever their search_path holds."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import DictRow, dict_row
from support import Connection, as_role

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
            "SELECT p.oid::regprocedure::text AS name, p.pronargs AS n, p.pronargdefaults AS d, p.proname AS short"
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
            nulls = ", ".join(["NULL"] * (function["n"] - function["d"]))
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.AmbiguousFunction)):
                conn.execute(f"SELECT trecho.{function['short']}({nulls})".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("CREATE TABLE trecho.mine (x integer)")


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


def test_projects__are_apart_for_readers_once_the_grant_on_all_is_taken_back(
    dsn: str, make_role: Callable[..., str]
) -> None:
    reader, member = make_role("trecho_reader"), make_role("trecho_reader")
    with psycopg.connect(dsn, autocommit=True) as conn:
        for project in ("um", "dois"):
            conn.execute(
                "SELECT trecho.put_document('docs', %s, source_path => 'a.md', project => %s)",
                (TEXT, project),
            )
        conn.execute("SELECT trecho.revoke_project('trecho_reader', '*')")
        conn.execute("SELECT trecho.grant_project(%s, 'um')", (reader,))
    queries = (
        "SELECT count(*) AS n FROM trecho.search('backup', mode => 'lexical', project => %s)",
        "SELECT count(*) AS n FROM trecho.list_documents(project => %s)",
        "SELECT count(*) AS n FROM trecho.get_document('a.md', project => %s)",
        "SELECT count(*) AS n FROM trecho.resolve('a.md:1:0', project => %s)",
        "SELECT count(*) AS n FROM trecho.index_health(%s)",
        "SELECT count(*) AS n FROM trecho.list_passes(%s)",
        "SELECT count(*) AS n FROM trecho.index_contents(%s)",
    )
    for query in queries:
        with connect(dsn, reader) as conn:
            conn.execute(query.encode(), ("um",))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(query.encode(), ("dois",))
        with connect(dsn, member) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(query.encode(), ("um",))
