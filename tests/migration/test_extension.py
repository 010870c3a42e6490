"""The extension that `trecho bundle` writes: its files, and what CREATE, UPDATE, dump and DROP do on a real server.

A server reads an extension from its own files, so the tests that need one run on a further private server of this
checkout, whatever TRECHO_TEST_DSN says.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import run_cli
from dump_schema import dump
from psycopg import conninfo, sql
from psycopg.rows import dict_row
from support import ROOT, Connection
from test_migrate import HEAD, add_migration, fresh, objects

sys.path.insert(0, str(ROOT / "tests" / "server"))
from servers import PrivateServer

from trecho import bundle, resources
from trecho.errors import Refused
from trecho.resources import Release

PLANTAO = (
    "# Plantão\n\n## Escala\n\nA escala muda às segundas-feiras.\n\n## Férias\n\nAs férias são em julho.\n"
)


@pytest.fixture
def release(tmp_path: Path, shipped: Release) -> Release:
    """A copy of the release that a test may change."""
    root = tmp_path / "release"
    shutil.copytree(shipped.root, root)
    return Release(root, root / "plpython/trecho_chunkers", "1.0")


def versioned(release: Release, version: str) -> Release:
    return Release(release.root, release.chunkers_root, version)


# ---- files -----------------------------------------------------------------------------------------------


def test_bundle__writes_a_control_file_and_one_script(trecho, tmp_path, shipped):
    ran = trecho("bundle", "--json", str(tmp_path / "made"))
    assert (ran.code, ran.err) == (0, "")
    names = {Path(name).name for name in json.loads(ran.out)["files"]}
    assert names == {"trecho.control", f"trecho--{shipped.version}.sql"}
    assert names == {path.name for path in (tmp_path / "made").iterdir()}
    control = (tmp_path / "made" / "trecho.control").read_text()
    assert "requires = 'vector, plpython3u, unaccent'" in control
    assert f"default_version = '{shipped.version}'" in control
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "made").iterdir()} == {0o644}


def test_bundle__script_holds_every_file_once_and_no_extension_of_others(release):
    text = bundle.install_script(release)
    for source in (*release.privileged, *release.migrations, *release.behaviour):
        if source.name != "sql/privileged/00_extensions.sql":
            assert text.count(f"\n-- {source.name}\n") == 1, source.name
    assert "CREATE EXTENSION IF NOT EXISTS" not in text
    assert set(re.findall(r"@extschema:(\w+)@", text)) == {"vector", "unaccent"}
    assert "@extschema@" not in text and '"@extschema' not in text


def test_bundle__stays_under_a_megabyte(shipped):
    assert len(bundle.install_script(shipped).encode()) < 1_000_000


@pytest.mark.parametrize("version", ["0.1.0.dev0", "1.0-rc1", ""])
def test_bundle__version_that_is_no_release_is_refused(release, version):
    with pytest.raises(Refused, match="not one of a release"):
        bundle.bundle(versioned(release, version))


def test_bundle__each_earlier_release_has_a_script(release):
    for version in ("0.9", "0.10"):
        bundle.freeze(versioned(release, version))
    add_migration(release, "9001_more.sql", "CREATE TABLE trecho.more (id int);\n")
    files = bundle.bundle(fresh_of(release, "1.0"))
    assert list(files) == [
        "trecho.control",
        "trecho--1.0.sql",
        "trecho--0.9--1.0.sql",
        "trecho--0.10--1.0.sql",
    ]
    upgrade = files["trecho--0.10--1.0.sql"]
    assert upgrade.count("-- migrations/") == 1 and "CREATE TABLE trecho.more" in upgrade
    assert upgrade.count("\n-- sql/41_search.sql\n") == 1


def fresh_of(release: Release, version: str) -> Release:
    return versioned(fresh(release), version)


def test_bundle__frozen_migration_that_changed_is_refused_by_name(release):
    bundle.freeze(versioned(release, "0.9"))
    path = release.root / "migrations" / "0002_documents.sql"
    path.write_text(path.read_text() + "-- edited\n")
    with pytest.raises(Refused, match=r"0002_documents\.sql is another one, and release 0\.9 has it"):
        bundle.bundle(fresh_of(release, "1.0"))
    path.unlink()
    with pytest.raises(Refused, match=r"0002_documents\.sql is missing"):
        bundle.bundle(fresh_of(release, "1.0"))


def test_bundle__frozen_release_takes_no_further_migration(release):
    bundle.freeze(release)
    assert bundle.freeze(fresh_of(release, "1.0")).name == "1.0.json"
    add_migration(release, "9001_more.sql", "CREATE TABLE trecho.more (id int);\n")
    for act in (bundle.bundle, bundle.freeze):
        with pytest.raises(Refused, match=r"9001_more\.sql is not in release 1\.0, which is frozen"):
            act(fresh_of(release, "1.0"))


def test_bundle__migration_before_the_last_released_one_is_refused(release):
    add_migration(release, "9002_later.sql", "CREATE TABLE trecho.later (id int);\n")
    bundle.freeze(fresh_of(release, "0.9"))
    add_migration(release, "9001_earlier.sql", "CREATE TABLE trecho.earlier (id int);\n")
    with pytest.raises(Refused, match=r"9001_earlier\.sql is out of order"):
        bundle.bundle(fresh_of(release, "1.0"))


def test_bundle__index_built_concurrently_is_built_at_once_in_the_script(release):
    add_migration(
        release,
        "9001_index.sql",
        "-- transaction: no\nCREATE INDEX CONCURRENTLY IF NOT EXISTS blobs_more ON trecho.blobs (byte_count);\n",
    )
    text = bundle.install_script(fresh_of(release, "1.0"))
    assert "\nCREATE INDEX IF NOT EXISTS blobs_more ON trecho.blobs (byte_count);\n" in text


def test_bundle__other_statement_outside_a_transaction_is_refused(release):
    add_migration(
        release,
        "9001_odd.sql",
        "VACUUM trecho.blobs;\n",
        head=HEAD + "-- transaction: no\n-- verify: SELECT true\n",
    )
    with pytest.raises(Refused, match=r"9001_odd\.sql cannot run in a transaction"):
        bundle.bundle(fresh_of(release, "1.0"))


def test_bundle__token_of_an_extension_that_is_not_required_is_refused(release):
    (release.root / "sql" / "99_odd.sql").write_text("SELECT @extschema:postgis@.x();\n")
    with pytest.raises(Refused, match="postgis"):
        bundle.bundle(fresh_of(release, "1.0"))


def test_make_install__writes_where_pg_config_says(tmp_path):
    config = tmp_path / "pg_config"
    config.write_text(f'#!/bin/sh\n[ "$1" = --sharedir ] && echo "{tmp_path}/share"\n')
    config.chmod(0o755)
    subprocess.run(
        ["make", "-s", "install", f"PG_CONFIG={config}"], cwd=ROOT, check=True, capture_output=True
    )
    made = {path.name for path in (tmp_path / "share" / "extension").iterdir()}
    assert made == {"trecho.control", f"trecho--{resources.current().version}.sql"}


def test_make_install__stops_where_there_is_no_pg_config(tmp_path):
    ran = subprocess.run(
        ["make", "-s", "install", f"PG_CONFIG={tmp_path}/none", f"DESTDIR={tmp_path}"],
        cwd=ROOT,
        check=False,
        capture_output=True,
    )
    assert ran.returncode != 0
    assert list(tmp_path.iterdir()) == []


# ---- on a server -----------------------------------------------------------------------------------------


@dataclass
class Host:
    """A private server into whose files extensions can be put. made: databases so far."""

    server: PrivateServer
    dsn: str
    folder: Path
    made: list[str] = field(default_factory=list)

    def install(self, release: Release, tmp_path: Path) -> None:
        """Put the files of this release, and of no other, into the server."""
        files = tmp_path / f"files-{uuid.uuid4().hex[:8]}"
        bundle.write(release, files)
        self.remove()
        self.server.run("install", str(files))

    def remove(self) -> None:
        for path in self.folder.glob("trecho*"):
            path.unlink()

    def database(self) -> str:
        """DSN (superuser) of a new database."""
        name = f"d{len(self.made)}"
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        self.made.append(name)
        return conninfo.make_conninfo(self.dsn, dbname=name)

    def dump(self, dsn: str, *options: str) -> str:
        return self.server.run("exec", "pg_dump", *options, "--dbname", dsn).stdout

    def restore(self, script: str) -> str:
        """DSN of a new database in which the script has run without an error."""
        dsn = self.database()
        self.server.run("exec", "psql", "-qX", "-v", "ON_ERROR_STOP=1", "--dbname", dsn, stdin=script)
        return dsn


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """One server for these tests. Others may share its files: they wait, and get back what was there."""
    server = PrivateServer(f"test-{uuid.uuid4().hex[:8]}")
    dsn = server.start()
    try:
        share = server.run("exec", "pg_config", "--sharedir").stdout.strip()
        folder = Path(server.status()["root"].rstrip("/") + share) / "extension"
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = {path: path.read_bytes() for path in folder.glob("trecho*")}
        host = Host(server, dsn, folder)
        try:
            yield host
        finally:
            host.remove()
            for path, content in before.items():
                path.write_bytes(content)
            os.close(lock)
    finally:
        server.run("clean")


@pytest.fixture
def extended(host: Host, shipped: Release, tmp_path: Path) -> str:
    """DSN of a database with this release's extension."""
    host.install(shipped, tmp_path)
    dsn = host.database()
    with connect(dsn) as conn:
        conn.execute("CREATE EXTENSION trecho CASCADE")
    return dsn


