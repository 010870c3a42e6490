"""`trecho lint`: each rule on a statement that breaks it and on a neighbour that does not."""

from __future__ import annotations

import io
import json

import pytest
from support import ROOT

from trecho.lint import RULES, lint_text


def rules(sql: str) -> list[str]:
    return [finding.rule for finding in lint_text(sql, "x.sql")]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        # an operator
        ("CREATE EXTENSION vector", ["needs-operator"]),
        ("DROP EXTENSION vector", ["needs-operator"]),
        ("CREATE LANGUAGE plpython3u", ["needs-operator"]),
        ("CREATE ROLE a", ["needs-operator"]),
        ("GRANT a TO b", ["needs-operator"]),
        ("GRANT SELECT ON t TO b", []),
        ("ALTER SYSTEM SET fsync = off", ["needs-operator", "no-transaction"]),
        ("ALTER DATABASE d SET work_mem = '1GB'", ["needs-operator"]),
        ("COPY t FROM PROGRAM 'cat'", ["needs-operator"]),
        ("COPY t FROM STDIN", []),
        (
            "CREATE FUNCTION f() RETURNS int LANGUAGE plpython3u SET search_path = '' AS 'return 1'",
            ["needs-operator"],
        ),
        ("CREATE FUNCTION f() RETURNS int LANGUAGE c SET search_path = '' AS 'x', 'y'", ["needs-operator"]),
        ("DO LANGUAGE plpython3u 'pass'", ["not-checked", "needs-operator"]),
        # rewriting
        ("ALTER TABLE t ADD COLUMN c int GENERATED ALWAYS AS (a + 1) STORED", ["rewrites-table"]),
        ("ALTER TABLE t ADD COLUMN c int GENERATED ALWAYS AS (a + 1) VIRTUAL", ["blocks-readers"]),
        ("ALTER TABLE t ALTER COLUMN c TYPE bigint", ["rewrites-table"]),
        ("ALTER TABLE t ADD COLUMN c bigserial", ["rewrites-table"]),
        ("ALTER TABLE t ADD COLUMN c uuid DEFAULT gen_random_uuid()", ["rewrites-table"]),
        ("ALTER TABLE t ADD COLUMN c timestamptz DEFAULT now()", ["blocks-readers"]),
        ("ALTER TABLE t ADD COLUMN c int DEFAULT 1", ["blocks-readers"]),
        ("ALTER TABLE t SET UNLOGGED", ["rewrites-table"]),
        ("VACUUM FULL t", ["no-transaction", "rewrites-table"]),
        ("VACUUM (FULL off) t", ["no-transaction"]),
        ("CLUSTER t USING i", ["rewrites-table"]),
        # readers
        ("ALTER TABLE t DROP COLUMN c", ["blocks-readers"]),
        ("ALTER TABLE t VALIDATE CONSTRAINT k", []),
        ("ALTER TABLE t ALTER COLUMN c SET STATISTICS 500", []),
        ("ALTER TABLE t ATTACH PARTITION p FOR VALUES IN (1)", []),
        ("ALTER TABLE t DETACH PARTITION p", ["blocks-readers"]),
        ("ALTER TABLE t DETACH PARTITION p CONCURRENTLY", ["no-transaction"]),
        ("CREATE TABLE p PARTITION OF t FOR VALUES IN (1)", ["blocks-readers"]),
        ("DROP TABLE t", ["blocks-readers"]),
        ("TRUNCATE t", ["blocks-readers"]),
        ("DROP INDEX i", ["blocks-readers"]),
        ("DROP INDEX CONCURRENTLY i", ["no-transaction"]),
        ("REINDEX TABLE t", ["blocks-readers"]),
        ("REINDEX TABLE CONCURRENTLY t", ["no-transaction"]),
        ("LOCK TABLE t", ["blocks-readers"]),
        ("LOCK TABLE t IN ROW EXCLUSIVE MODE", []),
        ("ALTER TABLE t RENAME TO u", ["blocks-readers"]),
        ("REFRESH MATERIALIZED VIEW m", ["blocks-readers"]),
        ("REFRESH MATERIALIZED VIEW CONCURRENTLY m", []),
        ("DROP TRIGGER g ON t", ["blocks-readers"]),
        # writers
        ("CREATE INDEX ON t (a)", ["blocks-writers"]),
        ("CREATE INDEX CONCURRENTLY ON t (a)", ["no-transaction"]),
        ("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES u", ["blocks-writers"]),
        ("CREATE TABLE n (a int REFERENCES u)", ["blocks-writers"]),
        ("CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()", ["blocks-writers"]),
        # a table that the file makes is empty, and nobody uses it
        ("CREATE TABLE t (a int); CREATE INDEX ON t (a); ALTER TABLE t ADD COLUMN b int; DROP TABLE t", []),
        ("CREATE TABLE s.t (a int); CREATE INDEX ON s.t (a); CREATE INDEX ON t (a)", ["blocks-writers"]),
        ("CREATE TABLE t AS SELECT 1 AS a; CREATE INDEX ON t (a)", []),
        # transactions
        ("BEGIN; SELECT 1; COMMIT", ["ends-transaction", "ends-transaction"]),
        # text search
        ("SELECT to_tsvector(body) FROM t", ["default-text-search"]),
        ("SELECT to_tsvector('portuguese', body) FROM t", []),
        ("SELECT pg_catalog.to_tsvector(coalesce(a, b))", ["default-text-search"]),
        ("SELECT to_tsvector('simple', f(a, b)), websearch_to_tsquery(q)", ["default-text-search"]),
        ("SELECT 'to_tsvector(x)' -- to_tsvector(y)", []),
        (
            "CREATE FUNCTION f(q text) RETURNS tsquery LANGUAGE plpgsql SET search_path = '' AS $$ BEGIN\n"
            " RETURN plainto_tsquery(q);\nEND $$",
            ["default-text-search"],
        ),
        # functions
        ("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", ["search-path"]),
        ("CREATE FUNCTION f() RETURNS int LANGUAGE sql SET search_path = '' AS 'SELECT 1'", []),
        ("CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1", []),
        ("CREATE FUNCTION f() RETURNS int LANGUAGE sql\n-- No SET clause: inlined.\nAS 'SELECT 1'", []),
        ("CREATE PROCEDURE p() LANGUAGE plpgsql AS 'BEGIN END'", ["search-path"]),
        # DO blocks run now
        ("DO $$BEGIN ALTER TABLE t DROP COLUMN c; END$$", ["blocks-readers"]),
        ("DO $$BEGIN IF true THEN EXECUTE 'DROP TABLE t'; END IF; END$$", ["blocks-readers"]),
        ("DO $$BEGIN EXECUTE format('DROP TABLE %I', 'x'); END$$", ["not-checked"]),
        ("DO $$BEGIN PERFORM 1; x := 2; END$$", ["not-checked"]),
        ("DO $$BEGIN PERFORM f(1); END$$", []),
        # what else an operator must do
        ("CREATE OPERATOR CLASS o FOR TYPE int USING btree AS OPERATOR 1 <", ["needs-operator"]),
        ("CREATE TYPE ty (INPUT = a, OUTPUT = b)", ["needs-operator"]),
        ("CREATE TYPE ty AS (a int)", []),
        ("CREATE TEXT SEARCH PARSER p (START = a, GETTOKEN = b, END = c, LEXTYPES = d)", ["needs-operator"]),
        ("CREATE TEXT SEARCH CONFIGURATION c (COPY = pg_catalog.simple)", []),
        ("ALTER FUNCTION f() LEAKPROOF", ["needs-operator"]),
        (
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql LEAKPROOF SET search_path = '' AS 'x'",
            ["needs-operator"],
        ),
        ("SET session_replication_role = replica", ["needs-operator"]),
        ("SET log_statement = 'all'", ["needs-operator"]),
        ("SET work_mem = '1GB'", []),
        ("GRANT USAGE ON LANGUAGE plpython3u TO a", ["needs-operator"]),
        ("GRANT EXECUTE ON FUNCTION f() TO a", []),
        ("REASSIGN OWNED BY a TO b", ["needs-operator"]),
        ("CREATE PUBLICATION p FOR TABLES IN SCHEMA s", ["needs-operator"]),
        ("CREATE PUBLICATION p FOR TABLE t", []),
        # what else readers wait for
        ("CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING", ["blocks-readers"]),
        ("CREATE POLICY p ON t", ["blocks-readers"]),
        ("CREATE TABLE t (a int); CREATE POLICY p ON t; CREATE RULE r AS ON INSERT TO t DO NOTHING", []),
        ("ALTER TABLE t SET SCHEMA s", ["blocks-readers"]),
        ("ALTER VIEW v SET (security_barrier)", ["blocks-readers"]),
        ("CREATE OR REPLACE VIEW v AS SELECT 1", ["blocks-readers"]),
        ("CREATE VIEW v AS SELECT 1; CREATE OR REPLACE VIEW v AS SELECT 2", []),
        ("DROP SCHEMA s CASCADE", ["blocks-readers"]),
        ("DROP FUNCTION f() CASCADE", ["blocks-readers"]),
        ("DROP FUNCTION f()", []),
        ("ALTER INDEX i RENAME TO j", []),
        ("ALTER TABLE t ALTER c SET NOT NULL", ["blocks-readers"]),
        ("ALTER TABLE t ADD CONSTRAINT k CHECK (a > 0) NOT VALID", ["blocks-readers"]),
        ("ALTER TYPE ty ADD ATTRIBUTE a int CASCADE", ["rewrites-table"]),
        ("ALTER TYPE ty ADD VALUE 'x'", []),
        # what else needs a place outside a transaction
        ("REINDEX DATABASE d", ["no-transaction", "blocks-readers"]),
        ("REINDEX (CONCURRENTLY) SCHEMA s", ["no-transaction"]),
        ("CLUSTER", ["no-transaction", "rewrites-table"]),
        ("DROP SUBSCRIPTION s", ["no-transaction"]),
        ("CREATE DATABASE d", ["needs-operator", "no-transaction"]),
        ("SAVEPOINT a; ROLLBACK TO a; RELEASE a", []),
        ("START TRANSACTION; PREPARE TRANSACTION 'x'", ["ends-transaction", "ends-transaction"]),
        # volatile and steady defaults
        ("ALTER TABLE t ADD COLUMN c float DEFAULT random()", ["rewrites-table"]),
        ("ALTER TABLE t ADD COLUMN c timestamptz DEFAULT clock_timestamp()", ["rewrites-table"]),
        ("ALTER TABLE t ADD COLUMN c timestamptz DEFAULT CURRENT_TIMESTAMP", ["blocks-readers"]),
        ("ALTER TABLE t ADD COLUMN c bigint GENERATED ALWAYS AS IDENTITY", ["rewrites-table"]),
        (
            "ALTER TABLE t ADD COLUMN c tsvector GENERATED ALWAYS AS (to_tsvector(a)) STORED",
            ["rewrites-table", "default-text-search"],
        ),
        (
            "CREATE INDEX CONCURRENTLY ON t USING gin (to_tsvector(a))",
            ["no-transaction", "default-text-search"],
        ),
        # functions that lose their search_path
        ("ALTER FUNCTION f() RESET search_path", ["search-path"]),
        ("ALTER FUNCTION f() RESET ALL", ["search-path"]),
        ("ALTER FUNCTION f() SET search_path = ''", []),
        ("ALTER FUNCTION f() RESET work_mem", []),
        # not SQL
        ("\\set x 1\nSELECT 1;", ["not-checked"]),
        ("SELEC 1", ["not-checked"]),
        ("", []),
        # said on purpose
        ("-- lint: allow blocks-readers\nDROP TABLE t", []),
        ("-- lint: allow blocks-writers\nDROP TABLE t", ["blocks-readers"]),
    ],
)
def test_lint__rule(sql, expected):
    assert rules(sql) == expected


