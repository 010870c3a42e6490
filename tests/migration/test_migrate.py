"""`trecho migrate` on a real server: what is applied, what is refused, what is left behind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from dump_schema import SCHEMA_FILE, dump
from psycopg import sql
from psycopg.rows import dict_row
from support import ROOT, Connection, Server, as_role

from trecho import resources, runner
from trecho.errors import ClientTooOld, Refused, TrechoError
from trecho.resources import Release
from trecho.statements import parse

HEAD = "-- why: a test\n-- breaks old clients: no\n-- needs operator: no\n"


def open_conn(dsn: str, **options: Any) -> Connection:
    return psycopg.Connection.connect(dsn, autocommit=True, row_factory=dict_row, **options)


def migrate(dsn: str, release: Release, **options: Any) -> runner.Result:
    with open_conn(dsn) as conn:
        return runner.migrate(conn, release, runner.Options(**options), lambda text: None)


def objects(dsn: str) -> set[tuple[str, ...]]:
    """Everything in the database that is not PostgreSQL's own, by catalog, identity and name."""
    found = set()
    with open_conn(dsn) as conn:
        for catalog, name in [
            ("pg_namespace", "nspname"),
            ("pg_class", "relname"),
            ("pg_type", "typname"),
            ("pg_proc", "proname"),
            ("pg_extension", "extname"),
            ("pg_language", "lanname"),
            ("pg_ts_config", "cfgname"),
            ("pg_ts_dict", "dictname"),
        ]:
            query = sql.SQL(
                "SELECT oid::text AS oid, {} AS name, coalesce({}::text, '') AS rights FROM pg_catalog.{}"
            )
            acl = {
                "pg_namespace": "nspacl",
                "pg_class": "relacl",
                "pg_proc": "proacl",
                "pg_language": "lanacl",
            }
            column = sql.Identifier(acl[catalog]) if catalog in acl else sql.NULL
            rows = conn.execute(query.format(sql.Identifier(name), column, sql.Identifier(catalog)))
            found |= {
                (catalog, row["oid"], row["name"], row["rights"])
                for row in rows
                if not row["name"].startswith(("pg_temp_", "pg_toast_temp_"))
            }
    return found


@pytest.fixture
def release(tmp_path: Path, shipped: Release, monkeypatch: pytest.MonkeyPatch) -> Release:
    """A copy of the release that a test may change; `trecho` in this process uses it."""
    root = tmp_path / "release"
    shutil.copytree(shipped.root, root)
    copy = Release(root, root / "plpython/trecho_chunkers")
    monkeypatch.setattr(resources, "current", lambda: fresh(copy))
    return copy


@pytest.fixture(scope="module")
def schema(server: Server, template: str) -> str:
    """The schema as the runner makes it for a superuser."""
    with server.connect(template, autocommit=True) as conn:
        return dump(conn)


def fresh(release: Release) -> Release:
    """The same folder, read again."""
    return Release(release.root, release.chunkers_root)


def add_migration(release: Release, name: str, body: str, head: str = HEAD) -> Release:
    (release.root / "migrations" / name).write_text(head + body, encoding="utf-8")
    return fresh(release)


# ---- applying --------------------------------------------------------------------------------------------


def test_migrate__second_run_changes_nothing(trecho, dsn):
    with open_conn(dsn) as conn:
        before = conn.execute("SELECT * FROM trecho.schema_migrations ORDER BY name").fetchall()
        ran = trecho("migrate", dsn=dsn)
        after = conn.execute("SELECT * FROM trecho.schema_migrations ORDER BY name").fetchall()
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("nothing to do")
    assert after == before and len(before) > 10


def test_migrate__json_lists_every_file_applied(trecho, empty_dsn, shipped):
    ran = trecho("migrate", "--json", dsn=empty_dsn)
    data = json.loads(ran.out)
    names = [item["name"] for item in data["applied"]]
    assert ran.code == 0 and ran.err == ""
    assert names == [s.name for s in (*shipped.privileged, *shipped.migrations, *shipped.behaviour)]
    assert data["chunking"] == "server"


def test_migrate__schema_file_is_up_to_date(schema):
    assert schema == SCHEMA_FILE.read_text(encoding="utf-8"), "run make schema and look at the difference"


