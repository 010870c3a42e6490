"""After a disaster, and beside the primary: dump and restore, base backup with WAL, a streaming replica. On real servers."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from misbehaving_server import MisbehavingServer, vector_of
from psycopg import conninfo
from psycopg.rows import dict_row, tuple_row
from psycopg.types.json import Jsonb
from servers import PrivateServer
from support import Ran

from trecho import cli
from trecho.embed import embed_pending

pytestmark = pytest.mark.slow

CLI = Callable[..., Ran]
RECIPE = {
    "provider": "openai-compatible",
    "model_id": "m",
    "dim": 768,
    "query_prefix": "",
    "passage_prefix": "",
}
WORDS = ("prazo", "fila", "cópia", "plantão", "índice", "senha", "contrato", "migração", "réplica", "feriado")
QUESTIONS = (
    "qual o prazo da cópia",
    "quem atende no plantao do feriado",
    '"fila de migração"',
    "senha -contrato",
)
DOCUMENTS = 90


@dataclass
class Site:
    """A server with the archive of its WAL, and a migrated database `trecho` on it."""

    server: PrivateServer
    dsn: str
    shared: Path  # a folder that this process and the servers read and write


def text_of(number: int) -> str:
    """A document of several sections, all different, in words that the questions use."""
    sections = "".join(
        f"## {WORDS[(number + n) % 10].title()} {number}.{n}\n\n"
        f"O {WORDS[(number * n) % 10]} da {WORDS[(number + 2 * n) % 10]} no item {number * 7 + n}: "
        f"veja {WORDS[(3 * number + n) % 10]} e {WORDS[(number + n * n) % 10]}.\n\n"
        for n in range(1, 9)
    )
    return f"# Manual {number}\n\n{sections}"


@pytest.fixture(scope="module")
def provider() -> Iterator[MisbehavingServer]:
    with pytest.MonkeyPatch.context() as patch, MisbehavingServer() as running:
        for name in ("TRECHO_EMBEDDING_KEY", "TRECHO_EMBEDDING_KEY_FILE"):
            patch.delenv(name, raising=False)
        patch.setenv("TRECHO_EMBEDDING_URL", running.url)
        yield running


@pytest.fixture(scope="module")
def site(provider: MisbehavingServer) -> Iterator[Site]:
    """A primary that archives its WAL, with documents, their vectors, and traces of changes and removals."""
    server = PrivateServer(f"test-{uuid.uuid4().hex[:8]}")
    shared = Path("/tmp") / f"trecho-{uuid.uuid4().hex[:8]}"
    try:
        dsn = server.start()
        shared.mkdir()
        shutil.chown(shared, server.data().owner(), server.data().group())
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET archive_mode = on")
            conn.execute(f"ALTER SYSTEM SET archive_command = 'cp %p {shared}/%f'".encode())
            conn.execute("ALTER SYSTEM SET fsync = off")
        server.run("stop")
        dsn = server.start()
        assert cli.main(["migrate", "--dsn", dsn]) == 0
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("SELECT trecho.configure(%s)", (Jsonb(RECIPE),))
            with conn.transaction():
                for number in range(DOCUMENTS):
                    put(conn, number)
            conn.execute("SELECT trecho.remove_document('docs', 'manual-3.md')")
            conn.execute("SELECT trecho.put_document('docs', %s, 'manual-4.md')", (text_of(400),))
        embed_pending(dsn)
        yield Site(server, dsn, shared)
    finally:
        server.run("clean")
        shutil.rmtree(shared, ignore_errors=True)


def put(conn: psycopg.Connection[Any], number: int) -> None:
    conn.execute("SELECT trecho.put_document('docs', %s, %s)", (text_of(number), f"manual-{number}.md"))


def answers(dsn: str, role: str | None = None) -> dict[str, list[Any]]:
    """What readers of this server are told: searches of every kind, evidence, ids, documents, health."""
    told: dict[str, list[Any]] = {}
    with psycopg.connect(dsn, autocommit=True, row_factory=tuple_row) as conn:
        if role:
            conn.execute(f"SET ROLE {role}".encode())
        for question in QUESTIONS:
            vector = str(list(vector_of(question)))
            for mode in ("lexical", "semantic", "hybrid"):
                told[f"{mode} {question}"] = conn.execute(
                    "SELECT s::text FROM trecho.search(%s, %s::vector, (SELECT r.index_version FROM trecho.query_recipe() AS r), mode => %s, k => 10) AS s"
                    if mode != "lexical"
                    else "SELECT s::text FROM trecho.search(%s, NULL, NULL, mode => %s, k => 10) AS s",
                    (question, vector, mode) if mode != "lexical" else (question, mode),
                ).fetchall()
            told[f"evidence {question}"] = conn.execute(
                "SELECT trecho.evidence(%s, mode => 'lexical')", (question,)
            ).fetchall()
        found = conn.execute(
            "SELECT s.chunk_id FROM trecho.search('prazo', mode => 'lexical') AS s"
        ).fetchall()
        told["resolve"] = [
            conn.execute("SELECT r::text FROM trecho.resolve(%s) AS r", row).fetchall() for row in found
        ]
        told["documents"] = conn.execute("SELECT l::text FROM trecho.list_documents() AS l").fetchall()
        told["health"] = conn.execute(
            "SELECT usable, current, active_version, documents, chunks, pending_embeddings, last_completed_at"
            "  FROM trecho.index_health()"
        ).fetchall()
    assert all(told[f"{mode} {QUESTIONS[0]}"] for mode in ("lexical", "semantic", "hybrid"))
    return told


TABLES = (
    "SELECT c.oid::regclass::text AS name FROM pg_class AS c"
    " WHERE c.relnamespace = 'trecho'::regnamespace AND c.relkind = 'r' ORDER BY 1"
)


def rows_of(dsn: str, sequences: bool = True) -> dict[str, tuple[int, str]]:
    """Count and hash of the rows of every table, generated columns and vectors included; where sequences stand."""
    found = {}
    with psycopg.connect(dsn, autocommit=True, row_factory=tuple_row) as conn:
        for (name,) in conn.execute(TABLES).fetchall():
            query = f"SELECT count(*), md5(coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '')) FROM {name} AS t"
            found[name] = conn.execute(query.encode()).fetchall()[0]
        if sequences:
            for (name,) in conn.execute(
                "SELECT c.oid::regclass::text FROM pg_class AS c"
                " WHERE c.relnamespace = 'trecho'::regnamespace AND c.relkind = 'S'"
            ).fetchall():
                found[name] = conn.execute(
                    f"SELECT last_value, is_called::text FROM {name}".encode()
                ).fetchall()[0]
    return found


def nearest(dsn: str, exact: bool) -> list[list[int]]:
    """The ten nearest chunks of forty vectors, by exact scan or by HNSW alone."""
    found = []
    with psycopg.connect(dsn, row_factory=tuple_row) as conn:
        conn.execute("SELECT '[1]'::vector")
        conn.execute("SET LOCAL hnsw.ef_search = 200")
        conn.execute(f"SET LOCAL {'enable_indexscan' if exact else 'enable_seqscan'} = off".encode())
        conn.execute("SET LOCAL enable_sort = " + ("on" if exact else "off"))
        query = "SELECT chunk_key FROM trecho.chunks_1 ORDER BY embedding <=> %s::vector LIMIT 10"
        plan = conn.execute(b"EXPLAIN " + query.encode(), (str(list(vector_of("x"))),)).fetchall()
        assert ("chunks_1_vectors" in str(plan)) is not exact
        for number in range(40):
            vector = str(list(vector_of(f"pergunta {number}")))
            found.append([row[0] for row in conn.execute(query, (vector,)).fetchall()])
    return found


# ---- dump and restore ----------------------------------------------------------------------------------------------------


def test_dump_restored_into_an_empty_cluster__is_the_same_index(
    trecho: CLI, site: Site, make_server: Callable[..., PrivateServer]
) -> None:
    before, told, near = rows_of(site.dsn), answers(site.dsn), nearest(site.dsn, exact=True)
    graph = nearest(site.dsn, exact=False)
    assert sum(len(set(a) & set(b)) for a, b in zip(near, graph, strict=True)) >= 0.95 * 400
    site.server.run(
        "exec", "pg_dump", "--format=custom", f"--file={site.shared}/trecho.dump", "--dbname", site.dsn
    )
    roles = site.server.run("exec", "pg_dumpall", "--roles-only", "--dbname", site.dsn).stdout

    other = make_server()
    dsn = other.start()
    # Roles belong to the cluster, so no dump of a database holds them. Without them a restore stops at once.
    restore = ["exec", "pg_restore", "--exit-on-error", "--dbname", dsn, f"{site.shared}/trecho.dump"]
    assert 'role "trecho_owner" does not exist' in other.run(*restore, check=False).stderr
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DROP SCHEMA IF EXISTS trecho CASCADE")
        for line in roles.splitlines():
            if line.startswith(("CREATE ROLE trecho_", "ALTER ROLE trecho_", "GRANT trecho_")):
                conn.execute(line.encode())
    other.run(*restore)

    assert rows_of(dsn) == before
    assert answers(dsn) == told
    assert nearest(dsn, exact=True) == near
    rebuilt = nearest(dsn, exact=False)
    assert sum(len(set(a) & set(b)) for a, b in zip(graph, rebuilt, strict=True)) >= 0.95 * 400

    # It is a database of trecho like any other: nothing to migrate, nothing damaged, and work goes on.
    assert trecho("migrate", dsn=dsn).out.startswith("nothing to do")
    ran = trecho("doctor", dsn=dsn)
    assert ran.code == 0, ran.out + ran.err
    with psycopg.connect(dsn, autocommit=True) as conn:
        put(conn, 1000)
    embed_pending(dsn)
    with psycopg.connect(dsn, autocommit=True, row_factory=tuple_row) as conn:
        assert conn.execute(
            "SELECT s.source_path FROM trecho.search('manual 1000', mode => 'lexical') AS s LIMIT 1"
        ).fetchall() == [("manual-1000.md",)]
        # Rights came along: a reader may search and touch no table.
        conn.execute("SET ROLE trecho_reader")
        assert conn.execute("SELECT count(*) FROM trecho.search('prazo', mode => 'lexical')").fetchall() != [
            (0,)
        ]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT FROM trecho.documents")


# ---- base backup and WAL -------------------------------------------------------------------------------------------------


def copy_of(site: Site, server: PrivateServer, *options: str) -> tuple[Path, str]:
    """A base backup of the site in the place of a server's data. Gives the folder and the DSN that it will have."""
    own = server.start()
    server.run("stop")
    data = server.data()
    shutil.rmtree(data)
    # Inside the server's own root the folder has the path that `status` names.
    inside = str(server.state / "cluster" / "data")
    server.run(
        "exec", "pg_basebackup", "--checkpoint=fast", "--pgdata", inside, "--dbname", site.dsn, *options
    )
    port = conninfo.conninfo_to_dict(own)["port"]
    with (data / "postgresql.auto.conf").open("a") as file:
        file.write("archive_mode = off\n")
    return data, conninfo.make_conninfo(site.dsn, port=port)


