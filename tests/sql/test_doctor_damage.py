"""Silent damage, planted by a superuser behind the back of every function: found by name, mended, and then gone."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import conninfo
from psycopg.rows import DictRow, dict_row
from pytest_postgresql.janitor import DatabaseJanitor
from support import Connection, Server, as_role

WORDS = ("backup", "réplica", "índice", "vácuo", "partição", "cópia")


def text_of(word: str) -> str:
    sections = "".join(f"## {word} {n}\n\nTexto {n} sobre {word} e ação.\n\n" for n in range(4))
    return f"# Guia de {word}\n\nAbertura sobre {word}.\n\n{sections}"


TEXTS = {f"m/{word}.md": text_of(word) for word in WORDS}


@contextmanager
def session(dsn: str) -> Iterator[Connection]:
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, autocommit=True) as conn:
        yield conn


def value(conn: Connection, query: str, *args: object) -> Any:
    row = conn.execute(query.encode(), args or None).fetchone()
    assert row is not None
    return next(iter(row.values()))


def reconcile(conn: Connection, texts: dict[str, str], project: str = "default") -> None:
    """A whole pass over set `manual`, and what a client does after it."""
    pass_id = value(conn, "SELECT trecho.begin_pass(%s, 'main', 'manual', '{docs}')", project)
    known = {
        r["path"]: r for r in conn.execute("SELECT * FROM trecho.pass_documents(%s)", (pass_id,)).fetchall()
    }
    for path, text in texts.items():
        row = known.get(path)
        if row is None or row["blob_sha"] != hashlib.sha256(text.encode()).digest():
            conn.execute(
                "SELECT trecho.stage_document(%s, 'docs', %s, %s, %s)",
                (pass_id, path, text, row["revision"] if row else None),
            )
    gone = [r for path, r in known.items() if path not in texts]
    conn.execute(
        "SELECT trecho.stage_removals(%s, %s, %s)",
        (pass_id, [r["source"] for r in gone], [r["revision"] for r in gone]),
    )
    while value(conn, "SELECT trecho.plan_pass(%s)", pass_id):
        pass
    conn.execute(
        "SELECT trecho.publish_pass(%s, allow_pending => true, allow_mass_delete => true)", (pass_id,)
    )
    conn.execute("SELECT trecho.release_pass(%s)", (project,))
    conn.execute("SELECT trecho._after_publish()")


def vector_type(conn: Connection) -> str:
    """Its name with its schema, which may be any."""
    return str(
        value(
            conn, "SELECT extnamespace::regnamespace || '.vector' FROM pg_extension WHERE extname = 'vector'"
        )
    )


def embed(conn: Connection) -> int:
    """A worker whose vectors are made from the hash of the text. Returns texts embedded."""
    count = 0
    while rows := conn.execute("SELECT * FROM trecho.claim_embeddings('w', 1000)").fetchall():
        vectors = [[1.0 + b for b in r["text_hash"]] * 12 + [0.0] * 384 for r in rows]
        conn.execute(
            f"SELECT trecho.store_embeddings('w', %s, %s::bytea[], %s::{vector_type(conn)}[])".encode(),
            (rows[0]["index_version"], [r["text_hash"] for r in rows], [str(v) for v in vectors]),
        )
        count += len(rows)
    for row in conn.execute("SELECT index_version FROM trecho.index_versions").fetchall():
        while value(conn, "SELECT trecho.apply_embeddings(%s)", row["index_version"]):
            pass
    return count


def findings(conn: Connection, **arguments: object) -> dict[str, int]:
    """check -> how many, of what is wrong."""
    names = ", ".join(f"{name} => %({name})s" for name in arguments)
    rows = conn.execute(f"SELECT * FROM trecho.check_index({names})".encode(), arguments).fetchall()
    for row in rows:
        assert row["severity"] == "skipped" or (row["findings"] > 0 and row["example"] and row["repair"]), row
    return {row["check_name"]: row["findings"] for row in rows if row["severity"] != "skipped"}


def repair(conn: Connection, **arguments: object) -> dict[str, int]:
    """Calls until nothing is left that can be mended."""
    names = ", ".join(f"{name} => %({name})s" for name in arguments)
    done: dict[str, int] = {}
    for _ in range(20):
        rows = conn.execute(f"SELECT * FROM trecho.repair_index({names})".encode(), arguments).fetchall()
        if not rows:
            return done
        for row in rows:
            done[row["check_name"]] = done.get(row["check_name"], 0) + row["repaired"]
    raise AssertionError(f"repair does not come to an end: {done}")


def state(conn: Connection) -> dict[str, Any]:
    """All that readers can see, vectors included."""
    placed = conn.execute(
        "SELECT d.source, p.chunk_id, p.anchor, p.start_line, p.end_line, p.project, p.branch, c.content, c.context, c.symbol,"
        "       c.embedding::text AS embedding, c.search_vector::text AS words"
        "  FROM trecho.documents AS d JOIN trecho.placements AS p USING (document_id)"
        "  JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key"
        " ORDER BY d.project, d.source, p.ordinal"
    ).fetchall()
    found = {
        word: [
            (r["chunk_id"], r["content"])
            for r in conn.execute(
                "SELECT chunk_id, content FROM trecho.search(%s, mode => 'lexical', k => 5)", (word,)
            ).fetchall()
        ]
        for word in WORDS
    }
    assert all(hits and word in hits[0][0] for word, hits in found.items()), found
    return {"placed": placed, "found": found}


class Healthy:
    """A database for many tests, made anew after one that did not leave it as it was."""

    def __init__(self, server: Server, name: str, template: str) -> None:
        self.server, self.name, self.template = server, name, template
        self.janitor: DatabaseJanitor | None = None
        self.clean = False

    def dsn(self) -> str:
        if not self.clean:
            self.drop()
            self.janitor = self.server.janitor(
                f"{self.name}_doctor_{uuid.uuid4().hex[:6]}", template_dbname=self.template
            )
            self.janitor.init()
            dsn = conninfo.make_conninfo(self.server.dsn, dbname=self.janitor.dbname)
            with session(dsn) as conn:
                reconcile(conn, TEXTS)
                conn.execute(
                    "SELECT trecho.put_document('docs', %s, source_path => 'app.md')",
                    ("# App\n\nDa aplicação.\n",),
                )
                assert embed(conn) > 20
                conn.execute("SELECT trecho.refresh_lexeme_stats()")
                assert findings(conn) == {}
        assert self.janitor is not None
        self.clean = False
        return conninfo.make_conninfo(self.server.dsn, dbname=self.janitor.dbname)

    def drop(self) -> None:
        if self.janitor is not None:
            self.janitor.drop()


@pytest.fixture(scope="module")
def database(server: Server, run_name: str, template: str) -> Iterator[Healthy]:
    made = Healthy(server, run_name, template)
    yield made
    made.drop()


@pytest.fixture
def dsn(database: Healthy) -> str:
    """Six documents of a source set and one put by an application, every vector there."""
    return database.dsn()


@pytest.fixture
def healthy(dsn: str) -> Iterator[Connection]:
    """The database that these tests share, without what an earlier one left that nothing mends (UNMENDABLE)."""
    with session(dsn) as conn:
        conn.execute(
            "DELETE FROM trecho.retired_chunks AS r WHERE NOT EXISTS (SELECT FROM trecho.chunks AS c WHERE c.index_version = r.index_version AND c.chunk_key = r.chunk_key)"
        )
        yield conn


ONE = "(SELECT min(chunk_key) FROM trecho.placements WHERE chunk_id LIKE 'm/backup.md:2:%')"
DOC = "(SELECT document_id FROM trecho.documents WHERE source = 'm/backup.md')"

# An id that another test retired, and whose chunk this one damages: its text stands nowhere else.
UNMENDABLE = {"retired ids"}

# name -> (how it is planted, what finds it at least, texts that must be embedded again)
DAMAGE: dict[str, tuple[str, set[str], int]] = {
    "a vector nulled": (
        f"UPDATE trecho.chunks SET embedding = NULL WHERE chunk_key = {ONE}",
        {"pending vectors"},
        1,
    ),
    "a vector zeroed": (
        f"UPDATE trecho.chunks SET embedding = array_fill(0, ARRAY[768])::{{vector}} WHERE chunk_key = {ONE}",
        {"vectors"},
        1,
    ),
    "a vector of another model": (
        f"UPDATE trecho.chunks SET embedding = array_fill(0.5, ARRAY[768])::{{vector}} WHERE chunk_key = {ONE}",
        {"vectors"},
        1,
    ),
    "a content hash changed": (
        f"UPDATE trecho.chunks SET content_hash = sha256('x') WHERE chunk_key = {ONE}",
        {"content_hash", "passages"},
        0,
    ),
    "a text hash changed": (
        f"UPDATE trecho.chunks SET text_hash = sha256('x') WHERE chunk_key = {ONE}",
        {"text_hash", "passages"},
        1,
    ),
    "a content changed by hand": (
        f"UPDATE trecho.chunks SET content = 'Outra coisa.' WHERE chunk_key = {ONE}",
        {"content_hash", "text_hash"},
        0,
    ),
    "a symbol changed by hand": (
        f"UPDATE trecho.chunks SET symbol = 'Outro' WHERE chunk_key = {ONE}",
        {"content_hash"},
        0,
    ),
    "a context changed by hand": (
        f"UPDATE trecho.chunks SET context = 'Outro' WHERE chunk_key = {ONE}",
        {"text_hash"},
        0,
    ),
    "a content changed with its hashes": (
        "UPDATE trecho.chunks SET content = 'Outra coisa.', text_hash = trecho.text_hash(1, context, 'Outra coisa.'),"
        f" content_hash = trecho.content_hash(source_path, symbol, 'Outra coisa.') WHERE chunk_key = {ONE}",
        {"passages"},
        1,
    ),
    "a chunk deleted": (
        f"DELETE FROM trecho.chunks WHERE chunk_key = {ONE}",
        {"placements without a chunk", "passages"},
        1,
    ),
    "a placement lost": (
        f"DELETE FROM trecho.placements WHERE chunk_key = {ONE}",
        {"placement counts", "passages"},
        0,
    ),
    "the last placement lost": (
        f"DELETE FROM trecho.placements WHERE document_id = {DOC} AND ordinal = 5",
        {"placement counts", "passages"},
        0,
    ),
    "every placement of a document lost": (
        f"DELETE FROM trecho.placements WHERE document_id = {DOC}",
        {"placement counts", "passages"},
        0,
    ),
    "a placement of another chunk": (
        "UPDATE trecho.placements SET chunk_key = (SELECT max(chunk_key) FROM trecho.chunks WHERE source_path = 'm/réplica.md')"
        f" WHERE document_id = {DOC} AND ordinal = 3",
        {"placements of another document", "passages"},
        0,
    ),
    "a chunk id changed": (
        f"UPDATE trecho.placements SET chunk_id = left(chunk_id, -1) || 'x' WHERE document_id = {DOC} AND ordinal = 3",
        {"passages"},
        0,
    ),
    "a placement in another branch": (
        f"UPDATE trecho.placements SET branch = 'outro' WHERE document_id = {DOC} AND ordinal = 3",
        {"placements of another document"},
        0,
    ),
    "lines and anchor changed": (
        f"UPDATE trecho.placements SET anchor = 'nada', start_line = 1, end_line = 99 WHERE document_id = {DOC} AND ordinal = 3",
        {"placements of another document", "passages"},
        0,
    ),
    "placements of a document that is gone": (
        "INSERT INTO trecho.placements SELECT index_version, 999999, ordinal, chunk_key, project, 'sombra', chunk_id, anchor, start_line, end_line"
        f" FROM trecho.placements WHERE document_id = {DOC}; INSERT INTO trecho.indexed_documents VALUES (1, 999999, sha256('x'), 5)",
        {"placements without a document", "indexed documents without a document"},
        0,
    ),
    "a count changed": (
        f"UPDATE trecho.indexed_documents SET chunk_count = 99 WHERE document_id = {DOC}",
        {"placement counts"},
        0,
    ),
    "a document forgotten by the version": (
        f"DELETE FROM trecho.indexed_documents WHERE document_id = {DOC}",
        {"missing documents"},
        0,
    ),
    "a doc_id changed": (
        f"UPDATE trecho.documents SET doc_id = 'outro' WHERE document_id = {DOC}",
        {"doc_ids", "placements of another document"},
        0,
    ),
    "quarantine lost": (
        "SELECT trecho.quarantine_text(text_hash, 'teste') FROM trecho.chunks WHERE source_path = 'app.md';"
        "UPDATE trecho.chunks SET quarantined = false WHERE source_path = 'app.md'",
        {"quarantine"},
        0,
    ),
    "quarantine without a reason": (
        f"UPDATE trecho.chunks SET quarantined = true WHERE chunk_key = {ONE}",
        {"quarantine"},
        0,
    ),
    "the word index not valid": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'trecho.chunks_1_words'::regclass",
        {"indexes"},
        0,
    ),
    "the vector index not valid": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'trecho.chunks_1_vectors'::regclass",
        {"indexes"},
        0,
    ),
    "a primary key not valid": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'trecho.placements_1_pkey'::regclass",
        {"indexes"},
        0,
    ),
    "an index of documents not valid": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'trecho.documents_path_idx'::regclass",
        {"other indexes"},
        0,
    ),
    "indexes dropped": (
        "DROP INDEX trecho.chunks_1_words, trecho.chunks_1_vectors, trecho.chunks_1_identity, trecho.chunks_1_text,"
        " trecho.chunks_1_pending, trecho.placements_1_chunk, trecho.placements_1_id",
        {"indexes"},
        0,
    ),
    "primary keys dropped": (
        "ALTER TABLE trecho.placements_1 DROP CONSTRAINT placements_1_pkey; ALTER TABLE trecho.chunks_1 DROP CONSTRAINT chunks_1_pkey",
        {"indexes"},
        0,
    ),
    "an index of another kind": (
        "DROP INDEX trecho.chunks_1_words; CREATE INDEX chunks_1_words ON trecho.chunks_1 USING btree (language)",
        {"indexes"},
        0,
    ),
    "a partition detached": (
        "ALTER TABLE trecho.chunks DETACH PARTITION trecho.chunks_1",
        {"partitions"},
        0,
    ),
    "word statistics poisoned": (
        "UPDATE trecho.lexeme_stats SET document_frequency = 1000000",
        {"word statistics"},
        0,
    ),
    "one word's statistics poisoned": (
        "UPDATE trecho.lexeme_stats SET document_frequency = 1 WHERE lexeme = 'text'",
        {"word statistics"},
        0,
    ),
    "word statistics emptied": ("DELETE FROM trecho.lexeme_stats", {"word statistics"}, 0),
    "a word that does not occur": (
        "INSERT INTO trecho.lexeme_stats VALUES (1, 'zzz', 5)",
        {"word statistics"},
        0,
    ),
    "branch totals lost": ("DELETE FROM trecho.branch_totals", {"branch totals"}, 0),
    "branch totals poisoned": (
        "UPDATE trecho.branch_totals SET document_count = 1000, chunk_count = 100000",
        {"branch totals"},
        0,
    ),
    "a dead pass": (
        "SELECT trecho.begin_pass('default', 'main', 'manual', '{docs}'); SELECT trecho.stage_document((SELECT max(pass_id) FROM trecho.passes), 'docs', 'x.md', 'x');"
        " SELECT trecho.release_pass()",
        {"passes"},
        0,
    ),
    "a worker that is gone": (
        f"INSERT INTO trecho.embedding_attempts (index_version, text_hash, lease_until, leased_by, lease_pid) SELECT 1, text_hash, now() + interval '1 day', 'morto', 1"
        f" FROM trecho.chunks WHERE chunk_key = {ONE}",
        {"leases"},
        0,
    ),
}


@pytest.mark.parametrize("name", sorted(DAMAGE))
def test_damage__is_found_and_mended_and_then_everything_is_as_before(
    database: Healthy, healthy: Connection, name: str
) -> None:
    planted, expected, embedded = DAMAGE[name]
    before = state(healthy)
    if "UPDATE pg_index" in planted:
        healthy.execute("SET allow_system_table_mods = on")
    for statement in planted.replace("{vector}", vector_type(healthy)).split(";"):
        healthy.execute(statement.encode())
    found = findings(healthy)
    assert expected <= found.keys(), found
    repair(healthy)
    assert embed(healthy) == embedded
    assert findings(healthy).keys() <= UNMENDABLE
    if name != "quarantine lost":
        after = state(healthy)
        assert after["placed"] == before["placed"]
        assert after["found"] == before["found"]
        assert repair(healthy) == {}
        database.clean = True


def test_search_vector__that_is_not_what_its_text_gives_is_found_and_computed_again(
    healthy: Connection,
) -> None:
    """The function behind the column replaced, as by a wrong restore: stored rows keep what it gave."""
    before = state(healthy)
    body = value(healthy, "SELECT pg_get_functiondef('trecho.search_vector_1(text, text)'::regprocedure)")
    healthy.execute(body.replace("de de de de", "xx de de de").encode())
    healthy.execute(f"UPDATE trecho.chunks SET content = content WHERE chunk_key = {ONE}".encode())
    healthy.execute(body.encode())
    assert findings(healthy) == {"search_vector": 1}
    assert repair(healthy) == {"search_vector": 1}
    assert findings(healthy) == {}
    assert state(healthy) == before


def test_text__that_is_damaged_is_found_nothing_is_made_of_it_and_it_can_be_put_back(
    healthy: Connection,
) -> None:
    before = state(healthy)
    healthy.execute(
        f"UPDATE trecho.blobs SET content = 'estragado' WHERE blob_sha = (SELECT blob_sha FROM trecho.documents WHERE document_id = {DOC})".encode()
    )
    healthy.execute(f"UPDATE trecho.chunks SET content = 'Outra coisa.' WHERE chunk_key = {ONE}".encode())
    assert {"texts", "content_hash", "text_hash"} <= findings(healthy).keys()
    repair(healthy, checks=["content_hash", "text_hash", "passages", "placements without a chunk"])
    assert {"texts", "content_hash", "text_hash"} <= findings(healthy).keys()
    # Nothing to make the passage from: it stays for whoever restores the text.
    assert value(healthy, "SELECT trecho.restore_text('nada disso')") is False
    assert value(healthy, "SELECT trecho.restore_text(%s)", TEXTS["m/backup.md"]) is True
    assert value(healthy, "SELECT trecho.restore_text(%s)", TEXTS["m/backup.md"]) is False
    repair(healthy)
    assert findings(healthy) == {}
    assert state(healthy) == before


def test_damage_everywhere_at_once__is_mended_in_batches(healthy: Connection) -> None:
    before = state(healthy)
    healthy.execute("UPDATE trecho.chunks SET content = content || '!' WHERE chunk_key % 2 = 0")
    healthy.execute("DELETE FROM trecho.placements WHERE ordinal = 1")
    healthy.execute("UPDATE trecho.lexeme_stats SET document_frequency = 7")
    healthy.execute("DROP INDEX trecho.chunks_1_text")
    assert {"content_hash", "text_hash", "placement counts", "word statistics", "indexes"} <= findings(
        healthy
    ).keys()
    for _ in range(50):
        if not healthy.execute("SELECT * FROM trecho.repair_index(max_rows => 3)").fetchall():
            break
    assert embed(healthy) == 0  # every vector was kept
    assert findings(healthy).keys() <= UNMENDABLE
    assert state(healthy) == before


def test_retired_id__still_resolves_after_its_chunk_was_damaged_and_mended(healthy: Connection) -> None:
    (old,) = (
        r["chunk_id"]
        for r in healthy.execute(
            "SELECT chunk_id FROM trecho.placements WHERE chunk_id LIKE 'm/vácuo.md:2:%'"
        ).fetchall()
    )
    reconcile(healthy, TEXTS | {"m/vácuo.md": "# Novo\n\nAbertura.\n\n" + TEXTS["m/vácuo.md"]})
    reconcile(healthy, TEXTS)
    healthy.execute(
        "UPDATE trecho.chunks SET content_hash = sha256(content_hash) WHERE source_path = 'm/vácuo.md'"
    )
    repair(healthy)
    row = healthy.execute("SELECT state, content FROM trecho.resolve(%s)", (old,)).fetchone()
    assert row is not None and row["state"] == "live" and "vácuo" in row["content"]


def test_repair_beside_writers__loses_nothing_of_either(healthy: Connection, dsn: str) -> None:
    """Two writers put the damaged documents again and again while they are mended."""
    healthy.execute("UPDATE trecho.chunks SET content = content || '!' WHERE chunk_key % 2 = 0")
    healthy.execute("DELETE FROM trecho.placements WHERE ordinal = 2")
    texts = {path: text + "\n\nDepois.\n" for path, text in TEXTS.items()}
    errors: list[Exception] = []

    def put(paths: list[str]) -> None:
        with session(dsn) as conn:
            for path in paths * 3:
                while True:
                    try:
                        conn.execute(
                            "SELECT trecho.put_document('docs', %s, source_path => %s)", (texts[path], path)
                        )
                        break
                    except psycopg.errors.DeadlockDetected:
                        continue  # what callers are told to do
                    except Exception as error:
                        errors.append(error)
                        return

    paths = sorted(TEXTS)
    threads = [threading.Thread(target=put, args=(order,)) for order in (paths, paths[::-1])]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        try:
            healthy.execute("SELECT * FROM trecho.repair_index(max_rows => 5)").fetchall()
        except psycopg.errors.DeadlockDetected:
            continue
    for thread in threads:
        thread.join()
    assert errors == []
    repair(healthy)
    embed(healthy)
    # They belong to a set and were written over by an application, which is for the next pass; nothing else is wrong.
    assert findings(healthy).keys() <= UNMENDABLE
    rows = healthy.execute(
        "SELECT d.source, string_agg(c.content, '' ORDER BY p.ordinal) AS text FROM trecho.documents AS d"
        "  JOIN trecho.placements AS p USING (document_id) JOIN trecho.chunks AS c ON c.chunk_key = p.chunk_key"
        " WHERE d.source LIKE 'm/%' GROUP BY 1"
    ).fetchall()
    assert {r["source"] for r in rows} == set(TEXTS)
    assert all("Depois." in r["text"] and "!" not in r["text"] for r in rows)


def test_running_pass__keeps_what_it_is_about_to_place_and_is_no_finding(
    healthy: Connection, dsn: str
) -> None:
    with session(dsn) as other:
        pass_id = value(other, "SELECT trecho.begin_pass('default', 'main', 'manual', '{docs}')")
        other.execute(
            "SELECT trecho.stage_document(%s, 'docs', 'm/novo.md', %s)", (pass_id, text_of("réplica"))
        )
        value(other, "SELECT trecho.plan_pass(%s)", pass_id)
        assert findings(healthy) == {}
        other.execute("UPDATE trecho.chunks SET content = 'x' WHERE source_path = 'm/novo.md'")
        assert {"content_hash", "text_hash"} == findings(healthy).keys()
        assert repair(healthy) == {}
        other.execute("SELECT trecho.abandon_pass(%s)", (pass_id,))
    repair(healthy)
    assert findings(healthy) == {}


def test_version_that_is_being_built__may_lack_its_search_indexes_and_its_documents(
    healthy: Connection,
) -> None:
    healthy.execute('SELECT trecho.configure(\'{"chunk_settings": {"section_max_chars": 900}}\')')
    version = value(healthy, "SELECT trecho.begin_version_build()")
    for kind in ("words", "vectors"):
        healthy.execute(f"DROP INDEX IF EXISTS trecho.chunks_{version}_{kind}".encode())
    assert findings(healthy) == {}
    value(healthy, "SELECT trecho.backfill_version(%s, 3)", version)
    assert findings(healthy) == {}
    healthy.execute(f"DELETE FROM trecho.placements_{version} WHERE ordinal = 1".encode())
    healthy.execute(f"DROP INDEX trecho.chunks_{version}_text".encode())
    assert findings(healthy).keys() == {"placement counts", "passages", "indexes"}
    repair(healthy)
    assert findings(healthy) == {}
    assert value(healthy, "SELECT to_regclass(%s) IS NULL", f"trecho.chunks_{version}_vectors")


def test_missing_partition__is_told_and_what_hangs_on_it_is_skipped(healthy: Connection) -> None:
    healthy.execute("DROP TABLE trecho.placements_1")
    rows = healthy.execute("SELECT * FROM trecho.check_index()").fetchall()
    assert [(r["check_name"], r["severity"], r["example"]) for r in rows] == [
        ("partitions", "damage", "placements_1 is missing"),
        ("version", "skipped", "its partitions are not all attached"),
    ]


def test_quick_check__says_what_it_left_out(healthy: Connection) -> None:
    healthy.execute(f"UPDATE trecho.chunks SET content = 'x' WHERE chunk_key = {ONE}".encode())
    assert findings(healthy, thorough=False) == {}
    rows = healthy.execute("SELECT * FROM trecho.check_index(thorough => false, all_rows => true)").fetchall()
    skipped = {r["check_name"] for r in rows if r["severity"] == "skipped"}
    assert {"content_hash", "text_hash", "search_vector", "vectors", "passages", "texts"} <= skipped
    assert {r["check_name"] for r in rows if r["severity"] == "ok"} >= {"indexes", "placement counts"}


def test_version_cut_by_another_chunker__is_not_compared_with_this_one(healthy: Connection) -> None:
    healthy.execute("UPDATE trecho.index_versions SET chunker_version = 0")
    rows = healthy.execute("SELECT * FROM trecho.check_index()").fetchall()
    assert [(r["check_name"], r["severity"], r["example"]) for r in rows] == [
        ("passages", "skipped", "cut by chunker 0, installed is 1")
    ]


def test_project__damage_of_others_is_neither_told_nor_mended(healthy: Connection) -> None:
    reconcile(healthy, {"x.md": text_of("outro")}, project="b")
    embed(healthy)
    healthy.execute("UPDATE trecho.chunks SET content_hash = sha256(content_hash) WHERE project = 'b'")
    assert findings(healthy, project="default") == {}
    assert repair(healthy, project="default") == {}
    assert findings(healthy, project="b").keys() == {"content_hash", "passages"}


def test_wanted_indexes__are_those_that_a_new_version_has(shared_db: Connection) -> None:
    made = shared_db.execute(
        "SELECT t.relname AS table_name, c.relname AS index_name, m.amname AS method FROM pg_index AS i"
        "  JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid JOIN pg_am AS m ON m.oid = c.relam"
        " WHERE i.indrelid IN ('trecho.chunks_1'::regclass, 'trecho.placements_1'::regclass)"
    ).fetchall()
    wanted = shared_db.execute(
        "SELECT table_name, index_name, method FROM trecho._wanted_indexes(1)"
    ).fetchall()
    assert sorted(map(str, made)) == sorted(map(str, wanted))
    definitions = "SELECT pg_get_indexdef(to_regclass('trecho.' || index_name)) AS d FROM trecho._wanted_indexes(1) ORDER BY 1"
    before = shared_db.execute(definitions.encode()).fetchall()
    shared_db.execute(
        "ALTER TABLE trecho.placements_1 DROP CONSTRAINT placements_1_pkey; ALTER TABLE trecho.chunks_1 DROP CONSTRAINT chunks_1_pkey"
    )
    for row in wanted:
        shared_db.execute(f"DROP INDEX IF EXISTS trecho.{row['index_name']}".encode())
    shared_db.execute("SELECT trecho._rebuild_indexes(1)")
    assert shared_db.execute(definitions.encode()).fetchall() == before


@pytest.mark.parametrize(
    "call",
    [
        "SELECT * FROM trecho.repair_index(max_rows => 0)",
        "SELECT * FROM trecho.repair_index(max_rows => NULL)",
    ],
)
def test_repair__bad_max_rows_raises_22023(shared_db: Connection, call: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        shared_db.execute(call.encode())


def test_doctor_functions__are_for_operators(dsn: str, make_role: Callable[..., str]) -> None:
    for group, allowed in (("trecho_operator", True), ("trecho_writer", False)):
        with session(as_role(dsn, make_role(group))) as conn:
            for call in ("check_index()", "repair_index()", "documents_to_recut()", "restore_text('x')"):
                if allowed:
                    conn.execute(f"SELECT * FROM trecho.{call}".encode())
                else:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        conn.execute(f"SELECT * FROM trecho.{call}".encode())


FILES = st.dictionaries(
    st.sampled_from(["a.md", "b.md", "c d.md", "é.md"]),
    st.lists(st.sampled_from(WORDS), max_size=3).map(
        lambda words: "".join(f"## {w}\n\nTexto sobre {w}.\n\n" for w in words)
    ),
)


def test_any_history__of_passes_and_puts_leaves_no_finding(dsn: str) -> None:
    with session(dsn) as conn:

        @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(
            passes=st.lists(FILES, min_size=1, max_size=3),
            puts=FILES,
            quarantine=st.booleans(),
            vectors=st.booleans(),
        )
        def history(
            passes: list[dict[str, str]], puts: dict[str, str], quarantine: bool, vectors: bool
        ) -> None:
            project = f"p-{uuid.uuid4().hex}"
            for files in passes:
                reconcile(conn, files, project)
            for path, text in puts.items():
                conn.execute(
                    "SELECT trecho.put_document('docs', %s, source_path => %s, project => %s)",
                    (text, "app/" + path, project),
                )
            if quarantine:
                conn.execute(
                    "SELECT trecho.quarantine_text(text_hash, 'teste') FROM trecho.chunks WHERE project = %s ORDER BY chunk_key LIMIT 1",
                    (project,),
                )
            if vectors:
                embed(conn)
            assert findings(conn, project=project).keys() <= ({"pending vectors"} if not vectors else set())
            assert findings(conn).keys() <= {"pending vectors"}

        history()