def connect(dsn: str, **options: Any) -> Connection:
    return psycopg.Connection.connect(dsn, autocommit=True, row_factory=dict_row, **options)


def schema_of(dsn: str) -> str:
    """Without the extension itself, and with the first version, which trecho migrate makes at once."""
    with connect(dsn) as conn:
        conn.execute("SELECT trecho._ensure_version()")
        return dump(conn).replace("CREATE EXTENSION trecho;\n", "")


def contents(dsn: str) -> dict[str, list[str]]:
    """Every row of every table of ours, and where the sequences stand."""
    with connect(dsn) as conn:
        names = [
            row["name"]
            for row in conn.execute(
                "SELECT c.oid::regclass::text AS name FROM pg_class AS c WHERE c.relnamespace = 'trecho'::regnamespace"
                " AND c.relkind IN ('r', 'S') AND c.relname <> ALL (%s) ORDER BY 1",
                (list(bundle.NOT_DUMPED),),
            )
        ]
        # log_cnt is a detail of the write-ahead log; a column that an upgrade adds is NULL in older rows.
        return {
            name: sorted(
                str({k: v for k, v in row.items() if v is not None and k != "log_cnt"})
                for row in conn.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(*name.split("."))))
            )
            for name in names
        }


def fill(dsn: str) -> None:
    """Something in most tables: documents, a removal, a pass, a recipe, a grant taken away and one given."""
    with connect(dsn) as conn:
        for path in ("plantao.md", "outro.md"):
            conn.execute("SELECT trecho.put_document('docs', %s, %s)", (PLANTAO + path, path))
        conn.execute("SELECT trecho.remove_document('docs', 'outro.md')")
        conn.execute(
            "SELECT trecho.put_document('adr', '# Uma decisão', 'adr/0001-uma.md', project => 'outro')"
        )
        conn.execute("SELECT trecho.grant_project('trecho_writer', 'outro')")
        conn.execute("SELECT trecho.revoke_project('trecho_reader', '*')")
        conn.execute("""SELECT trecho.configure('{"model_version": "2"}')""")
        conn.execute("SELECT trecho.refresh_lexeme_stats()")
        row = conn.execute(
            "SELECT trecho.begin_pass('p', 'main', 'set', ARRAY['docs']::trecho.chunk_scope[], 'full') AS id"
        )
        conn.execute("SELECT trecho.abandon_pass(%s, 'a test')", (next(iter(row.fetchone().values())),))  # type: ignore[union-attr]


