"""`trecho preflight` on a real server."""

from __future__ import annotations

import json

import psycopg
import pytest
from psycopg import conninfo
from psycopg.rows import dict_row
from support import Server, as_role


def statuses(out: str) -> dict[str, str]:
    return {check["name"]: check["status"] for check in json.loads(out)["checks"]}


def test_preflight__migrated_database_is_all_well_and_every_module_is_imported_in_the_server(
    trecho, dsn, shipped
):
    ran = trecho("preflight", "--json", dsn=dsn)
    found = statuses(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert {name: s for name, s in found.items() if s not in ("ok", "warn")} == {}
    modules = {name.removeprefix("module ") for name in found if name.startswith("module ")}
    assert {name.removesuffix(".__init__") for name in shipped.chunker_sources} <= modules
    assert {"tree_sitter", "tree_sitter_rust (rust)", "tree_sitter_yaml (yaml)"} <= modules
    for check in json.loads(ran.out)["checks"]:
        if check["name"].startswith("module trecho_chunkers."):
            assert "plpython/trecho_chunkers/" in check["message"]


def test_preflight__unprepared_database_is_tried_and_left_as_it_was(trecho, empty_dsn):
    ran = trecho("preflight", "--json", dsn=empty_dsn)
    found = statuses(ran.out)
    assert ran.code == 0
    assert found["module trecho_chunkers.markdown"] == "ok"
    assert found["schema"] == "warn"
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("SELECT extname FROM pg_extension").fetchall() == [("plpgsql",)]


def test_preflight__ordinary_role_on_unprepared_database_exits_3(trecho, empty_dsn, plain_role):
    ran = trecho("preflight", "--json", dsn=as_role(empty_dsn, plain_role))
    found = statuses(ran.out)
    assert ran.code == 3
    assert found["extension vector"] == "fail"
    assert found["modules"] == found["disk"] == found["shared memory"] == "skipped"


def test_preflight__client_chunking_needs_no_plpython(trecho, empty_dsn, plain_role):
    ran = trecho("preflight", "--json", "--chunking", "client", dsn=as_role(empty_dsn, plain_role))
    found = statuses(ran.out)
    assert found["extension plpython3u"] == found["chunkers"] == "skipped"
    assert found["module tree_sitter_rust (rust)"] == "ok"


def test_preflight__invalid_index_is_found(trecho, dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE trecho.more AS SELECT 1 AS id FROM generate_series(1, 2)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            conn.execute("CREATE UNIQUE INDEX CONCURRENTLY more_id ON trecho.more (id)")
    ran = trecho("preflight", "--json", dsn=dsn)
    check = next(c for c in json.loads(ran.out)["checks"] if c["name"] == "indexes")
    assert (ran.code, check["status"]) == (1, "fail")
    assert "trecho.more_id" in check["message"]
    assert check["hint"] == "Run REINDEX INDEX CONCURRENTLY trecho.more_id."


def test_preflight__locale_that_does_not_fold_capitals_fails(trecho, make_database):
    dsn = make_database(template_dbname="template0")
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        name = conn.info.dbname
    server = Server(dsn)
    with server.connect("postgres", autocommit=True) as conn:
        conn.execute(f'DROP DATABASE "{name}"')
        conn.execute(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'")
    ran = trecho("preflight", "--json", dsn=dsn)
    check = next(c for c in json.loads(ran.out)["checks"] if c["name"] == "letters")
    assert check["status"] == "fail" and ran.code == 3


def test_preflight__database_without_utf8_fails(trecho, make_database):
    dsn = make_database(template_dbname="template0")
    name = str(conninfo.conninfo_to_dict(dsn)["dbname"])
    with Server(dsn).connect("postgres", autocommit=True) as conn:
        conn.execute(f'DROP DATABASE "{name}"')
        conn.execute(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    assert trecho("preflight", dsn=dsn).code == 3
    ran = trecho("migrate", dsn=dsn)
    assert ran.code == 3
    assert "has encoding LATIN1, and trecho needs UTF8" in ran.err


def check_of(out: str, name: str) -> dict[str, str]:
    return next(check for check in json.loads(out)["checks"] if check["name"] == name)


def test_preflight__memory_that_an_index_build_would_not_find_in_shm_is_warned_of(trecho, dsn):
    ok = check_of(trecho("preflight", "--json", dsn=dsn).out, "shared memory")
    assert ok["status"] == "ok" and "/dev/shm has" in ok["message"]
    much = conninfo.make_conninfo(dsn, options="-c maintenance_work_mem=2000GB")
    ran = trecho("preflight", "--json", dsn=much)
    warned = check_of(ran.out, "shared memory")
    assert (ran.code, warned["status"]) == (0, "warn")
    assert (
        "less than maintenance_work_mem (2000.0 GiB)" in warned["message"] and "--shm-size" in warned["hint"]
    )


def test_preflight__disk_that_runs_full_is_warned_of(trecho, dsn, monkeypatch):
    assert check_of(trecho("preflight", "--json", dsn=dsn).out, "disk")["status"] == "ok"
    monkeypatch.setattr("trecho.preflight.LOW_DISK_BYTES", 1 << 60)
    ran = trecho("preflight", "--json", dsn=dsn)
    assert (ran.code, check_of(ran.out, "disk")["status"]) == (0, "warn")


def test_preflight__collation_of_another_version_is_warned_of(trecho, dsn):
    assert check_of(trecho("preflight", "--json", dsn=dsn).out, "collation")["status"] == "ok"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("UPDATE pg_database SET datcollversion = 'velha' WHERE datname = current_database()")
    ran = trecho("preflight", "--json", dsn=dsn)
    warned = check_of(ran.out, "collation")
    assert (ran.code, warned["status"]) == (0, "warn")
    assert "velha when the indexes were built" in warned["message"]
    assert "REFRESH COLLATION VERSION" in warned["hint"]


def test_preflight__page_ends_in_a_count_that_names_what_was_skipped(trecho, empty_dsn, plain_role, dsn):
    page = trecho("preflight", dsn=dsn).out.splitlines()
    assert page[-1].endswith("0 fail, 0 skipped")
    page = trecho("preflight", dsn=as_role(empty_dsn, plain_role)).out.splitlines()
    assert "(not checked: modules, shared memory, disk)" in page[-1]


def test_preflight__grammar_that_does_not_load_in_the_server_is_a_warning(trecho, dsn, monkeypatch):
    from trecho.preflight import _module

    row = {"module": "tree_sitter_rust (rust)", "version": "1", "path": "/x", "ok": False, "error": "no file"}
    check = _module(row, "in the server")
    assert (check.status, check.message) == ("warn", "does not work in the server: no file")
    own = _module(row | {"module": "trecho_chunkers.markdown"}, "in the server")
    assert own.status == "fail"


def test_preflight__server_that_does_not_answer_skips_the_rest_and_says_why(trecho):
    ran = trecho("preflight", "--json", dsn="postgresql://nobody@127.0.0.1:1/nothing")
    checks = json.loads(ran.out)["checks"]
    assert ran.code == 1
    assert checks[0]["status"] == "fail" and "connection refused" in checks[0]["message"]
    assert {(c["status"], c["message"]) for c in checks[1:]} == {("skipped", "no connection")}
    assert len(checks) > 10
