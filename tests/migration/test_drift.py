"""Functions and views that a hand dropped or altered: `trecho migrate` notices and puts them back."""

from __future__ import annotations

import json
import uuid

import pytest
from dump_schema import dump
from psycopg import sql
from support import as_role
from test_migrate import open_conn

WRONG_CHUNKING = (
    "CREATE OR REPLACE FUNCTION trecho.chunking() RETURNS text LANGUAGE sql AS 'SELECT ''wrong'''"
)

# What a hand does, the object, and the file that makes it.
DAMAGE = {
    "dropped": (
        "DROP FUNCTION trecho.resolve(text, text, text)",
        "trecho.resolve(text,text,text)",
        "sql/25_maintenance.sql",
    ),
    "body": (WRONG_CHUNKING, "trecho.chunking()", "sql/00_roles.sql"),
    "owner": (
        "ALTER FUNCTION trecho.grant_project(name, text) OWNER TO CURRENT_USER",
        "trecho.grant_project(name,text)",
        "sql/35_grants.sql",
    ),
    "definer": (
        "ALTER FUNCTION trecho.list_passes SECURITY INVOKER",
        "trecho.list_passes(text,integer)",
        "sql/50_health.sql",
    ),
    "search_path": (
        "ALTER FUNCTION trecho.list_passes RESET search_path",
        "trecho.list_passes(text,integer)",
        "sql/50_health.sql",
    ),
    "volatility": ("ALTER FUNCTION trecho._caller VOLATILE", "trecho._caller()", "sql/35_grants.sql"),
    "right given": (
        "GRANT EXECUTE ON FUNCTION trecho.revoke_project TO PUBLIC",
        "trecho.revoke_project(name,text)",
        "sql/35_grants.sql",
    ),
    "right moved": (
        "GRANT EXECUTE ON FUNCTION trecho.revoke_project TO trecho_reader",
        "trecho.revoke_project(name,text)",
        "sql/35_grants.sql",
    ),
    "right taken": (
        "REVOKE EXECUTE ON FUNCTION trecho.list_passes FROM trecho_reader",
        "trecho.list_passes(text,integer)",
        "sql/50_health.sql",
    ),
    "comment": (
        "COMMENT ON FUNCTION trecho.list_passes IS NULL",
        "trecho.list_passes(text,integer)",
        "sql/50_health.sql",
    ),
    "result": (
        "DROP FUNCTION trecho.chunking(); CREATE FUNCTION trecho.chunking() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "trecho.chunking()",
        "sql/00_roles.sql",
    ),
    "chunker": (
        "DROP FUNCTION trecho.chunk_markdown(text, jsonb)",
        "trecho.chunk_markdown(text,jsonb)",
        "sql/privileged/20_chunkers.sql",
    ),
    "chunker altered": (
        "ALTER FUNCTION trecho.chunk_markdown(text, jsonb) SECURITY DEFINER",
        "trecho.chunk_markdown(text,jsonb)",
        "sql/privileged/20_chunkers.sql",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_migrate__puts_back_what_a_hand_dropped_or_altered(trecho, dsn, damage):
    statement, name, file = DAMAGE[damage]
    with open_conn(dsn) as conn:
        whole = dump(conn)
        conn.execute(statement)
        what = "is missing" if "dropped" in damage or damage == "chunker" else "was altered"
        status = trecho("migrate", "status", dsn=dsn)
        assert status.code == 6
        assert f"drift     {name} {what} ({file} makes it): trecho migrate puts it back" in status.out
        assert f"  restore {name} {what}" in trecho("migrate", "--plan", dsn=dsn).out
        ran = trecho("migrate", "--json", dsn=dsn)
        assert [item["name"] for item in json.loads(ran.out)["applied"]] == [file], ran.err
        assert dump(conn) == whole
        assert conn.execute("SELECT trecho.chunking() AS c").fetchone() == {"c": "server"}
    assert trecho("migrate", dsn=dsn).out.startswith("nothing to do")
    assert trecho("migrate", "status", dsn=dsn).code == 0


def test_migrate__function_that_somebodys_view_uses_is_put_back_under_the_view(trecho, dsn):
    with open_conn(dsn) as conn:
        whole = dump(conn)
        conn.execute("CREATE VIEW public.way AS SELECT trecho.chunking() AS way")
        conn.execute(WRONG_CHUNKING)
        conn.execute("GRANT EXECUTE ON FUNCTION trecho.chunking() TO PUBLIC")
        assert trecho("migrate", dsn=dsn).code == 0
        assert conn.execute("SELECT way FROM public.way").fetchone() == {"way": "server"}
        assert dump(conn) == whole
    assert trecho("migrate", "status", dsn=dsn).code == 0


def test_migrate__right_of_a_role_that_is_not_ours_is_no_drift(trecho, dsn, plain_role):
    with open_conn(dsn) as conn:
        conn.execute(f'GRANT EXECUTE ON FUNCTION trecho.chunking() TO "{plain_role}"')
    assert trecho("migrate", "status", dsn=dsn).code == 0
    assert trecho("migrate", dsn=dsn).out.startswith("nothing to do")


def test_migrate__ordinary_role_puts_back_all_but_the_chunkers(trecho, dsn, make_role):
    mine = as_role(dsn, make_role("trecho_owner"))
    with open_conn(dsn) as conn:
        whole = dump(conn)
        conn.execute(DAMAGE["dropped"][0])
        conn.execute(DAMAGE["owner"][0])
        assert trecho("migrate", dsn=mine).code == 0
        assert dump(conn) == whole
        conn.execute(DAMAGE["chunker"][0])
        ran = trecho("migrate", dsn=mine)
        assert ran.code == 3
        assert "trecho.chunk_markdown(text,jsonb) is missing" in ran.err
        conn.execute(ran.out.encode())
        assert dump(conn) == whole
    assert trecho("migrate", dsn=mine).out.startswith("nothing to do")
    assert trecho("migrate", "status", dsn=mine).code == 0


def test_migrate__script_for_psql_puts_back_too(trecho, dsn):
    with open_conn(dsn) as conn:
        whole = dump(conn)
        conn.execute(DAMAGE["result"][0])
        conn.execute(DAMAGE["chunker"][0])
        script = trecho("migrate", "--sql", dsn=dsn)
        assert script.code == 0, script.err
        conn.execute(script.out.encode())
        assert dump(conn) == whole
    assert trecho("migrate", "status", dsn=dsn).code == 0


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("ALTER FUNCTION trecho.search_text_1(text) COST 7", "search_text_1"),
        ("DROP FUNCTION trecho.search_text_1(text)", "search_text_1"),
        ("GRANT EXECUTE ON FUNCTION trecho.search_vector_1(text, text) TO trecho_reader", "search_vector_1"),
        (
            "CREATE OR REPLACE FUNCTION trecho.search_vector_1(p_context text, p_content text) RETURNS tsvector"
            " LANGUAGE sql IMMUTABLE AS 'SELECT NULL::tsvector'",
            "search_vector_1",
        ),
    ],
    ids=["altered", "dropped", "right given", "under a generated column"],
)
def test_migrate__function_of_a_migration_is_made_again_alone(trecho, dsn, statement, name):
    with open_conn(dsn) as conn:
        whole = dump(conn)
        recorded = conn.execute("SELECT * FROM trecho.schema_migrations ORDER BY name").fetchall()
        conn.execute(statement)
        status = trecho("migrate", "status", dsn=dsn)
        assert status.code == 6
        assert f"drift     trecho.{name}(" in status.out and "trecho migrate puts it back" in status.out
        ran = trecho("migrate", "--json", dsn=dsn)
        assert [(item["name"], item["kind"]) for item in json.loads(ran.out)["applied"]] == [
            ("migrations/0001_text_search.sql", "restore")
        ]
        assert dump(conn) == whole
        assert conn.execute("SELECT * FROM trecho.schema_migrations ORDER BY name").fetchall() == recorded
        conn.execute("SELECT trecho.put_document('docs', '# Plantão', 'a.md')")
        assert len(conn.execute("SELECT * FROM trecho.search('plantao')").fetchall()) == 1
    assert trecho("migrate", "status", dsn=dsn).code == 0
    assert trecho("migrate", dsn=dsn).out.startswith("nothing to do")