def found(dsn: str) -> list[Any]:
    with connect(dsn) as conn:
        rows = conn.execute("SELECT * FROM trecho.search('quando muda a escala', k => 5)").fetchall()
        assert rows
        return [{**row, "score": round(row["score"], 6)} for row in rows]


@pytest.mark.slow
def test_create_extension__makes_what_trecho_migrate_makes(host, extended):
    migrated = host.database()
    assert run_cli("migrate", "--dsn", migrated).code == 0
    assert schema_of(extended) == schema_of(migrated)
    with connect(extended) as conn, connect(migrated) as other:
        query = "SELECT object, file, fingerprint FROM trecho.schema_objects ORDER BY 1"
        assert conn.execute(query).fetchall() == other.execute(query).fetchall()
        query = "SELECT name, kind FROM trecho.schema_migrations WHERE name <> 'sql/privileged/00_extensions.sql' ORDER BY 1"
        assert conn.execute(query).fetchall() == other.execute(query).fetchall()


@pytest.mark.slow
def test_create_extension__owns_everything_and_makes_no_partition(extended):
    strangers = """
        SELECT c.relname AS name FROM pg_class AS c
         WHERE c.relnamespace = 'trecho'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
           AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
        UNION ALL
        SELECT p.proname FROM pg_proc AS p
         WHERE p.pronamespace = 'trecho'::regnamespace
           AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
         ORDER BY 1
    """
    with connect(extended) as conn:
        assert conn.execute(strangers).fetchall() == []
        assert conn.execute("SELECT FROM pg_inherits").fetchall() == []
        conn.execute("SELECT trecho.put_document('docs', %s, 'plantao.md')", (PLANTAO,))
        assert [row["name"] for row in conn.execute(strangers)] == ["chunks_1", "placements_1"]