def test_migrate__everything_but_plpython_belongs_to_trecho_owner(shared_db):
    rows = shared_db.execute("""
        SELECT c.relname AS name, pg_get_userbyid(c.relowner) AS owner, '' AS language FROM pg_class AS c
         WHERE c.relnamespace = 'trecho'::regnamespace
        UNION ALL
        SELECT p.proname, pg_get_userbyid(p.proowner), l.lanname FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
         WHERE p.pronamespace = 'trecho'::regnamespace
        UNION ALL
        SELECT t.typname, pg_get_userbyid(t.typowner), '' FROM pg_type AS t
         WHERE t.typnamespace = 'trecho'::regnamespace
    """).fetchall()
    assert len(rows) > 100
    others = {(row["name"], row["language"]) for row in rows if row["owner"] != "trecho_owner"}
    plpython = {(row["name"], row["language"]) for row in rows if row["language"] == "plpython3u"}
    # What they return belongs to the superuser, too.
    rows_of_theirs = {(name, "") for name in ("chunk_row", "_chunk_row", "_cut_row", "__cut_row")}
    assert others == plpython | rows_of_theirs | {("chunker_version", "sql"), ("chunker_stamp", "sql")}


def test_migrate__changed_function_file_is_applied_again_alone(trecho, release, dsn):
    path = release.root / "sql" / "00_roles.sql"
    path.write_text(path.read_text() + "\n-- a remark\n")
    ran = trecho("migrate", "--json", dsn=dsn)
    assert [item["name"] for item in json.loads(ran.out)["applied"]] == ["sql/00_roles.sql"]


def test_migrate__function_file_that_is_gone_is_forgotten(trecho, release, dsn):
    path = release.root / "sql" / "99_gone.sql"
    path.write_text("CREATE OR REPLACE VIEW trecho.gone AS SELECT 1 AS one;\n")
    assert trecho("migrate", dsn=dsn).code == 0
    path.unlink()
    (release.root / "sql" / "98_more.sql").write_text("SELECT 1;\n")
    assert trecho("migrate", dsn=dsn).code == 0
    with open_conn(dsn) as conn:
        rows = conn.execute("SELECT name FROM trecho.schema_migrations WHERE name LIKE 'sql/9%'").fetchall()
    assert rows == [{"name": "sql/98_more.sql"}]


def test_migrate__new_migration_alone_runs_and_is_recorded(release, dsn):
    changed = add_migration(release, "9001_more.sql", "CREATE TABLE trecho.more (id int PRIMARY KEY);\n")
    result = migrate(dsn, changed)
    assert [name for name, _, _ in result.applied] == ["migrations/9001_more.sql"]
    with open_conn(dsn) as conn:
        row = conn.execute(
            "SELECT kind, checksum FROM trecho.schema_migrations WHERE name = 'migrations/9001_more.sql'"
        )
        assert row.fetchone() == {"kind": "migration", "checksum": changed.migrations[-1].checksum}


def test_migrate__extensions_in_another_schema_and_empty_search_path(trecho, empty_dsn, schema):
    with open_conn(empty_dsn) as conn:
        conn.execute('CREATE SCHEMA "My extensions"; CREATE EXTENSION vector SCHEMA "My extensions"')
        conn.execute('CREATE EXTENSION unaccent SCHEMA "My extensions"')
        conn.execute(
            sql.SQL("ALTER DATABASE {} SET search_path = ''").format(sql.Identifier(conn.info.dbname))
        )
    ran = trecho("migrate", dsn=empty_dsn)
    assert ran.code == 0, ran.err
    with open_conn(empty_dsn) as conn:
        conn.execute(
            "SELECT * FROM trecho.put_document('docs', E'# Título\n\nrestauração do banco', 'a.txt')"
        )
        found = conn.execute("SELECT source_path FROM trecho.search('restauracao')").fetchall()
        assert found == [{"source_path": "a.txt"}]
        assert dump(conn) == schema


def test_migrate__hostile_search_path_of_the_role_finds_nothing(trecho, empty_dsn):
    with open_conn(empty_dsn) as conn:
        conn.execute("CREATE SCHEMA hostile")
        conn.execute(
            "CREATE FUNCTION hostile.now() RETURNS timestamptz LANGUAGE plpgsql AS $$BEGIN RAISE 'used'; END$$"
        )
        conn.execute("CREATE DOMAIN hostile.text AS pg_catalog.text CHECK (false)")
        conn.execute(
            sql.SQL("ALTER DATABASE {} SET search_path = hostile, pg_catalog").format(
                sql.Identifier(conn.info.dbname)
            )
        )
    ran = trecho("migrate", dsn=empty_dsn)
    assert ran.code == 0, ran.err
    with open_conn(empty_dsn, options="-c search_path=pg_catalog") as conn:
        used = conn.execute(
            "SELECT count(*) AS n FROM pg_attribute WHERE atttypid = 'hostile.text'::regtype"
        ).fetchone()
    assert used == {"n": 0}