def test_migrate__function_of_a_migration_is_made_again_by_the_script_for_psql(trecho, dsn):
    with open_conn(dsn) as conn:
        whole = dump(conn)
        conn.execute("DROP FUNCTION trecho.search_text_1(text)")
        conn.execute(trecho("migrate", "--sql", dsn=dsn).out.encode())
        assert dump(conn) == whole
    assert trecho("migrate", "status", dsn=dsn).code == 0


def test_migrate__client_chunking_does_not_miss_the_chunkers(trecho, dsn):
    assert trecho("migrate", "--chunking", "client", dsn=dsn).code == 0
    with open_conn(dsn) as conn:
        conn.execute(DAMAGE["chunker"][0])
    assert trecho("migrate", "status", dsn=dsn).code == 0
    assert trecho("migrate", dsn=dsn).out.startswith("nothing to do")


def test_migrate__database_without_a_record_of_functions_gets_one(trecho, dsn):
    with open_conn(dsn) as conn:
        rows = conn.execute("SELECT * FROM trecho.schema_objects ORDER BY 1").fetchall()
        conn.execute("DROP TABLE trecho.schema_objects")
        assert trecho("migrate", dsn=dsn).code == 0
        again = conn.execute(
            "SELECT * FROM trecho.schema_objects WHERE file LIKE 'sql/%' ORDER BY 1"
        ).fetchall()
    assert again == [row for row in rows if row["file"].startswith("sql/")]
    assert len(again) > 100
    assert trecho("migrate", dsn=dsn).out.startswith("nothing to do")