@pytest.mark.slow
def test_create_extension__registers_every_table_and_sequence_for_dumps(extended):
    with connect(extended) as conn:
        rows = conn.execute("""
            SELECT c.relname AS name FROM pg_class AS c
             WHERE c.relnamespace = 'trecho'::regnamespace AND c.relkind IN ('r', 'S')
               AND c.oid <> ALL (SELECT unnest(e.extconfig) FROM pg_extension AS e WHERE e.extname = 'trecho') ORDER BY 1
        """).fetchall()
    assert [row["name"] for row in rows] == sorted(bundle.NOT_DUMPED)


@pytest.mark.slow
def test_create_extension__leaves_no_row_that_a_dump_would_bring_again(extended):
    """A migration that inserts rows needs its like in trecho._ensure_state, and a DELETE in the script."""
    assert {name for name, rows in contents(extended).items() if rows and not name.endswith("_seq")} == set()


@pytest.mark.slow
def test_create_extension__before_the_first_write_readers_find_nothing_and_no_error(extended):
    with connect(extended) as conn:
        conn.execute("SET ROLE trecho_reader")
        assert conn.execute("SELECT * FROM trecho.search('escala')").fetchall() == []
        health = conn.execute("SELECT usable, current, documents FROM trecho.index_health()").fetchone()
        assert health == {"usable": False, "current": False, "documents": 0}
        conn.execute("SET ROLE trecho_writer")
        assert conn.execute("""SELECT trecho.configure('{"dim": 512}') ->> 'dim' AS dim""").fetchone() == {
            "dim": "512"
        }
        conn.execute("SET ROLE trecho_operator")
        assert conn.execute("SELECT trecho.revoke_project('trecho_reader', '*') AS done").fetchone() == {
            "done": True
        }
        conn.execute("SET ROLE trecho_writer")
        conn.execute("SELECT trecho.put_document('docs', %s, 'plantao.md')", (PLANTAO,))
        conn.execute("RESET ROLE")
        assert conn.execute("SELECT * FROM trecho.project_grants").fetchall() == []
        assert conn.execute("SELECT dim FROM trecho.query_recipe()").fetchall() == [{"dim": 512}]


@pytest.mark.slow
def test_create_extension__extensions_in_another_schema_and_empty_search_path(host, shipped, tmp_path):
    host.install(shipped, tmp_path)
    dsn = host.database()
    with connect(dsn) as conn:
        conn.execute("CREATE SCHEMA extensions; CREATE EXTENSION vector SCHEMA extensions")
        conn.execute("CREATE EXTENSION unaccent SCHEMA extensions; CREATE EXTENSION plpython3u")
        conn.execute("SET search_path = ''")
        conn.execute("CREATE EXTENSION trecho")
        conn.execute("SELECT trecho.put_document('docs', %s, 'plantao.md')", (PLANTAO,))
        conn.execute("SET ROLE trecho_reader")
        rows = conn.execute("SELECT source_path FROM trecho.search('ferias')").fetchall()
    assert {row["source_path"] for row in rows} == {"plantao.md"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["copy", "inserts", "custom"])
