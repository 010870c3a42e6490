"""Rules that every object of the schema keeps, read from the catalog."""

from __future__ import annotations

import re

import pytest
from support import ROOT

# A function without SET search_path says so in its head or in the comment above it: a SET clause stops inlining.
EXEMPT = "no set clause"
# What the generated column of chunks calls, directly and in turn.
GENERATED = re.compile(r"search_(vector|text)_\d+")


def test_comments__every_table_view_and_column_has_one(shared_db):
    rows = shared_db.execute("""
        SELECT c.oid::regclass::text || coalesce('.' || a.attname, '') AS name
          FROM pg_class AS c
          LEFT JOIN LATERAL (SELECT 0 AS attnum, NULL::name AS attname
                             UNION ALL
                             SELECT t.attnum, t.attname FROM pg_attribute AS t
                              WHERE t.attrelid = c.oid AND t.attnum > 0 AND NOT t.attisdropped) AS a ON true
         WHERE c.relnamespace = 'trecho'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
           AND NOT c.relispartition
           AND col_description(c.oid, a.attnum) IS NULL AND (a.attnum > 0 OR obj_description(c.oid, 'pg_class') IS NULL)
         ORDER BY 1
    """).fetchall()
    assert [row["name"] for row in rows] == []


def test_comments__every_function_and_type_has_one(shared_db):
    rows = shared_db.execute("""
        SELECT p.oid::regprocedure::text AS name FROM pg_proc AS p
         WHERE p.pronamespace = 'trecho'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
        UNION ALL
        SELECT t.oid::regtype::text FROM pg_type AS t
         WHERE t.typnamespace = 'trecho'::regnamespace AND t.typtype = 'e' AND obj_description(t.oid, 'pg_type') IS NULL
        UNION ALL
        SELECT t.oid::regtype::text FROM pg_type AS t JOIN pg_class AS c ON c.oid = t.typrelid AND c.relkind = 'c'
         WHERE t.typnamespace = 'trecho'::regnamespace
           AND coalesce(obj_description(t.oid, 'pg_type'), obj_description(c.oid, 'pg_class')) IS NULL
         ORDER BY 1
    """).fetchall()
    assert [row["name"] for row in rows] == []


def test_search_path__every_function_states_it_or_says_why_not(shared_db):
    """A body of the SQL standard (RETURN, BEGIN ATOMIC) is bound to its objects when it is created: no path is used."""
    rows = shared_db.execute("""
        SELECT p.proname AS name, p.proconfig AS config, p.prosecdef AS definer, p.prosqlbody IS NOT NULL AS bound
          FROM pg_proc AS p WHERE p.pronamespace = 'trecho'::regnamespace ORDER BY 1
    """).fetchall()
    bare = [row for row in rows if not any(c.startswith("search_path=") for c in row["config"] or [])]
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("migrations", "sql", "sql/privileged")
        for path in sorted((ROOT / folder).glob("*.sql"))
    )
    unexplained = set()
    for row in bare:
        heads = re.findall(
            rf"((?:^--[^\n]*\n)*)^CREATE(?: OR REPLACE)? FUNCTION trecho\.{row['name']}\((.*?)^AS ",
            source,
            re.S | re.M,
        )
        explained = heads and all(EXEMPT in (above + head).lower() for above, head in heads)
        if not (row["bound"] or explained or GENERATED.fullmatch(row["name"])):
            unexplained.add(row["name"])
    assert len(rows) > 30
    assert unexplained == set()
    assert [row["name"] for row in bare if row["definer"]] == []


def test_search_path__ends_in_pg_temp_and_holds_no_schema_that_anybody_may_write_first(shared_db):
    rows = shared_db.execute("""
        SELECT p.oid::regprocedure::text AS name, c AS setting
          FROM pg_proc AS p, unnest(p.proconfig) AS c
         WHERE p.pronamespace = 'trecho'::regnamespace AND c LIKE 'search_path=%'
    """).fetchall()
    wrong = [
        (row["name"], row["setting"])
        for row in rows
        if not re.fullmatch(r'search_path=pg_catalog(, ("[^"]+"|\w+))?, pg_temp', row["setting"])
    ]
    assert wrong == []


def test_rights__public_may_execute_nothing(shared_db):
    rows = shared_db.execute("""
        SELECT p.proname AS name FROM pg_proc AS p
         WHERE p.pronamespace = 'trecho'::regnamespace
           AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a WHERE a.grantee = 0)
         ORDER BY 1
    """).fetchall()
    # What the generated column calls must be callable by whoever may insert; it reads nothing but its arguments.
    assert [row["name"] for row in rows if not GENERATED.fullmatch(row["name"])] == []


def test_rights__nobody_but_the_owner_touches_tables(shared_db):
    rows = shared_db.execute("""
        SELECT c.oid::regclass::text AS name, pg_get_userbyid(a.grantee) AS grantee, a.privilege_type
          FROM pg_class AS c, aclexplode(c.relacl) AS a
         WHERE c.relnamespace = 'trecho'::regnamespace AND a.grantee <> c.relowner AND c.relkind IN ('r', 'p', 'S')
    """).fetchall()
    assert rows == []


@pytest.mark.parametrize("folder", ["sql", "sql/privileged"])
def test_rights__each_function_is_revoked_from_public_beside_it(folder):
    for path in sorted((ROOT / folder).glob("*.sql")):
        text = path.read_text(encoding="utf-8")
        made = set(re.findall(r"CREATE OR REPLACE FUNCTION (trecho\.\w+)\(", text))
        revoked = set(re.findall(r"REVOKE ALL ON FUNCTION (trecho\.\w+)\b", text))
        assert made - revoked == set(), path.name


def test_errors__of_a_wrong_argument_say_what_to_do(shared_db):
    """Every RAISE of 22023 or 22004 has a HINT: the message says what is wrong, the hint what to give."""
    rows = shared_db.execute("""
        SELECT p.proname AS name, p.prosrc AS body FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
         WHERE p.pronamespace = 'trecho'::regnamespace AND l.lanname = 'plpgsql'
    """).fetchall()
    raised = [
        (row["name"], statement)
        for row in rows
        for statement in re.findall(r"RAISE EXCEPTION\b(?:'(?:[^']|'')*'|[^;'])*;", row["body"])
        if re.search(r"'(invalid_parameter_value|null_value_not_allowed|22023|22004)'", statement)
    ]
    assert len(raised) > 40
    assert [(name, statement) for name, statement in raised if not re.search(r"\bHINT\b", statement)] == []


@pytest.mark.parametrize(
    "call",
    [
        "trecho.content_hash(d.path, d.title, d.language)",
        "trecho._passage_hash(d.title, d.language)",
        "trecho._embedding_text(d.path, d.title, d.language)",
        "trecho._check_embedding(c.embedding, c.chunk_max_bytes)",
        "trecho.search_text_1(d.title)",
        "trecho.search_vector_1(d.title, d.language)",
    ],
)
def test_inlining__a_function_of_every_row_costs_no_call(shared_db, call):
    rows = shared_db.execute(
        f"EXPLAIN (VERBOSE, COSTS off) SELECT {call} FROM trecho.documents AS d, trecho.chunks AS c".encode()
    ).fetchall()
    name = call.partition("(")[0]
    assert not [row for row in rows if f"{name}(" in row["QUERY PLAN"]]
