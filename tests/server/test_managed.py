"""What managed PostgreSQL is like: no plpython3u, pgvector where the provider put it, nobody a superuser.

On a real server of that kind: PostgreSQL 18 with pgvector and without plpython3u, from a wheel (scripts/server.sh, kind wheel).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from misbehaving_server import MisbehavingServer
from psycopg import conninfo, sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from servers import ROOT, PrivateServer
from support import Ran, Server, as_role

from trecho.client_chunking import cut

pytestmark = pytest.mark.slow

CLI = Callable[..., Ran]
RECIPE = (
    'provider = "openai-compatible"\nmodel_id = "{}"\ndim = 768\nquery_prefix = ""\npassage_prefix = ""\n'
)


@pytest.fixture(scope="module")
def managed() -> Iterator[Server]:
    """The server, with the four roles of trecho, since those belong to the cluster and survive every test."""
    wheel = PrivateServer(f"test-{uuid.uuid4().hex[:8]}", {"SERVER": "wheel"})
    try:
        server = Server(wheel.start())
        with server.connect(autocommit=True) as conn:
            conn.execute((ROOT / "sql" / "privileged" / "10_roles.sql").read_bytes())
        yield server
    finally:
        wheel.run("clean")


@pytest.fixture
def make(managed: Server) -> Callable[..., str]:
    """Function that makes a database there, with an extension in a schema for each keyword, and gives its DSN."""

    def make_one(**extensions: str) -> str:
        name = f"m_{uuid.uuid4().hex[:8]}"
        with managed.connect(autocommit=True) as conn:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        with managed.connect(name, autocommit=True) as conn:
            for extension, schema in extensions.items():
                conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
                conn.execute(
                    sql.SQL("CREATE EXTENSION {} SCHEMA {}").format(
                        sql.Identifier(extension), sql.Identifier(schema)
                    )
                )
        return conninfo.make_conninfo(managed.dsn, dbname=name)

    return make_one


@pytest.fixture
def role(managed: Server) -> Callable[..., str]:
    """Function that makes a login role there: as_role(dsn, name) logs in."""
    password = conninfo.conninfo_to_dict(managed.dsn)["password"]

    def make_one(*groups: str) -> str:
        name = f"r_{uuid.uuid4().hex[:8]}"
        with managed.connect(autocommit=True) as conn:
            conn.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                    sql.Identifier(name), sql.Literal(password)
                )
            )
            for group in groups:
                conn.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), sql.Identifier(name)))
        return name

    return make_one


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[MisbehavingServer]:
    for name in ("TRECHO_EMBEDDING_KEY", "TRECHO_EMBEDDING_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    with MisbehavingServer() as running:
        monkeypatch.setenv("TRECHO_EMBEDDING_URL", running.url)
        yield running


def rows(dsn: str, query: str, *values: Any) -> list[dict[str, Any]]:
    with psycopg.connect(dsn, row_factory=dict_row, autocommit=True) as conn:
        return conn.execute(query.encode(), values or None).fetchall()


def value(dsn: str, query: str, *values: Any) -> Any:
    (row,) = rows(dsn, query, *values)
    return next(iter(row.values()))


def write_sources(folder: Path, model: str = "m") -> Path:
    """A handbook, a decision and a session, with their configuration; the configuration's path."""
    for name, text in {
        "manual/plantao.md": "# Plantão\n\n## Escala\n\nA escala muda às segundas-feiras.\n\n## Feriado\n\nNo feriado atende o líder.\n",
        "manual/cópia.md": "# Cópias\n\nA cópia roda às três da manhã.\n",
        "decisoes/0001-fila.md": "# Fila\n\nUsamos uma fila no banco.\n",
        "sessoes/0b6c0a52-7a0e-4d6e-9d86-2f9a3e8f1c11.jsonl": '{"role": "user", "content": "Quem atende o alerta?"}\n'
        '{"role": "assistant", "content": "O líder de plantão."}\n',
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    config = folder / "trecho.toml"
    config.write_text(
        "".join(
            f'[[source]]\nset = "{name}"\npath = "{name}"\nscope = "{scope}"\n'
            for name, scope in (("manual", "docs"), ("decisoes", "adr"), ("sessoes", "session"))
        )
        + "[embedding]\n"
        + RECIPE.format(model)
    )
    return config


# ---- everything, with chunks cut in the client ---------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["superuser", "ordinary"])
def test_whole_way__with_extensions_elsewhere_and_an_empty_search_path(
    trecho: CLI,
    make: Callable[..., str],
    role: Callable[..., str],
    provider: MisbehavingServer,
    tmp_path: Path,
    who: str,
) -> None:
    admin = make(vector="extensions", unaccent="extensions")
    name = str(conninfo.conninfo_to_dict(admin)["dbname"])
    rows_of = admin
    dsn = admin
    if who == "ordinary":
        me = role("trecho_owner", "trecho_operator")
        with psycopg.connect(admin, autocommit=True) as conn:
            conn.execute(
                sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(name), sql.Identifier(me))
            )
            conn.execute(b"GRANT USAGE ON SCHEMA extensions TO PUBLIC")
        dsn = as_role(admin, me)
    dsn = conninfo.make_conninfo(dsn, options="-c search_path=")
    assert value(dsn, "SHOW search_path") == ""

    ran = trecho("migrate", "--chunking", "client", dsn=dsn)
    assert ran.code == 0, ran.err
    assert trecho("migrate", dsn=dsn).out.startswith("nothing to do")
    assert (
        value(admin, "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'vector'")
        == "extensions"
    )

    config = write_sources(tmp_path)
    ran = trecho("sync", "--config", str(config), dsn=dsn)
    assert ran.code == 0, ran.err
    assert "this database was migrated for client chunking" in ran.err
    again = trecho("sync", "--config", str(config), dsn=dsn)
    assert again.code == 0, again.err
    health = rows(dsn, "SELECT * FROM trecho.index_health()")[0]
    assert (health["usable"], health["current"], health["documents"], health["pending_embeddings"]) == (
        True,
        True,
        4,
        0,
    )

    for mode in ("lexical", "semantic", "hybrid"):
        ran = trecho("search", "--mode", mode, "--json", "quem atende no feriado", dsn=dsn)
        assert ran.code == 0, ran.err
        assert len(json.loads(ran.out)["results"]) >= (2 if mode == "lexical" else 4)
    ran = trecho("evidence", "quem atende no feriado", dsn=dsn)
    assert ran.code == 0 and "chunk: " in ran.out, ran.err
    assert trecho("status", "--check", dsn=dsn).code == 0
    session = "0b6c0a52-7a0e-4d6e-9d86-2f9a3e8f1c11"
    assert rows(rows_of, "SELECT doc_id FROM trecho.documents WHERE scope = 'session'") == [
        {"doc_id": session}
    ]

    # Another model, other chunks: a version beside the old one, whose chunks this client cuts from the stored text.
    write_sources(tmp_path, model="other")
    with config.open("a") as file:
        file.write("[chunking]\nsection_max_chars = 40\n")
    ran = trecho("sync", "--config", str(config), dsn=dsn)
    assert ran.code == 0, ran.err
    health = rows(dsn, "SELECT * FROM trecho.index_health()")[0]
    assert (health["active_version"], health["current"], health["pending_embeddings"]) == (2, True, 0)
    assert value(rows_of, "SELECT count(*) FROM trecho._missing_documents(2)") == 0
    assert value(rows_of, "SELECT count(*) FROM trecho.placements WHERE index_version = 2") > 4

    copies = "SELECT count(*) FROM trecho.search('cópia da manhã', mode => 'lexical') AS s WHERE s.source_path LIKE '%cópia.md'"
    assert value(dsn, copies) == 1
    (tmp_path / "manual" / "cópia.md").unlink()
    assert trecho("sync", "--config", str(config), dsn=dsn).code == 0
    assert value(dsn, copies) == 0