def test_dump__restores_into_an_empty_database_with_every_row(host, extended, way):
    fill(extended)
    before, answers = contents(extended), found(extended)
    assert len([name for name, rows in before.items() if rows]) > 15
    if way == "custom":
        restored = host.database()
        archive = f"/tmp/trecho-{uuid.uuid4().hex}.dump"
        host.server.run("exec", "pg_dump", "--format=custom", f"--file={archive}", "--dbname", extended)
        host.server.run("exec", "pg_restore", "--exit-on-error", "--jobs=2", "--dbname", restored, archive)
        host.server.run("exec", "rm", archive)
    else:
        restored = host.restore(host.dump(extended, *(["--inserts"] if way == "inserts" else [])))
    assert contents(restored) == before
    assert found(restored) == answers
    assert schema_of(restored) == schema_of(extended)
    with connect(restored) as conn:
        conn.execute("SELECT trecho.put_document('docs', '# Novo\n\ntexto', 'novo.md')")
        assert conn.execute("SELECT role_name, project FROM trecho.project_grants").fetchall() == [
            {"role_name": "trecho_writer", "project": "outro"}
        ]


@pytest.mark.slow
def test_dump__of_an_extension_that_nobody_wrote_to_stays_so(host, extended):
    restored = host.restore(host.dump(extended))
    assert contents(restored) == contents(extended)
    with connect(restored) as conn:
        conn.execute("SELECT trecho.put_document('docs', %s, 'plantao.md')", (PLANTAO,))
        conn.execute("SET ROLE trecho_reader")
        assert len(conn.execute("SELECT * FROM trecho.search('escala')").fetchall()) == 1


@pytest.mark.slow
def test_dump__of_a_migrated_database_restores_with_nothing_pending(host):
    dsn = host.database()
    assert run_cli("migrate", "--dsn", dsn).code == 0
    fill(dsn)
    restored = host.restore(host.dump(dsn))
    assert contents(restored) == contents(dsn)
    ran = run_cli("migrate", "status", "--dsn", restored)
    assert ran.code == 0, ran.out


@pytest.mark.slow
def test_drop_extension__leaves_nothing_without_cascade(host, shipped, tmp_path):
    host.install(shipped, tmp_path)
    dsn = host.database()
    with connect(dsn) as conn:
        conn.execute("CREATE EXTENSION vector; CREATE EXTENSION unaccent; CREATE EXTENSION plpython3u")
        conn.execute("CREATE EXTENSION trecho; DROP EXTENSION trecho")  # roles stay, and this makes them
        before = objects(dsn)
        conn.execute("CREATE EXTENSION trecho")
        fill(dsn)
        conn.execute("SELECT trecho.begin_version_build(true)")
        assert len(objects(dsn) - before) > 200
        conn.execute("DROP EXTENSION trecho")
    assert objects(dsn) == before


@pytest.mark.slow
def test_drop_extension__names_what_others_have_built_on_it(extended):
    with connect(extended) as conn:
        conn.execute("CREATE VIEW public.way AS SELECT trecho.chunking() AS way")
        with pytest.raises(psycopg.errors.DependentObjectsStillExist) as caught:
            conn.execute("DROP EXTENSION trecho")
    assert "view way" in (caught.value.diag.message_detail or "")


@pytest.mark.slow
def test_create_extension__refuses_a_migrated_database_and_says_what_to_do(host, shipped, tmp_path):
    host.install(shipped, tmp_path)
    dsn = host.database()
    assert run_cli("migrate", "--dsn", dsn).code == 0
    before = objects(dsn)
    with connect(dsn) as conn, pytest.raises(psycopg.errors.DuplicateSchema) as caught:
        conn.execute("CREATE EXTENSION trecho")
    assert "was set up with trecho migrate" in str(caught.value)
    assert "trecho migrate" in (caught.value.diag.message_hint or "")
    assert objects(dsn) == before
    ran = run_cli("migrate", "status", "--dsn", dsn)
    assert ran.code == 0 and "set up    with trecho migrate\n" in ran.out