def test_base_backup_with_wal__brings_back_the_moment_before_the_mistake(
    trecho: CLI, site: Site, make_server: Callable[..., PrivateServer]
) -> None:
    other = make_server()
    data, dsn = copy_of(site, other)
    # After the backup: changes that are in no file of it, then a restore point, then the mistake.
    with psycopg.connect(site.dsn, autocommit=True) as conn:
        for number in (500, 501, 502):
            put(conn, number)
        conn.execute("SELECT trecho.remove_document('docs', 'manual-7.md')")
    embed_pending(site.dsn)
    # Sequences are ahead after a recovery: WAL holds their numbers in blocks of 32.
    told, before = answers(site.dsn), rows_of(site.dsn, sequences=False)
    graph = nearest(site.dsn, exact=False)
    with psycopg.connect(site.dsn, autocommit=True) as conn:
        conn.execute("SELECT pg_create_restore_point('before_the_mistake')")
        conn.execute("SELECT trecho.remove_document('docs', 'manual-500.md')")
        row = conn.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone()
    assert row is not None
    wait_for((site.shared / row[0]).exists)
    assert answers(site.dsn) != told

    with (data / "postgresql.auto.conf").open("a") as file:
        file.write(
            f"restore_command = 'cp {site.shared}/%f %p'\n"
            "recovery_target_name = 'before_the_mistake'\nrecovery_target_action = promote\n"
        )
    signal = data / "recovery.signal"
    signal.touch()
    shutil.chown(signal, data.owner(), data.group())
    other.start()
    wait_for(lambda: one(dsn, "SELECT NOT pg_is_in_recovery()"))
    assert rows_of(dsn, sequences=False) == before
    assert answers(dsn) == told
    assert nearest(dsn, exact=False) == graph  # the very same graph
    assert trecho("doctor", dsn=dsn).code == 0