def test_lint__findings_name_the_line_also_inside_bodies_and_after_accents():
    sql = (
        "-- ação\nSELECT 'ção';\n\nCREATE FUNCTION f() RETURNS tsvector LANGUAGE sql SET search_path = '' AS $f$\n"
        "    SELECT 'é' || 'ü',\n           to_tsvector('ação')\n$f$;\nDO $$\nBEGIN\n    NULL;\n    DROP TABLE t;\nEND\n$$;\n"
    )
    found = [(finding.line, finding.rule) for finding in lint_text(sql, "x.sql")]
    assert found == [(6, "default-text-search"), (11, "blocks-readers")]


def test_lint__file_that_is_not_sql_names_the_line():
    (finding,) = lint_text("SELECT 1;\n\nSELEC 2;\n", "x.sql")
    assert (finding.line, finding.rule) == (3, "not-checked")
    assert 'syntax error at or near "SELEC"' in finding.found


def test_lint__own_migrations_block_nobody():
    """Applied in order, every table is made before it is altered."""
    created: set[str] = set()
    findings = [
        finding
        for path in sorted((ROOT / "migrations").glob("*.sql"))
        for finding in lint_text(path.read_text(encoding="utf-8"), path.name, created)
    ]
    assert [f for f in findings if f.rule not in ("search-path",)] == []