@pytest.mark.slow
def test_create_extension__refuses_a_schema_of_somebody_else(host, shipped, tmp_path):
    host.install(shipped, tmp_path)
    with connect(host.database()) as conn:
        conn.execute("CREATE SCHEMA trecho")
        with pytest.raises(psycopg.errors.DuplicateSchema, match="is not of trecho"):
            conn.execute("CREATE EXTENSION trecho CASCADE")


@pytest.mark.slow
def test_migrate__refuses_a_database_with_the_extension_and_says_what_to_do(extended):
    before = objects(extended)
    for args in (["migrate"], ["migrate", "--plan"], ["migrate", "--sql"]):
        ran = run_cli(*args, "--dsn", extended)
        assert ran.code == 4, args
        assert "was set up with CREATE EXTENSION trecho (version" in ran.err
        assert "hint: Upgrade it with ALTER EXTENSION trecho UPDATE" in ran.err
    assert objects(extended) == before
    ran = run_cli("migrate", "status", "--dsn", extended)
    assert ran.code == 0 and "set up    with CREATE EXTENSION trecho, version" in ran.out
    data = json.loads(run_cli("migrate", "status", "--json", "--dsn", extended).out)
    assert (data["way"], data["extension"], data["exit_code"]) == (
        "extension",
        resources.current().version,
        0,
    )


@pytest.mark.slow
def test_status__function_altered_in_a_database_with_the_extension_is_shown(extended):
    with connect(extended) as conn:
        conn.execute("ALTER FUNCTION trecho.chunking() COST 7")
    ran = run_cli("migrate", "status", "--dsn", extended)
    assert ran.code == 6
    assert "drift     trecho.chunking() was altered (sql/00_roles.sql makes it)" in ran.out


@pytest.mark.slow
def test_sync_and_search__work_as_in_a_migrated_database(extended, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "plantao.md").write_text(PLANTAO)
    ran = run_cli("sync", str(folder), "--scope", "docs", "--dsn", extended)
    assert ran.code == 0, ran.err
    ran = run_cli("search", "quando muda a escala", "--dsn", extended)
    assert ran.code == 0 and "plantao.md" in ran.out


@pytest.mark.slow
def test_uninstall__removes_the_extension_and_leaves_the_catalog_as_it_was(host, shipped, tmp_path):
    host.install(shipped, tmp_path)
    dsn = host.database()
    name = conninfo.conninfo_to_dict(dsn)["dbname"]
    with connect(dsn) as conn:
        conn.execute("CREATE EXTENSION vector; CREATE EXTENSION unaccent; CREATE EXTENSION plpython3u")
        before = objects(dsn)
        conn.execute("CREATE EXTENSION trecho")
    fill(dsn)
    refused = run_cli("uninstall", "--dsn", dsn)
    assert refused.code == 4 and "not confirmed: 2 documents" in refused.err
    with connect(dsn) as conn:
        conn.execute("CREATE VIEW public.way AS SELECT trecho.chunking() AS way")
        refused = run_cli("uninstall", "--yes", str(name), "--dsn", dsn)
        assert (
            refused.code == 4
            and "others have built on trecho" in refused.err
            and "view public.way" in refused.err
        )
        conn.execute("DROP VIEW public.way")
    ran = run_cli("uninstall", "--json", "--yes", str(name), "--dsn", dsn)
    report = json.loads(ran.out)
    assert (ran.code, report["way"], report["documents"]) == (0, "extension", 2)
    assert objects(dsn) == before
    assert run_cli("migrate", "--dsn", dsn).code == 0


# ---- upgrades --------------------------------------------------------------------------------------------