# ---- without superuser -----------------------------------------------------------------------------------


def test_migrate__ordinary_role_on_unprepared_database_exits_3_and_changes_nothing(
    trecho, empty_dsn, plain_role
):
    before = objects(empty_dsn)
    ran = trecho("migrate", dsn=as_role(empty_dsn, plain_role))
    assert ran.code == 3
    assert f"role '{plain_role}' may not create extension vector on server" in ran.err
    assert "hint: Have a superuser run the script below" in ran.err
    assert ran.err.endswith("or keep the chunkers out of the server: trecho migrate --chunking client.\n")
    assert "extension plpython3u" in ran.err
    assert objects(empty_dsn) == before
    assert "CREATE EXTENSION IF NOT EXISTS vector" in ran.out
    assert parse(ran.out, "script")


def test_migrate__ordinary_role_on_a_migrated_database_is_told_to_join_the_owner(trecho, dsn, plain_role):
    before = objects(dsn)
    for args in (["migrate"], ["migrate", "--plan"], ["migrate", "status"]):
        assert trecho(*args, dsn=as_role(dsn, plain_role)).code == 3, args
    ran = trecho("migrate", "--json", dsn=as_role(dsn, plain_role))
    (need,) = json.loads(ran.out)["needs"]
    assert (need["code"], need["sql"]) == ("not_owner", f"GRANT trecho_owner TO {plain_role};")
    assert objects(dsn) == before


def test_migrate__ordinary_role_succeeds_after_the_operator_script(
    trecho, empty_dsn, plain_role, tmp_path, schema
):
    script = tmp_path / "dba.sql"
    mine = as_role(empty_dsn, plain_role)
    ran = trecho("migrate", "--script", str(script), dsn=mine)
    assert (ran.code, ran.out) == (3, "")
    assert f"run the script {script}" in ran.err
    for _ in range(2):  # it may be run again
        with open_conn(empty_dsn) as conn:
            conn.execute(script.read_bytes())
    ran = trecho("migrate", dsn=mine)
    assert ran.code == 0, ran.err
    assert trecho("migrate", dsn=mine).out.startswith("nothing to do")
    with open_conn(empty_dsn) as conn:
        assert dump(conn) == schema


def test_migrate__ordinary_role_stops_at_newer_chunkers_until_the_script_ran(trecho, release, dsn, make_role):
    mine = as_role(dsn, make_role("trecho_owner"))
    assert trecho("migrate", dsn=mine).code == 0
    path = release.chunkers_root / "windows.py"
    path.write_text(path.read_text() + "\n# changed\n")
    add_migration(release, "9001_more.sql", "CREATE TABLE trecho.more (id int PRIMARY KEY);\n")
    before = objects(dsn)
    ran = trecho("migrate", "--json", dsn=mine)
    data = json.loads(ran.out)
    assert (ran.code, data["exit_code"]) == (3, 3)
    assert [need["code"] for need in data["needs"]] == ["chunkers_not_current"]
    assert "--chunking client" in data["hint"]
    assert objects(dsn) == before
    with open_conn(dsn) as conn:
        conn.execute(data["script"].encode())
    ran = trecho("migrate", "--json", dsn=mine)
    assert [item["name"] for item in json.loads(ran.out)["applied"]] == ["migrations/9001_more.sql"]


def test_migrate__client_chunking_needs_no_plpython_and_is_remembered(trecho, empty_dsn, make_role):
    role = make_role("trecho_owner", options="CREATEROLE")
    with open_conn(empty_dsn) as conn:
        conn.execute("CREATE EXTENSION vector; CREATE EXTENSION unaccent")
        conn.execute("CREATE SCHEMA trecho AUTHORIZATION trecho_owner")
        conn.execute("GRANT USAGE ON SCHEMA trecho TO trecho_reader, trecho_writer, trecho_operator")
    mine = as_role(empty_dsn, role)
    refused = trecho("migrate", dsn=mine)
    assert refused.code == 3 and "plpython3u" in refused.err
    ran = trecho("migrate", "--chunking", "client", dsn=mine)
    assert ran.code == 0, ran.err
    again = trecho("migrate", "--json", dsn=mine)
    assert (again.code, json.loads(again.out)["chunking"]) == (0, "client")
    with open_conn(empty_dsn) as conn:
        rows = conn.execute("SELECT extname FROM pg_extension WHERE extname = 'plpython3u'").fetchall()
        assert rows == []
        assert conn.execute("SELECT trecho.chunking() AS c").fetchone() == {"c": "client"}