@pytest.mark.parametrize("files", [("test_sync.py", "test_sync_git.py", "test_cost.py")])
def test_suite_of_the_command__passes_here(managed: Server, files: tuple[str, ...]) -> None:
    """Where a test puts a document with SQL alone, the server would have to cut it: those are left out by name."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TRECHO_", "PYTEST_"))}
    # Or where it begins a pass by itself and has the server cut.
    needs_chunkers = "application or deleted_branch__goes or two_sets_at_once"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", f"not ({needs_chunkers})",
         *(str(ROOT / "tests" / "cli" / file) for file in files)],
        env=env | {"TRECHO_TEST_DSN": managed.dsn, "TRECHO_TEST_CHUNKING": "client", "TRECHO_TEST_EXTENSION_SCHEMA": "extensions"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-5000:]
    assert int(ran.stdout.strip().splitlines()[-1].split(" passed")[0].split()[-1]) >= 35, ran.stdout[-500:]


def test_put_document__without_chunkers_says_so_and_takes_what_a_client_cut(
    trecho: CLI, make: Callable[..., str]
) -> None:
    dsn = make()
    assert trecho("migrate", "--chunking", "client", dsn=dsn).code == 0
    text = "# Prazo\n\nO prazo é de cinco dias.\n"
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        with pytest.raises(psycopg.Error) as raised:
            conn.execute("SELECT trecho.put_document('docs', %s, 'prazo.md')", (text,))
        assert raised.value.sqlstate == "TR010"
        assert "plpython3u" in str(raised.value.diag.message_primary)
        assert "--chunking client" in str(raised.value.diag.message_hint)
        made = cut("prazo.md", text, "docs", {"1": {}})
        put = "SELECT * FROM trecho.put_document('docs', %s, 'prazo.md', client_description => %s, client_chunks => %s)"
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="index version 1"):
            conn.execute(put, (text, Jsonb(made.description), Jsonb({"7": []})))
        row = conn.execute(put, (text, Jsonb(made.description), Jsonb(made.chunks))).fetchone()
        assert row is not None and row["chunks"] == 1
        found = conn.execute("SELECT source_path FROM trecho.search('prazos', mode => 'lexical')").fetchall()
        assert found == [{"source_path": "prazo.md"}]


def test_version_whose_build_began_after_the_client_cut__fills_the_document_itself(
    trecho: CLI, make: Callable[..., str], provider: MisbehavingServer
) -> None:
    from trecho.version import build

    dsn = make()
    assert trecho("migrate", "--chunking", "client", dsn=dsn).code == 0
    made = cut("a.md", "texto um\n", "docs", {"1": {}})
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        put = "SELECT trecho.put_document('docs', 'texto um\n', 'a.md', client_description => %s, client_chunks => %s)"
        conn.execute(put.encode(), (Jsonb(made.description), Jsonb(made.chunks)))
        recipe = {
            "provider": "openai-compatible",
            "model_id": "m",
            "dim": 768,
            "query_prefix": "",
            "passage_prefix": "",
        }
        conn.execute("SELECT trecho.configure(%s)", (Jsonb(recipe),))
        conn.execute("SELECT trecho.begin_version_build(false)")
        conn.execute(put.replace("a.md", "b.md").encode(), (Jsonb(made.description), Jsonb(made.chunks)))
        conn.execute(put.encode(), (Jsonb(made.description), Jsonb(made.chunks)))
        # What a client cut for a text that has changed since is not taken for the new text.
        stale = {"document_id": 1, "blob_sha": "00" * 32, "chunks": made.chunks and made.chunks["1"]}
        row = conn.execute("SELECT trecho.backfill_version(2, 10, %s) AS left", (Jsonb([stale]),)).fetchone()
        assert row == {"left": 2}
    result = build(dsn)
    assert (result.version, result.activated) == (2, True)
    assert rows(dsn, "SELECT d.source, i.chunk_count FROM trecho.indexed_documents AS i JOIN trecho.documents AS d USING (document_id)"
                     " WHERE i.index_version = 2 ORDER BY 1") == [
        {"source": "a.md", "chunk_count": 1}, {"source": "b.md", "chunk_count": 1},
    ]  # fmt: skip


# ---- four states, two roles ----------------------------------------------------------------------------------------------


@pytest.fixture
def prepared(
    managed: Server, make: Callable[..., str], role: Callable[..., str]
) -> Iterator[Callable[[str, str], tuple[str, str]]]:
    """Function (state of vector, who) -> (DSN of who, DSN of a superuser)."""
    folders: list[Path] = []

    def prepare(state: str, who: str) -> tuple[str, str]:
        kept = {"unaccent": "extensions"}
        admin = make(
            **kept | {"installed": {"vector": "public"}, "elsewhere": {"vector": "extensions"}}.get(state, {})
        )
        name = sql.Identifier(str(conninfo.conninfo_to_dict(admin)["dbname"]))
        with psycopg.connect(admin, autocommit=True) as conn:
            conn.execute(b"GRANT USAGE ON SCHEMA extensions TO PUBLIC")
            if state == "absent":
                # The server looks for extensions in this folder only, and vector's files are not there.
                share = Path(
                    str(
                        conn.execute("SELECT setting FROM pg_config() WHERE name = 'SHAREDIR'").fetchall()[0][
                            0
                        ]
                    )
                )
                folder = Path("/tmp") / f"trecho-{uuid.uuid4().hex}"
                (folder / "extension").mkdir(parents=True)
                folders.append(folder)
                for file in share.joinpath("extension").glob("unaccent*"):
                    shutil.copy(file, folder / "extension")
                conn.execute(
                    sql.SQL("ALTER DATABASE {} SET extension_control_path = {}").format(
                        name, sql.Literal(str(folder))
                    )
                )
            if who == "superuser":
                return admin, admin
            me = role("trecho_owner")
            conn.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(name, sql.Identifier(me)))
        return as_role(admin, me), admin

    yield prepare
    for folder in folders:
        shutil.rmtree(folder)


def vector_schema(dsn: str) -> list[str]:
    return [
        row["s"]
        for row in rows(
            dsn, "SELECT extnamespace::regnamespace::text AS s FROM pg_extension WHERE extname = 'vector'"
        )
    ]


def has_schema(dsn: str) -> bool:
    return bool(value(dsn, "SELECT count(*) FROM pg_namespace WHERE nspname = 'trecho'"))


@pytest.mark.parametrize("who", ["superuser", "ordinary"])
@pytest.mark.parametrize(("state", "schema"), [("elsewhere", "extensions"), ("installed", "public")])
def test_vector_that_is_there__is_used_where_it_is(
    trecho: CLI, prepared: Callable[[str, str], tuple[str, str]], state: str, schema: str, who: str
) -> None:
    dsn, admin = prepared(state, who)
    ran = trecho("migrate", "--chunking", "client", dsn=dsn)
    assert ran.code == 0, ran.err
    assert vector_schema(admin) == [schema]
    assert value(admin, "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
                        " WHERE attrelid = 'trecho.chunks'::regclass AND attname = 'embedding'").endswith("vector(768)")  # fmt: skip
    preflight = trecho("preflight", dsn=dsn)
    assert preflight.code == 0, preflight.out
    assert f"0.8.6 in schema {schema}" in preflight.out


def test_vector_that_is_available__is_made_by_a_superuser(
    trecho: CLI, prepared: Callable[[str, str], tuple[str, str]]
) -> None:
    dsn, admin = prepared("available", "superuser")
    assert "available; trecho migrate creates it" in trecho("preflight", "--chunking", "client", dsn=dsn).out
    ran = trecho("migrate", "--chunking", "client", dsn=dsn)
    assert ran.code == 0, ran.err
    assert vector_schema(admin) == ["public"]


def test_vector_that_is_available__stops_an_ordinary_role_until_a_dba_ran_the_script(
    trecho: CLI, prepared: Callable[[str, str], tuple[str, str]]
) -> None:
    dsn, admin = prepared("available", "ordinary")
    ran = trecho("migrate", "--chunking", "client", dsn=dsn)
    assert ran.code == 3
    me = conninfo.conninfo_to_dict(dsn)["user"]
    assert ran.err.startswith(f"error: role '{me}' may not create extension vector on server 127.0.0.1:")
    assert "it is not a trusted extension there" in ran.err
    assert (vector_schema(admin), has_schema(admin)) == ([], False)
    told = trecho("preflight", "--chunking", "client", dsn=dsn)
    assert (told.code, told.out.count("may not create extension vector")) == (3, 1)
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute(ran.out.encode())
    ran = trecho("migrate", "--chunking", "client", dsn=dsn)
    assert ran.code == 0, ran.err
    assert vector_schema(admin) == ["public"]


@pytest.mark.parametrize("who", ["superuser", "ordinary"])
def test_vector_whose_files_are_absent__is_named_with_the_package_and_nothing_is_changed(
    trecho: CLI, prepared: Callable[[str, str], tuple[str, str]], who: str
) -> None:
    dsn, admin = prepared("absent", who)
    ran = trecho("migrate", "--chunking", "client", dsn=dsn)
    assert ran.code == 3
    assert ran.err.startswith("error: extension vector is not installed on server 127.0.0.1:")
    assert "PostgreSQL 18." in ran.err
    assert "apt-get install postgresql-18-pgvector" in ran.err
    assert not has_schema(admin)
    told = trecho("preflight", "--chunking", "client", dsn=dsn)
    assert (told.code, told.out.count("extension vector is not installed")) == (3, 1)


@pytest.mark.parametrize("who", ["superuser", "ordinary"])
def test_plpython_whose_files_are_absent__is_told_once_with_the_way_round(
    trecho: CLI, prepared: Callable[[str, str], tuple[str, str]], who: str
) -> None:
    dsn, admin = prepared("installed", who)
    ran = trecho("migrate", dsn=dsn)
    assert ran.code == 3
    assert "extension plpython3u is not installed on server 127.0.0.1:" in ran.err
    assert "trecho migrate --chunking client" in ran.err
    assert not has_schema(admin)
    told = trecho("preflight", dsn=dsn)
    assert told.code == 3
    assert told.out.count("plpython3u is not installed") == 1
    assert trecho("migrate", "--chunking", "client", dsn=dsn).code == 0