def test_record__names_every_function_and_view_of_the_schema(shared_db):
    rows = shared_db.execute("""
        SELECT p.oid::regprocedure::text AS name FROM pg_proc AS p WHERE p.pronamespace = 'trecho'::regnamespace
        UNION ALL
        SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relnamespace = 'trecho'::regnamespace AND c.relkind = 'v'
    """).fetchall()
    shared_db.execute("SET LOCAL search_path = pg_catalog")
    missing = shared_db.execute("""
        SELECT p.oid::regprocedure::text AS name FROM pg_proc AS p WHERE p.pronamespace = 'trecho'::regnamespace
        EXCEPT SELECT o.object FROM trecho.schema_objects AS o
    """).fetchall()
    assert len(rows) > 100
    assert missing == []


def test_record__holds_in_every_database(trecho, dsn, empty_dsn):
    """It is made of names, not of numbers that another database gives anew."""
    assert trecho("migrate", dsn=empty_dsn).code == 0
    with open_conn(dsn) as conn, open_conn(empty_dsn) as other:
        query = "SELECT * FROM trecho.schema_objects ORDER BY 1"
        assert conn.execute(query).fetchall() == other.execute(query).fetchall()


def test_migrate__names_of_the_owner_do_nothing_as_superuser(trecho, dsn, make_role):
    """A superuser puts back chunk functions; who owns the schema may name types, rows and triggers as he likes."""
    owner = as_role(dsn, make_role("trecho_owner"))
    role = f"t{uuid.uuid4().hex[:8]}"  # a name is cut at 63 bytes
    with open_conn(owner) as conn:
        conn.execute("SET ROLE trecho_owner")
        for number, end in enumerate(("$do$; ", "'; ", '"; ', "); END $do$; ")):
            hostile = sql.Identifier("trecho", f"x{end}CREATE ROLE {role}; --")
            conn.execute(sql.SQL("CREATE DOMAIN {} AS text").format(hostile))
            conn.execute(
                sql.SQL(
                    "CREATE FUNCTION trecho.helper({}) RETURNS text LANGUAGE sql AS 'SELECT {}::text'"
                ).format(hostile, number)
            )
        conn.execute("""
            INSERT INTO trecho.schema_objects (object, file, fingerprint)
            SELECT p.oid::regprocedure::text, 'sql/privileged/20_chunkers.sql', 'altered' FROM pg_proc AS p
             WHERE p.proname = 'helper' AND p.pronamespace = 'trecho'::regnamespace
        """)
        body = "BEGIN IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN"
        conn.execute(
            sql.SQL(
                "CREATE FUNCTION trecho.hostile() RETURNS trigger LANGUAGE plpgsql AS {};"
                " CREATE TRIGGER hostile BEFORE INSERT OR DELETE ON trecho.schema_objects"
                " FOR EACH STATEMENT EXECUTE FUNCTION trecho.hostile()"
            ).format(sql.Literal(f"{body} CREATE ROLE {role}; END IF; RETURN NULL; END"))
        )
        handed_over = trecho("migrate", dsn=owner)
        assert handed_over.code == 3
    assert trecho("migrate", dsn=dsn).code == 0
    with open_conn(dsn) as conn:
        assert conn.execute("SELECT FROM pg_proc WHERE proname = 'helper'").fetchall() == []
        conn.execute(handed_over.out.encode())
        made = conn.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchall()
        if made:
            conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
    assert made == []