def test_migrate__client_chunking_is_changed_to_server_only_when_told(trecho, empty_dsn):
    assert trecho("migrate", "--chunking", "client", dsn=empty_dsn).code == 0
    assert trecho("migrate", dsn=empty_dsn).out.startswith("nothing to do")
    ran = trecho("migrate", "--json", "--chunking", "server", dsn=empty_dsn)
    assert [item["name"] for item in json.loads(ran.out)["applied"]] == ["sql/privileged/20_chunkers.sql"]
    with open_conn(empty_dsn) as conn:
        assert conn.execute("SELECT trecho.chunking() AS c").fetchone() == {"c": "server"}
        assert conn.execute("SELECT count(*) AS n FROM trecho.chunk('a.txt', 'x')").fetchone() == {"n": 1}


def test_migrate__role_that_may_create_roles_and_schemas_finds_the_extensions(trecho, empty_dsn, make_role):
    """A managed server: somebody made the extensions, nobody is a superuser."""
    role = make_role("trecho_owner", options="CREATEROLE")
    with open_conn(empty_dsn) as conn:
        conn.execute("CREATE EXTENSION vector; CREATE EXTENSION unaccent")
        conn.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(
                sql.Identifier(conn.info.dbname), sql.Identifier(role)
            )
        )
    ran = trecho("migrate", "--chunking", "client", dsn=as_role(empty_dsn, role))
    assert ran.code == 0, ran.err


def test_migrate__plpython_function_of_an_ordinary_role_is_refused(trecho, empty_dsn, plain_role):
    with open_conn(empty_dsn) as conn:
        conn.execute("CREATE EXTENSION plpython3u; CREATE SCHEMA trecho AUTHORIZATION trecho_owner")
        conn.execute(
            "CREATE FUNCTION trecho.chunk_markdown(content text) RETURNS text LANGUAGE plpython3u AS 'return 1'"
        )
        conn.execute(
            sql.SQL("ALTER FUNCTION trecho.chunk_markdown(text) OWNER TO {}").format(
                sql.Identifier(plain_role)
            )
        )
    before = objects(empty_dsn)
    ran = trecho("migrate", dsn=empty_dsn)
    assert ran.code == 3
    assert "trecho.chunk_markdown(text)" in ran.err
    assert objects(empty_dsn) == before


# ---- refusals --------------------------------------------------------------------------------------------


def test_migrate__edited_migration_is_refused_by_name(trecho, release, dsn):
    path = release.root / "migrations" / "0002_documents.sql"
    path.write_text(path.read_text() + "-- edited\n")
    ran = trecho("migrate", dsn=dsn)
    assert ran.code == 4
    assert "error: migrations/0002_documents.sql was edited after it ran" in ran.err
    assert "hint: " in ran.err
    assert trecho("migrate", "status", dsn=dsn).code == 4
    assert trecho("migrate", "--plan", dsn=dsn).code == 4


def test_migrate__missing_migration_is_refused_by_name(trecho, release, dsn):
    (release.root / "migrations" / "0007_lexeme_stats.sql").unlink()
    ran = trecho("migrate", dsn=dsn)
    assert ran.code == 4
    assert "error: migrations/0007_lexeme_stats.sql is missing here, but ran in this database" in ran.err


def test_migrate__out_of_order_migration_is_refused_by_name(release, dsn):
    later = add_migration(release, "9002_later.sql", "CREATE TABLE trecho.later (id int);\n")
    migrate(dsn, later)
    both = add_migration(later, "9001_earlier.sql", "CREATE TABLE trecho.earlier (id int);\n")
    with pytest.raises(
        Refused, match=r"9001_earlier\.sql is out of order: migrations/9002_later\.sql ran before it"
    ):
        migrate(dsn, both)


def test_migrate__two_migrations_of_one_number_are_refused(release, dsn):
    add_migration(release, "9001_a.sql", "SELECT 1;")
    both = add_migration(release, "9001_b.sql", "SELECT 1;")
    with pytest.raises(Refused, match=r"9001_a\.sql and migrations/9001_b\.sql"):
        migrate(dsn, both)


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        ("", "why"),
        ("-- why: x\n-- needs operator: no\n", "breaks old clients"),
        ("-- why: x\n-- breaks old clients: maybe\n-- needs operator: no\n", "breaks old clients"),
        ("-- why: x\n-- breaks old clients: no\n", "needs operator"),
        (HEAD + "-- transaction: perhaps\n", "transaction"),
        (HEAD + "-- why: y\n", "twice"),
    ],
)
def test_migrate__marker_that_is_missing_or_wrong_is_refused(release, dsn, head, complaint):
    changed = add_migration(release, "9001_more.sql", "SELECT 1;\n", head=head)
    with pytest.raises(Refused, match=complaint) as caught:
        migrate(dsn, changed)
    assert "9001_more.sql" in str(caught.value)
    assert caught.value.hint