# ---- a streaming replica -------------------------------------------------------------------------------------------------


def one(dsn: str, query: str, *values: Any) -> Any:
    with psycopg.connect(dsn, autocommit=True, row_factory=tuple_row) as conn:
        row = conn.execute(query.encode(), values or None).fetchone()
    assert row is not None
    return row[0]


def wait_for(ready: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_replica__answers_as_the_primary_after_each_publication_and_takes_over(
    trecho: CLI, site: Site, make_server: Callable[..., PrivateServer], tmp_path: Path
) -> None:
    standby = make_server()
    _, replica = copy_of(site, standby, "--write-recovery-conf", "--wal-method=stream")
    standby.start()
    assert one(replica, "SELECT pg_is_in_recovery()") is True

    folder = tmp_path / "normas"
    folder.mkdir()
    for number in range(12):
        (folder / f"norma-{number}.md").write_text(text_of(2000 + number))

    torn: list[str] = []
    stop = threading.Event()

    def read() -> None:
        """Readers of the replica see the marks of one publication at a time, never two and never none."""
        with psycopg.connect(replica, autocommit=True, row_factory=dict_row) as conn:
            while not stop.wait(0.02):
                try:
                    rows = conn.execute(
                        "SELECT s.source_path, s.content FROM trecho.search('marca', mode => 'lexical', k => 20) AS s"
                    ).fetchall()
                except psycopg.errors.SerializationFailure:
                    continue  # a conflict with recovery: docs/scaling.md says what to set
                marks = {row["content"].split("rodada ")[1].split()[0] for row in rows}
                if len(marks) > 1 or (rows and len(rows) != 12):
                    torn.append(f"{len(rows)} rows of {sorted(marks)}")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for turn in ("um", "dois", "três"):
            for number in range(12):
                text = f"{text_of(2000 + number)}## Marca\n\nA marca da rodada {turn} está aqui.\n"
                (folder / f"norma-{number}.md").write_text(text)
            if turn == "três":
                (folder / "norma-11.md").unlink()
                (folder / "nova.md").write_text("# Nova\n\n## Marca\n\nA marca da rodada três está aqui.\n")
            ran = trecho("sync", str(folder), "--scope", "docs", "--set", "normas", dsn=site.dsn)
            assert ran.code == 0, ran.err
            position = one(site.dsn, "SELECT pg_current_wal_lsn()::text")
            wait_for(lambda p=position: one(replica, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", p))
            assert answers(replica) == answers(site.dsn), turn
            assert answers(replica, "trecho_reader") == answers(site.dsn, "trecho_reader"), turn
    finally:
        stop.set()
        reader.join()
    assert torn == []

    # The commands of a reader work there; those that write say why they cannot.
    assert nearest(replica, exact=False) == nearest(site.dsn, exact=False)
    for command in (
        ["search", "prazo"],
        ["evidence", "prazo"],
        ["status"],
        ["status", "--check"],
        ["version", "list"],
    ):
        here, there = trecho(*command, dsn=replica), trecho(*command, dsn=site.dsn)
        assert (here.code, here.out) == (there.code, there.out), here.err
    told = trecho("preflight", dsn=replica)
    assert (told.code, "a standby: it can be searched, not migrated" in told.out) == (0, True), told
    for command in (["sync", str(folder), "--scope", "docs", "--set", "normas"], ["migrate"], ["embed"]):
        ran = trecho(*command, dsn=replica)
        assert ran.code != 0 and "to the primary" in ran.err, (command, ran)
    with (
        psycopg.connect(replica, autocommit=True) as conn,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
    ):
        put(conn, 1)

    # The primary is lost: the replica takes over with all that was published, and goes on.
    told_last = answers(replica)
    one(replica, "SELECT pg_promote()")
    assert answers(replica) == told_last
    (folder / "depois.md").write_text("# Depois\n\nPublicado pela réplica promovida.\n")
    ran = trecho("sync", str(folder), "--scope", "docs", "--set", "normas", dsn=replica)
    assert ran.code == 0, ran.err
    assert one(
        replica,
        "SELECT s.source_path FROM trecho.search('réplica promovida', mode => 'lexical') AS s LIMIT 1",
    ) == ("normas/depois.md")