@pytest.fixture
def two_releases(release: Release) -> tuple[Release, Release]:
    """A pretended earlier release, frozen, and today's: it has a table with rows, an index and a function more."""
    (release.root / "sql" / "98_later.sql").write_text(
        "CREATE OR REPLACE VIEW trecho.old AS SELECT 1 AS one;\n"
    )
    earlier = fresh_of(release, "0.9")
    earlier_root = release.root.with_name("earlier")
    bundle.freeze(earlier)
    shutil.copytree(release.root, earlier_root)
    add_migration(
        release,
        "9001_more.sql",
        "CREATE TABLE trecho.more (id int PRIMARY KEY);\n"
        "ALTER TABLE trecho.chunks ADD COLUMN more text;\nDROP VIEW IF EXISTS trecho.old;\n",
    )
    add_migration(
        release,
        "9002_index.sql",
        "-- transaction: no\nCREATE INDEX CONCURRENTLY IF NOT EXISTS blobs_more ON trecho.blobs (byte_count);\n",
    )
    (release.root / "sql" / "98_later.sql").unlink()
    (release.root / "sql" / "99_later.sql").write_text(
        "CREATE OR REPLACE FUNCTION trecho.later() RETURNS integer LANGUAGE sql\n"
        "SET search_path = pg_catalog, pg_temp AS 'SELECT 2';\n"
    )
    chunkers = release.chunkers_root / "windows.py"
    chunkers.write_text(chunkers.read_text() + "\n# a remark\n")
    old = Release(earlier_root, earlier_root / "plpython/trecho_chunkers", "0.9")
    return old, fresh_of(release, "1.0")


@pytest.mark.slow
def test_update__brings_an_earlier_release_to_what_create_makes_and_keeps_rows(host, two_releases, tmp_path):
    old, new = two_releases
    host.install(old, tmp_path)
    dsn = host.database()
    with connect(dsn) as conn:
        conn.execute("CREATE EXTENSION trecho CASCADE")
        fill(dsn)
        before, answers = contents(dsn), found(dsn)
        host.install(new, tmp_path)
        conn.execute("ALTER EXTENSION trecho UPDATE")
        assert conn.execute("SELECT extversion FROM pg_extension WHERE extname = 'trecho'").fetchone() == {
            "extversion": "1.0"
        }
        assert conn.execute("SELECT trecho.later() AS n, trecho.chunker_stamp() AS stamp").fetchone() == {
            "n": 2,
            "stamp": new.chunker_stamp,
        }
        conn.execute("INSERT INTO trecho.more VALUES (5)")
    after = contents(dsn)
    assert after.pop("trecho.more") == ["{'id': 5}"]
    assert after == before
    assert found(dsn) == answers
    made = host.database()
    with connect(made) as conn:
        conn.execute("CREATE EXTENSION trecho CASCADE")
    # A column added later stands at the end in both.
    assert schema_of(dsn) == schema_of(made)
    with connect(dsn) as conn, connect(made) as other:
        for query in (
            "SELECT c.oid::regclass::text AS name FROM pg_extension AS e, unnest(e.extconfig) AS c (oid) WHERE e.extname = 'trecho' ORDER BY 1",
            "SELECT object, file, fingerprint FROM trecho.schema_objects ORDER BY 1",
        ):
            assert conn.execute(query).fetchall() == other.execute(query).fetchall()
    restored = host.restore(host.dump(dsn))
    assert contents(restored) == {**before, "trecho.more": ["{'id': 5}"]}


@pytest.mark.slow
def test_migrate__upgrade_gives_the_same_schema_as_the_extension(host, two_releases, tmp_path):
    from trecho import runner

    old, new = two_releases
    migrated, extended = host.database(), host.database()
    for each in (old, new):
        with connect(migrated) as conn:
            runner.migrate(conn, each, runner.Options(), lambda text: None)
    host.install(new, tmp_path)
    with connect(extended) as conn:
        conn.execute("CREATE EXTENSION trecho CASCADE")
    assert schema_of(migrated) == schema_of(extended)


@pytest.mark.slow
def test_status__extension_of_an_earlier_release_is_not_current(host, two_releases, tmp_path):
    old, new = two_releases
    host.install(old, tmp_path)
    dsn = host.database()
    with connect(dsn) as conn:
        conn.execute("CREATE EXTENSION trecho CASCADE")
    ran = run_cli("migrate", "status", "--dsn", dsn)
    version = resources.current().version
    assert ran.code == 6
    assert f"pending   the server has the files of 0.9: install those of {version}" in ran.out
    host.install(versioned(new, version), tmp_path)
    assert (
        f"pending   ALTER EXTENSION trecho UPDATE, from 0.9 to {version}"
        in run_cli("migrate", "status", "--dsn", dsn).out
    )