def test_migrate__older_chunkers_do_not_replace_newer_ones(release, shipped, dsn):
    (release.chunkers_root / "version.py").write_text("CHUNKER_VERSION: int = 2\n")
    migrate(dsn, fresh(release))
    with pytest.raises(ClientTooOld) as caught:
        migrate(dsn, shipped)
    assert caught.value.sqlstate == "TR004"


# ---- failures --------------------------------------------------------------------------------------------


def test_migrate__failing_statement_names_file_line_and_statement_and_leaves_nothing(
    trecho, release, empty_dsn
):
    add_migration(
        release,
        "9001_bad.sql",
        "-- comentário com acentuação\nCREATE TABLE trecho.good (id int);\n\nSELECT 'é',\n       nothing\n  FROM trecho.good;\n",
    )
    before = objects(empty_dsn)
    ran = trecho("migrate", "--json", dsn=empty_dsn)
    data = json.loads(ran.out)
    assert ran.code == 1
    assert (data["file"], data["line"], data["sqlstate"]) == ("migrations/9001_bad.sql", 8, "42703")
    assert data["statement"] == "SELECT 'é',"
    assert ran.err.startswith('error: migrations/9001_bad.sql:8: column "nothing" does not exist')
    assert objects(empty_dsn) == before


def test_migrate__file_that_is_not_sql_names_file_and_line_before_anything_runs(trecho, release, empty_dsn):
    add_migration(release, "9001_bad.sql", "SELECT 1;\nSELEC 2;\n")
    before = objects(empty_dsn)
    ran = trecho("migrate", dsn=empty_dsn)
    assert ran.code == 1
    assert ran.err.startswith('error: migrations/9001_bad.sql:5: syntax error at or near "SELEC"')
    assert objects(empty_dsn) == before


def test_migrate__table_that_somebody_uses_is_retried_then_named(release, dsn):
    changed = add_migration(release, "9001_more.sql", "ALTER TABLE trecho.blobs ADD COLUMN more text;\n")
    with open_conn(dsn) as reader:
        reader.autocommit = False
        reader.execute("SELECT count(*) FROM trecho.blobs")
        with pytest.raises(runner.StatementFailed) as caught:
            migrate(dsn, changed, lock_timeout_ms=50, attempts=2)
        assert (caught.value.file, caught.value.sqlstate) == ("migrations/9001_more.sql", "55P03")
        reader.rollback()
    assert [name for name, _, _ in migrate(dsn, changed).applied] == ["migrations/9001_more.sql"]


def test_migrate__lock_that_is_freed_in_time_is_waited_for(release, dsn):
    changed = add_migration(release, "9001_more.sql", "ALTER TABLE trecho.blobs ADD COLUMN more text;\n")
    tried = threading.Event()
    with open_conn(dsn) as reader, open_conn(dsn) as conn:
        reader.autocommit = False
        reader.execute("SELECT count(*) FROM trecho.blobs")

        def report(text: str) -> None:
            if "trying again" in text and not tried.is_set():
                tried.set()
                reader.rollback()

        result = runner.migrate(conn, changed, runner.Options(lock_timeout_ms=50), report)
    assert tried.is_set()
    assert [name for name, _, _ in result.applied] == ["migrations/9001_more.sql"]


def many(dsn: str, release: Release, count: int) -> list[runner.Result | BaseException]:
    """Run `count` migrations at the same moment."""
    results: list[runner.Result | BaseException] = []
    barrier = threading.Barrier(count)

    def one() -> None:
        try:
            with open_conn(dsn) as conn:
                barrier.wait()
                results.append(runner.migrate(conn, release, runner.Options(), lambda text: None))
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def assert_applied_once(results: list[runner.Result | BaseException], files: int) -> None:
    counts = sorted(len(r.applied) if isinstance(r, runner.Result) else -1 for r in results)
    assert counts == [0] * (len(results) - 1) + [files], results


def test_migrate__two_at_once_apply_once(empty_dsn, shipped):
    files = len(shipped.privileged) + len(shipped.migrations) + len(shipped.behaviour)
    assert_applied_once(many(empty_dsn, shipped, 2), files)


@pytest.mark.slow
def test_migrate__ten_at_once_apply_once(empty_dsn, shipped):
    files = len(shipped.privileged) + len(shipped.migrations) + len(shipped.behaviour)
    assert_applied_once(many(empty_dsn, shipped, 10), files)