def test_lint_command__exit_codes_and_output(trecho, tmp_path):
    good, bad, operator, broken = (
        tmp_path / name for name in ("good.sql", "bad.sql", "operator.sql", "broken.sql")
    )
    good.write_text("SELECT 1;\n")
    bad.write_text("DROP TABLE t;\n")
    operator.write_text("CREATE EXTENSION vector;\n")
    broken.write_text("SELEC\n")
    ran = trecho("lint", str(good))
    assert (ran.code, ran.out) == (0, f"{good}: ok\n")
    ran = trecho("lint", str(good), str(bad))
    assert ran.code == 1
    assert f"{bad}:1: blocks-readers: DROP of t" in ran.out and f"{good}: ok" in ran.out
    assert trecho("lint", str(bad), "--ignore", "blocks-readers").code == 0
    assert trecho("lint", str(operator)).code == 3
    ran = trecho("lint", str(broken))
    assert ran.code == 1 and "not-checked" in ran.out and ": ok" not in ran.out
    data = json.loads(trecho("lint", "--json", str(bad)).out)
    assert data["findings"][0]["rule"] == "blocks-readers" and data["exit_code"] == 1


def test_lint_command__reads_stdin_and_lists_rules(trecho, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("TRUNCATE t"))
    ran = trecho("lint", "-")
    assert ran.code == 1 and ran.out.startswith("-:1: blocks-readers")
    assert set(json.loads(trecho("lint", "--rules", "--json").out)) == set(RULES)


@pytest.mark.parametrize("args", [("lint",), ("lint", "x.sql", "--ignore", "nonsense")])
def test_lint_command__wrong_use_exits_2(trecho, args):
    assert trecho(*args).code == 2


def test_lint_command__file_that_is_missing_or_binary(trecho, tmp_path):
    binary = tmp_path / "x.sql"
    binary.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none.sql", binary):
        ran = trecho("lint", str(path))
        assert ran.code == 1 and "cannot be read" in ran.err