@pytest.mark.slow
def test_migrate__five_at_once_apply_once_in_each_of_twenty_rounds(make_database, shipped):
    files = len(shipped.privileged) + len(shipped.migrations) + len(shipped.behaviour)
    for _ in range(20):
        assert_applied_once(many(make_database(), shipped, 5), files)


@pytest.mark.slow
def test_migrate__five_processes_at_once_one_applies_and_four_have_nothing_to_do(empty_dsn):
    command = [sys.executable, "-m", "trecho", "migrate", "--dsn", empty_dsn]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    told = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 5, told
    firsts = sorted(out.split(" ", 1)[0] for out, _ in told)
    assert firsts == ["applied", "nothing", "nothing", "nothing", "nothing"]
    assert not [err for _, err in told if "error" in err]


def test_migrate__two_at_once_with_an_index_built_concurrently_do_not_wait_for_each_other(release, dsn):
    changed = add_migration(
        release,
        "9001_index.sql",
        "-- transaction: no\nCREATE INDEX CONCURRENTLY IF NOT EXISTS blobs_more ON trecho.blobs (byte_count);\n",
    )
    assert_applied_once(many(dsn, changed, 3), 1)


def test_migrate__waits_no_longer_than_told_and_names_the_holder(dsn, release):
    changed = add_migration(release, "9001_more.sql", "SELECT 1;\n")
    with open_conn(dsn, application_name="the holder") as holder:
        holder.execute(f"SELECT pg_advisory_lock({runner.LOCK_KEY})")
        with pytest.raises(TrechoError, match="the holder"):
            migrate(dsn, changed, wait_ms=300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "number", "code"),
    [
        ("migrations/9001_slow.sql", signal.SIGKILL, -9),
        ("migrations/9001_slow.sql", signal.SIGTERM, -15),
        ("migrations/9001_slow.sql", signal.SIGINT, 130),
        ("migrations/0000_slow.sql", signal.SIGKILL, -9),
        ("sql/99_slow.sql", signal.SIGKILL, -9),
        ("sql/privileged/99_slow.sql", signal.SIGKILL, -9),
    ],
    ids=["kill", "term", "int", "kill at first", "kill at last", "kill in the privileged layer"],
)
def test_migrate__run_that_is_stopped_leaves_nothing_and_the_next_one_is_clean(
    release, empty_dsn, schema, file, number, code
):
    before = objects(empty_dsn)
    path = release.root / file
    path.write_text(HEAD + "SELECT pg_catalog.pg_sleep(600);\n", encoding="utf-8")
    program = (
        "import sys; from pathlib import Path; from trecho import cli, resources\n"
        "root = Path(sys.argv[1])\n"
        "resources.current = lambda: resources.Release(root, root / 'plpython/trecho_chunkers')\n"
        "sys.exit(cli.main(['migrate', '--dsn', sys.argv[2]]))\n"
    )
    # What a shell puts in the background ignores Ctrl-C, and hands that on.
    process = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-c", program, str(release.root), empty_dsn],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    with open_conn(empty_dsn) as conn:
        asleep = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(600)%'"
        asleep += " AND pid <> pg_backend_pid()"
        wait_until(lambda: conn.execute(asleep).fetchone() is not None)
        process.send_signal(number)
        _, err = process.communicate()
        assert process.returncode == code
        if number == signal.SIGINT:
            assert err == "error: interrupted\n"
        else:
            # The server notices that the client is gone when it next writes to it; a test need not wait for that.
            conn.execute(f"SELECT pg_terminate_backend(pid) FROM ({asleep}) AS a")
        wait_until(lambda: conn.execute(asleep).fetchone() is None)
    assert objects(empty_dsn) == before
    path.unlink()
    assert len(migrate(empty_dsn, fresh(release)).applied) > 10
    with open_conn(empty_dsn) as conn:
        assert dump(conn) == schema


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)


# ---- outside a transaction -------------------------------------------------------------------------------


def test_migrate__lone_statement_runs_outside_a_transaction_between_its_neighbours(release, dsn):
    add_migration(release, "9001_table.sql", "CREATE TABLE trecho.more (id int);\n")
    add_migration(
        release,
        "9002_index.sql",
        "-- transaction: no\nCREATE INDEX CONCURRENTLY IF NOT EXISTS more_id ON trecho.more (id);\n",
    )
    changed = add_migration(release, "9003_after.sql", "ALTER TABLE trecho.more ADD COLUMN t text;\n")
    result = migrate(dsn, changed)
    assert [name for name, _, _ in result.applied] == [
        f"migrations/{name}" for name in ("9001_table.sql", "9002_index.sql", "9003_after.sql")
    ]
    with open_conn(dsn) as conn:
        row = conn.execute(
            "SELECT indisvalid, pg_get_userbyid(relowner) AS owner FROM pg_index JOIN pg_class c"
            " ON c.oid = indexrelid WHERE indexrelid = 'trecho.more_id'::regclass"
        ).fetchone()
        assert row == {"indisvalid": True, "owner": "trecho_owner"}
        # A backend frees its locks a moment after its client has gone; locks of other databases are not ours.
        query = (
            "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND objid = %s"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        deadline = time.monotonic() + 30
        while (locks := conn.execute(query, (runner.LOCK_KEY & 0xFFFFFFFF,)).fetchone()) != {"n": 0}:
            assert time.monotonic() < deadline, locks


def test_migrate__invalid_index_of_a_killed_run_is_built_again(release, dsn):
    with open_conn(dsn) as conn:
        conn.execute("CREATE TABLE trecho.more (id int); ALTER TABLE trecho.more OWNER TO trecho_owner")
        conn.execute("INSERT INTO trecho.more VALUES (1), (1)")
        with pytest.raises(psycopg.errors.UniqueViolation):  # as a killed build leaves it: there, and invalid
            conn.execute("CREATE UNIQUE INDEX CONCURRENTLY more_id ON trecho.more (id)")
        conn.execute("DELETE FROM trecho.more WHERE ctid = '(0,1)'")
    changed = add_migration(
        release,
        "9001_index.sql",
        "-- transaction: no\nCREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS more_id ON trecho.more (id);\n",
    )
    migrate(dsn, changed)
    with open_conn(dsn) as conn:
        row = conn.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'trecho.more_id'::regclass"
        ).fetchone()
    assert row == {"indisvalid": True}


def test_migrate__lone_statement_that_fails_keeps_what_precedes_and_is_pending(release, dsn):
    add_migration(
        release,
        "9001_table.sql",
        "CREATE TABLE trecho.more (id int);\nINSERT INTO trecho.more VALUES (1), (1);\n",
    )
    changed = add_migration(
        release,
        "9002_index.sql",
        "-- transaction: no\nCREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS more_id ON trecho.more (id);\n",
    )
    with pytest.raises(runner.StatementFailed) as caught:
        migrate(dsn, changed)
    assert (caught.value.file, caught.value.line) == ("migrations/9002_index.sql", 5)
    with open_conn(dsn) as conn:
        conn.execute("TRUNCATE trecho.more")
    assert [name for name, _, _ in migrate(dsn, changed).applied] == ["migrations/9002_index.sql"]


def test_migrate__lone_statement_whose_verification_fails_is_not_recorded(release, dsn):
    changed = add_migration(
        release,
        "9001_odd.sql",
        "VACUUM trecho.blobs;\n",
        head=HEAD + "-- transaction: no\n-- verify: SELECT false\n",
    )
    with pytest.raises(TrechoError, match=r"9001_odd\.sql ran, and its verification fails"):
        migrate(dsn, changed)
    with open_conn(dsn) as conn:
        row = conn.execute("SELECT FROM trecho.schema_migrations WHERE name LIKE '%%9001%%'").fetchone()
    assert row is None


@pytest.mark.parametrize(
    ("body", "complaint"),
    [("SELECT 1; SELECT 2;\n", "2 statements"), ("VACUUM trecho.blobs;\n", "how to verify")],
)
def test_migrate__file_without_transaction_holds_one_verified_statement(release, dsn, body, complaint):
    changed = add_migration(release, "9001_odd.sql", body, head=HEAD + "-- transaction: no\n")
    with pytest.raises(Refused, match=complaint):
        migrate(dsn, changed)


# ---- migrations that need an operator --------------------------------------------------------------------


def test_migrate__migration_marked_for_an_operator_stops_an_ordinary_role(trecho, release, dsn, make_role):
    head = "-- why: a setting of the database\n-- breaks old clients: no\n-- needs operator: yes\n"
    add_migration(release, "9001_operator.sql", "CREATE SCHEMA trecho_extra;\n", head=head)
    mine = as_role(dsn, make_role("trecho_owner"))
    ran = trecho("migrate", dsn=mine)
    assert ran.code == 3
    assert "migrations/9001_operator.sql needs an operator" in ran.err
    with open_conn(dsn) as conn:
        conn.execute(ran.out.encode())
    assert trecho("migrate", dsn=mine).out.startswith("nothing to do")


# ---- plan, script, status --------------------------------------------------------------------------------


def test_plan__lists_what_is_pending_and_changes_nothing(trecho, empty_dsn):
    before = objects(empty_dsn)
    ran = trecho("migrate", "--plan", dsn=empty_dsn)
    assert ran.code == 0
    assert "pending   migrations/0001_text_search.sql" in ran.out
    assert objects(empty_dsn) == before


def test_plan__exits_3_for_an_ordinary_role_on_an_unprepared_database(trecho, empty_dsn, plain_role):
    before = objects(empty_dsn)
    ran = trecho("migrate", "--plan", "--json", dsn=as_role(empty_dsn, plain_role))
    data = json.loads(ran.out)
    assert (ran.code, data["exit_code"], data["superuser"]) == (3, 3, False)
    assert {"vector_not_creatable", "unaccent_not_creatable", "plpython3u_not_creatable"} <= {
        need["code"] for need in data["needs"] if need["operator"]
    }
    assert objects(empty_dsn) == before


def test_plan__shows_what_would_block_readers(trecho, release, dsn):
    add_migration(
        release, "9001_more.sql", "CREATE TABLE trecho.more (id int);\nALTER TABLE trecho.blobs ADD c text;\n"
    )
    ran = trecho("migrate", "--plan", dsn=dsn)
    assert ran.code == 0
    assert "migrations/9001_more.sql:5: blocks-readers: ALTER TABLE trecho.blobs ADD COLUMN" in ran.out
    (item,) = json.loads(trecho("migrate", "--plan", "--json", dsn=dsn).out)["pending"]
    assert [(finding["line"], finding["rule"]) for finding in item["lint"]] == [(5, "blocks-readers")]


def test_sql__script_makes_the_same_schema_and_the_same_record(trecho, empty_dsn, schema):
    ran = trecho("migrate", "--sql", dsn=empty_dsn)
    assert ran.code == 0
    with open_conn(empty_dsn) as conn:
        conn.execute(ran.out.encode())
        assert dump(conn) == schema
    assert trecho("migrate", dsn=empty_dsn).out.startswith("nothing to do")


def test_sql__script_refuses_a_database_that_has_moved_on(trecho, empty_dsn):
    script = trecho("migrate", "--sql", dsn=empty_dsn).out.encode()
    with open_conn(empty_dsn) as conn:
        conn.execute(script)
        with pytest.raises(psycopg.errors.RaiseException, match="other migrations have run") as caught:
            conn.execute(script)
    assert "trecho migrate --sql" in (caught.value.diag.message_hint or "")


@pytest.mark.slow
def test_sql__script_runs_in_psql(trecho, empty_dsn, tmp_path):
    psql = shutil.which("psql")
    assert psql, "psql is part of what this project runs on"
    script = tmp_path / "all.sql"
    assert trecho("migrate", "--sql", "--script", str(script), dsn=empty_dsn).code == 0
    done = subprocess.run(
        [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", empty_dsn, "-f", str(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert trecho("migrate", dsn=empty_dsn).out.startswith("nothing to do")


def test_status__exits_6_when_something_is_pending_and_0_when_nothing_is(trecho, release, dsn):
    assert trecho("migrate", "status", dsn=dsn).code == 0
    add_migration(release, "9001_more.sql", "SELECT 1;\n")
    ran = trecho("migrate", "status", dsn=dsn)
    assert ran.code == 6
    assert "pending   migrations/9001_more.sql" in ran.out
    data = json.loads(trecho("migrate", "status", "--json", dsn=dsn).out)
    assert [item["name"] for item in data["pending"]] == ["migrations/9001_more.sql"]
    assert {"name", "checksum", "applied_at", "applied_by"} <= data["applied"][0].keys()


def test_migrate__old_signatures_go_so_that_no_call_is_ambiguous(trecho, dsn):
    with open_conn(dsn) as conn:
        conn.execute("DELETE FROM trecho.schema_migrations WHERE name = 'migrations/0009_signatures.sql'")
        conn.execute("SET ROLE trecho_owner")
        conn.execute(
            "CREATE FUNCTION trecho.pending_embeddings(integer DEFAULT NULL) RETURNS integer RETURN 1"
        )
        with pytest.raises(psycopg.errors.AmbiguousFunction):
            conn.execute("SELECT * FROM trecho.pending_embeddings()")
    ran = trecho("migrate", dsn=dsn)
    assert ran.code == 0, ran.err
    with open_conn(dsn) as conn:
        assert conn.execute("SELECT * FROM trecho.pending_embeddings()").rowcount >= 0
        twice = conn.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'trecho'::regnamespace GROUP BY 1 HAVING count(*) > 1"
        ).fetchall()
    assert not {row["proname"] for row in twice} & {"publish_pass", "pending_embeddings", "claim_embeddings"}
