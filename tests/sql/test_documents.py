"""Documents put and removed by applications, through the public SQL alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from support import Connection

TEXT = "# Guia\n\nAbertura.\n\n## Backup\n\nO backup noturno usa pg_basebackup.\n\n## Réplica\n\nA réplica segue o WAL.\n"


def put(
    db: Connection, path: str = "guia.md", text: str = TEXT, scope: str = "docs", **more: Any
) -> dict[str, Any]:
    names = "".join(f", {name} => %({name})s" for name in more)
    row = db.execute(
        f"SELECT * FROM trecho.put_document(%(scope)s::trecho.chunk_scope, %(text)s, source_path => %(path)s{names})".encode(),
        {"scope": scope, "text": text, "path": path, **more},
    ).fetchone()
    assert row is not None
    return row


def standing(db: Connection, branch: str = "main") -> list[dict[str, Any]]:
    """Every placed chunk, as a reader may see it."""
    return db.execute(
        "SELECT d.source, p.ordinal, p.chunk_id, p.anchor, p.start_line, p.end_line, c.content, c.context, c.chunk_key"
        "  FROM trecho.placements AS p JOIN trecho.documents AS d USING (document_id)"
        "  JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key"
        " WHERE d.branch = %s ORDER BY d.source, p.ordinal",
        (branch,),
    ).fetchall()


def test_put_document__gives_its_key_chunks_and_pending(shared_db: Connection) -> None:
    row = put(shared_db)
    rows = standing(shared_db)
    assert (row["chunks"], row["pending_embeddings"]) == (len(rows), len(rows))
    assert len(rows) >= 2
    assert [r["ordinal"] for r in rows] == list(range(1, len(rows) + 1))
    lines = TEXT.splitlines()
    for r in rows:
        assert r["content"].splitlines()[0] == lines[r["start_line"] - 1]
        assert r["content"].splitlines()[-1] == lines[r["end_line"] - 1]


def test_chunk_ids__are_those_of_the_public_function(shared_db: Connection) -> None:
    put(shared_db)
    for r in standing(shared_db):
        row = shared_db.execute(
            "SELECT trecho.chunk_id('guia.md', %s, %s) AS id", (r["ordinal"], r["content"])
        ).fetchone()
        assert row is not None and row["id"] == r["chunk_id"]
    assert standing(shared_db)[-1]["anchor"] == "guia.md#réplica"


def test_content_hash__is_the_documented_sha256(shared_db: Connection) -> None:
    import hashlib

    put(shared_db)
    rows = shared_db.execute(
        "SELECT source_path, symbol, content, content_hash FROM trecho.chunks"
    ).fetchall()
    assert rows
    for r in rows:
        expected = hashlib.sha256("\0".join((r["source_path"], r["symbol"], r["content"])).encode()).digest()
        assert r["content_hash"] == expected


def test_same_text_again__writes_no_chunk_and_no_placement(db: Connection) -> None:
    put(db)
    db.commit()
    before = db.execute(
        "SELECT xmin::text, ctid::text FROM trecho.placements UNION ALL SELECT xmin::text, ctid::text FROM trecho.chunks"
    ).fetchall()
    put(db)
    db.commit()
    after = db.execute(
        "SELECT xmin::text, ctid::text FROM trecho.placements UNION ALL SELECT xmin::text, ctid::text FROM trecho.chunks"
    ).fetchall()
    assert sorted(map(str, before)) == sorted(map(str, after))


def test_edit__rewrites_only_the_chunk_that_changed(shared_db: Connection) -> None:
    put(shared_db)
    before = standing(shared_db)
    put(shared_db, text=TEXT.replace("noturno", "diário"))
    after = standing(shared_db)
    assert [b["chunk_key"] == a["chunk_key"] for b, a in zip(before, after, strict=True)].count(False) == 1
    retired = shared_db.execute("SELECT chunk_id, successor FROM trecho.retired_chunks").fetchall()
    changed = [
        (b["chunk_id"], a["chunk_id"])
        for b, a in zip(before, after, strict=True)
        if b["chunk_id"] != a["chunk_id"]
    ]
    assert [(r["chunk_id"], r["successor"]) for r in retired] == changed


def test_ordinal_shift__keeps_the_chunks_and_names_the_successor(shared_db: Connection) -> None:
    put(shared_db)
    before = {r["content"]: r for r in standing(shared_db)}
    put(shared_db, text=TEXT.replace("## Backup", "## Antes\n\nNovo.\n\n## Backup"))
    after = {r["content"]: r for r in standing(shared_db)}
    moved = next(c for c in before if "réplica segue" in c)
    assert after[moved]["chunk_key"] == before[moved]["chunk_key"]
    assert after[moved]["ordinal"] == before[moved]["ordinal"] + 1
    row = shared_db.execute("SELECT * FROM trecho.resolve(%s)", (before[moved]["chunk_id"],)).fetchone()
    assert row is not None
    assert (row["state"], row["successor"]) == ("retired", after[moved]["chunk_id"])


def test_remove_document__is_gone_at_once_and_leaves_a_tombstone(shared_db: Connection) -> None:
    put(shared_db)
    chunk_id = standing(shared_db)[0]["chunk_id"]
    row = shared_db.execute("SELECT trecho.remove_document('docs', 'guia.md') AS gone").fetchone()
    assert row is not None and row["gone"] is True
    assert standing(shared_db) == []
    tombs = shared_db.execute("SELECT source, doc_id, scope FROM trecho.tombstones").fetchall()
    assert tombs == [{"source": "guia.md", "doc_id": "guia.md", "scope": "docs"}]
    resolved = shared_db.execute("SELECT * FROM trecho.resolve(%s)", (chunk_id,)).fetchone()
    assert resolved is not None
    assert (resolved["state"], resolved["successor"]) == ("retired", None)
    assert resolved["content"]
    again = shared_db.execute("SELECT trecho.remove_document('docs', 'guia.md') AS gone").fetchone()
    assert again is not None and again["gone"] is False


def test_resolve__live_and_unknown(shared_db: Connection) -> None:
    put(shared_db)
    first = standing(shared_db)[0]
    live = shared_db.execute("SELECT * FROM trecho.resolve(%s)", (first["chunk_id"],)).fetchone()
    assert live is not None and (live["state"], live["content"]) == ("live", first["content"])
    unknown = shared_db.execute("SELECT * FROM trecho.resolve('nada:1:0000000000')").fetchone()
    assert unknown is not None and unknown["state"] == "unknown"


def test_branches__share_chunk_rows(shared_db: Connection) -> None:
    put(shared_db)
    count = shared_db.execute("SELECT count(*) AS n FROM trecho.chunks").fetchone()
    put(shared_db, branch="ramo")
    again = shared_db.execute("SELECT count(*) AS n FROM trecho.chunks").fetchone()
    assert count == again
    assert [r["chunk_key"] for r in standing(shared_db)] == [
        r["chunk_key"] for r in standing(shared_db, "ramo")
    ]


def test_rename__takes_the_vectors_along(shared_db: Connection) -> None:
    put(shared_db, metadata=Jsonb({}), title="Guia")
    shared_db.execute("UPDATE trecho.chunks SET embedding = array_fill(0.5::real, ARRAY[768])::vector")
    shared_db.execute("SELECT trecho.remove_document('docs', 'guia.md')")
    row = put(shared_db, path="outro/nome.md", title="Guia")
    assert row["pending_embeddings"] == 0


def test_session__needs_its_id_and_nothing_else(shared_db: Connection) -> None:
    text = '{"role": "ana", "at": "2026-01-02T03:04:05Z", "text": "O disco encheu."}\n'
    sid = "6f2c2f0e-9f6f-4d4c-8a55-3a7c3f1d2b10"
    shared_db.execute("SELECT trecho.put_document('session', %s, session_id => %s)", (text, sid))
    row = shared_db.execute("SELECT doc_id, source, source_path FROM trecho.documents").fetchone()
    assert row == {"doc_id": sid, "source": sid, "source_path": None}
    for bad in (
        "trecho.put_document('session', 'x', source_path => 'a')",
        "trecho.put_document('docs', 'x')",
        "trecho.put_document('docs', 'x', source_path => '')",
        f"trecho.put_document('docs', 'x', source_path => 'a', session_id => '{sid}')",
        "trecho.put_document('docs', 'x', source_path => 'a', metadata => '[]')",
    ):
        with pytest.raises(psycopg.Error) as caught, shared_db.transaction():
            shared_db.execute(f"SELECT {bad}".encode())
        assert caught.value.sqlstate == "22023", bad


@pytest.mark.parametrize("table", ["chunks", "documents"])
def test_the_tables_themselves__refuse_a_session_with_a_path(shared_db: Connection, table: str) -> None:
    put(shared_db)
    with pytest.raises(psycopg.errors.CheckViolation), shared_db.transaction():
        shared_db.execute(f"UPDATE trecho.{table} SET scope = 'session'".encode())


def test_two_claims_to_one_id__are_refused_and_both_are_named(shared_db: Connection) -> None:
    put(shared_db, "a.md", "---\nid: politica\n---\n# A\n\num\n")
    with pytest.raises(psycopg.Error) as caught, shared_db.transaction():
        put(shared_db, "b.md", "---\nid: politica\n---\n# B\n\ndois\n")
    assert caught.value.sqlstate == "TR007"
    assert "a.md" in str(caught.value) and "b.md" in str(caught.value)
    put(shared_db, "b.md", "---\nid: outra\n---\n# B\n\ndois\n")
    assert {r["anchor"].partition("#")[0] for r in standing(shared_db)} == {"politica", "outra"}


def test_adr_numbers_that_clash__take_their_paths_until_one_goes(shared_db: Connection) -> None:
    def ids() -> dict[str, str]:
        rows = shared_db.execute("SELECT source, doc_id FROM trecho.documents").fetchall()
        for r in standing(shared_db):
            doc_id = next(x["doc_id"] for x in rows if x["source"] == r["source"])
            assert r["chunk_id"].startswith(doc_id + ":") and r["anchor"].partition("#")[0] == doc_id
        return {r["source"]: r["doc_id"] for r in rows}

    put(shared_db, "adr/0007-um.md", "# Um\n\ntexto\n", scope="adr")
    assert ids() == {"adr/0007-um.md": "adr-0007"}
    put(shared_db, "adr/0007-dois.md", "# Dois\n\ntexto\n", scope="adr")
    assert ids() == {"adr/0007-um.md": "adr/0007-um.md", "adr/0007-dois.md": "adr/0007-dois.md"}
    shared_db.execute("SELECT trecho.remove_document('adr', 'adr/0007-um.md')")
    assert ids() == {"adr/0007-dois.md": "adr-0007"}


def test_text_with_too_many_bytes__is_tr008_with_a_hint(shared_db: Connection) -> None:
    with pytest.raises(psycopg.Error) as caught, shared_db.transaction():
        put(shared_db, text="a" * (512 * 1024 + 1))
    assert caught.value.sqlstate == "TR008"
    assert caught.value.diag.message_hint


def test_purge__leaves_nothing_of_the_text(shared_db: Connection) -> None:
    secret = "palavra-que-some"
    put(shared_db, text=f"# T\n\n{secret}\n")
    put(shared_db, text=f"# T\n\n{secret} mudada\n")
    put(shared_db, text=f"# T\n\n{secret} noutro ramo\n", branch="ramo")
    put(shared_db, path="fica.md", text="# Fica\n\ntexto\n")
    row = shared_db.execute("SELECT trecho.purge('docs', 'guia.md') AS n").fetchone()
    assert row is not None and row["n"] == 2
    tables = shared_db.execute(
        "SELECT c.oid::regclass::text AS name FROM pg_class AS c WHERE c.relnamespace = 'trecho'::regnamespace AND c.relkind = 'r'"
    ).fetchall()
    for table in tables:
        found = shared_db.execute(
            f"SELECT t FROM {table['name']} AS t WHERE t::text LIKE %s".encode(), (f"%{secret}%",)
        ).fetchall()
        assert found == [], table["name"]
        named = shared_db.execute(
            f"SELECT t FROM {table['name']} AS t WHERE t::text LIKE '%guia.md%'".encode()
        ).fetchall()
        assert named == [], table["name"]
    assert [r["source"] for r in standing(shared_db)] == ["fica.md"]


def test_gc__waits_for_the_grace_and_then_takes_what_nothing_refers_to(db: Connection) -> None:
    put(db)
    put(db, path="fica.md")
    db.execute("SELECT trecho.remove_document('docs', 'guia.md')")
    db.commit()
    first = db.execute("SELECT trecho.gc() AS left").fetchone()
    kept = db.execute("SELECT count(*) AS n FROM trecho.chunks WHERE source_path = 'guia.md'").fetchone()
    assert first is not None and kept is not None
    assert (first["left"], kept["n"] > 0) == (0, True)
    db.execute("SET trecho.grace = '0'")
    db.commit()
    rounds = 0
    while True:
        rounds += 1
        row = db.execute("SELECT trecho.gc(1) AS left").fetchone()
        db.commit()
        assert row is not None and rounds < 50
        if not row["left"]:
            break
    gone = db.execute("SELECT count(*) AS n FROM trecho.chunks WHERE source_path = 'guia.md'").fetchone()
    assert gone is not None and gone["n"] == 0
    assert {r["source"] for r in standing(db)} == {"fica.md"}


def test_drop_project__takes_its_rows_and_no_others(shared_db: Connection) -> None:
    put(shared_db)
    put(shared_db, project="outro")
    row = shared_db.execute("SELECT trecho.drop_project('outro') AS n").fetchone()
    assert row is not None and row["n"] == 1
    projects = shared_db.execute("SELECT DISTINCT project FROM trecho.chunks").fetchall()
    assert projects == [{"project": "default"}]
    assert len(standing(shared_db)) > 0


def test_list_and_get__give_what_was_put(shared_db: Connection) -> None:
    put(shared_db, metadata=Jsonb({"equipe": "dados"}))
    listed = shared_db.execute("SELECT * FROM trecho.list_documents()").fetchall()
    assert [(r["doc_id"], r["title"], r["metadata"]["equipe"]) for r in listed] == [
        ("guia.md", "Guia", "dados")
    ]
    got = shared_db.execute("SELECT * FROM trecho.get_document('guia.md')").fetchone()
    assert got is not None and (got["content"], got["chunk_count"]) == (TEXT, listed[0]["chunk_count"])


def test_eight_writers_of_one_document_each__lose_nothing(dsn: str) -> None:
    """Half of them write the same texts under their own paths, so that they meet on chunks of equal text_hash."""
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with psycopg.connect(dsn, row_factory=dict_row, autocommit=True) as conn:
                for turn in range(12):
                    conn.execute(
                        "SELECT trecho.put_document('docs', %s, source_path => %s)",
                        (TEXT.replace("noturno", f"da vez {turn % 4}"), f"{number % 4}/{turn % 6}.md"),
                    )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with psycopg.connect(dsn, row_factory=dict_row) as conn:
        rows = conn.execute(
            "SELECT d.source, count(p.*) AS n FROM trecho.documents AS d LEFT JOIN trecho.placements AS p USING (document_id) GROUP BY d.source"
        ).fetchall()
    assert len(rows) == 24
    assert len({r["n"] for r in rows}) == 1


def test_health__says_usable_after_a_put_and_current_when_no_vector_is_missing(shared_db: Connection) -> None:
    def health() -> dict[str, Any]:
        row = shared_db.execute("SELECT * FROM trecho.index_health()").fetchone()
        assert row is not None
        return row

    assert (health()["usable"], health()["current"]) == (False, False)
    row = put(shared_db)
    h = health()
    assert (h["usable"], h["current"], h["documents"], h["chunks"], h["pending_embeddings"]) == (
        True,
        False,
        1,
        row["chunks"],
        row["chunks"],
    )
    shared_db.execute("UPDATE trecho.chunks SET embedding = array_fill(0.5::real, ARRAY[768])::vector")
    assert health()["current"] is True


def test_a_client_that_cuts_itself__gives_the_same_rows(
    shared_db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trecho.client_chunking import cut

    put(shared_db)
    there = standing(shared_db)
    shared_db.execute("SELECT trecho.purge('docs', 'guia.md')")
    settings = shared_db.execute("SELECT index_version, chunk_settings FROM trecho.index_versions").fetchone()
    assert settings is not None
    made = cut("guia.md", TEXT, "docs", {str(settings["index_version"]): settings["chunk_settings"]})
    put(shared_db, client_description=Jsonb(made.description), client_chunks=Jsonb(made.chunks))
    here = standing(shared_db)

    def same(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "chunk_key"} for row in rows]

    assert same(here) == same(there)


def test_putting_in_a_transaction_of_ones_own__is_undone_by_its_rollback(
    dsn: str, make_database: Callable[..., str]
) -> None:
    with psycopg.connect(dsn, row_factory=dict_row) as conn:
        put(conn)
        conn.rollback()
        assert standing(conn) == []
        assert conn.execute("SELECT count(*) AS n FROM trecho.chunks").fetchone() == {"n": 0}


def test_gc__keeps_audit_rows_for_the_retention_and_no_longer(db: Connection) -> None:
    put(db)
    db.execute("SELECT trecho.remove_document('docs', 'guia.md')")
    db.execute("SELECT trecho.begin_pass('default', 'main', 'm', '{docs}')")
    db.execute("SELECT trecho.abandon_pass(pass_id) FROM trecho.passes")
    db.execute("SELECT trecho.release_pass()")
    db.commit()

    def audit_rows() -> list[int]:
        return [
            db.execute(f"SELECT count(*) AS n FROM trecho.{table}".encode()).fetchall()[0]["n"]
            for table in ("tombstones", "retired_chunks", "passes")
        ]

    before = audit_rows()
    assert min(before) > 0
    db.execute("SELECT trecho.gc()")
    assert audit_rows() == before
    db.execute("SET trecho.retention = '-1 second'")
    db.execute("SELECT trecho.gc()")
    assert audit_rows() == [0, 0, 0]


@pytest.mark.parametrize(
    "eraser",
    ["SELECT trecho.gc()", "SELECT trecho.purge('docs', 'guia.md')", "SELECT trecho.drop_project('default')"],
)
def test_a_put_under_way__keeps_the_chunks_it_uses_again_or_writes_its_own(dsn: str, eraser: str) -> None:
    """The put has reused a chunk and not committed; whoever deletes waits, and nothing half is left."""
    with (
        psycopg.connect(dsn, row_factory=dict_row) as app,
        psycopg.connect(dsn, row_factory=dict_row, autocommit=True) as admin,
    ):
        put(app)
        app.execute("SELECT trecho.remove_document('docs', 'guia.md')")
        app.commit()
        admin.execute("SET trecho.grace = '0'")
        put(app)
        done = threading.Event()

        def erase() -> None:
            admin.execute(eraser.encode())
            done.set()

        thread = threading.Thread(target=erase)
        thread.start()
        with psycopg.connect(dsn, autocommit=True) as watcher:
            while not done.is_set():
                row = watcher.execute(
                    "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", (admin.info.backend_pid,)
                ).fetchone()
                if row and row[0]:
                    break
        app.commit()
        thread.join()
        documents = app.execute("SELECT count(*) AS n FROM trecho.documents").fetchone()
        lost = app.execute(
            "SELECT p.chunk_id FROM trecho.placements AS p WHERE NOT EXISTS (SELECT FROM trecho.chunks AS c WHERE c.chunk_key = p.chunk_key)"
        ).fetchall()
        assert lost == []
        assert documents == {"n": len({r["source"] for r in standing(app)})}


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ('{"chunk_settings": {"section_max_chars": "x"}}', "section_max_chars"),
        ('{"chunk_settings": {"chunk_max_bytes": -5}}', "chunk_max_bytes"),
        ('{"chunk_settings": {"stable_windows": "yes"}}', "stable_windows"),
        ('{"chunk_settings": {"window_overlap_lines": 60}}', "window_overlap_lines"),
        ('{"chunk_settings": {"other": 1}}', "other"),
        ('{"provider": 5}', "provider"),
        ('{"dim": "x"}', "dim"),
        ('{"dim": 0}', "dim"),
        ('{"modell": "x"}', "modell"),
    ],
)
def test_configure__refuses_a_wrong_value_by_name_and_stores_nothing(
    shared_db: Connection, recipe: str, key: str
) -> None:
    before = shared_db.execute("SELECT configured_recipe FROM trecho.index_state").fetchone()
    with pytest.raises(psycopg.Error, match=key) as caught, shared_db.transaction():
        shared_db.execute("SELECT trecho.configure(%s)", (recipe,))
    assert caught.value.sqlstate == "22023"
    assert shared_db.execute("SELECT configured_recipe FROM trecho.index_state").fetchone() == before
    put(shared_db)


def test_default_recipe__has_the_settings_and_version_of_the_chunkers(shared_db: Connection) -> None:
    from trecho_chunkers.model import Settings
    from trecho_chunkers.version import CHUNKER_VERSION

    row = shared_db.execute("SELECT trecho._default_recipe() AS recipe").fetchone()
    assert row is not None
    assert row["recipe"]["chunk_settings"] == Settings()._asdict()
    assert row["recipe"]["chunker_version"] == CHUNKER_VERSION


def test_identities_too_long_for_an_index__are_refused_with_the_limit(shared_db: Connection) -> None:
    for more in ({"doc_id": "x" * 2000}, {"path": "x" * 2000}):
        with pytest.raises(psycopg.Error, match="1000") as caught, shared_db.transaction():
            put(shared_db, **more)
        assert caught.value.sqlstate == "22023"


def test_two_writers_that_derive_one_number__both_get_their_paths(dsn: str) -> None:
    with (
        psycopg.connect(dsn, row_factory=dict_row) as one,
        psycopg.connect(dsn, row_factory=dict_row, autocommit=True) as two,
    ):
        put(one, "0009-a.md", "# A\n\ntexto\n", scope="adr")
        thread = threading.Thread(target=lambda: put(two, "0009-b.md", "# B\n\ntexto\n", scope="adr"))
        thread.start()
        with psycopg.connect(dsn, autocommit=True) as watcher:
            while not watcher.execute(
                "SELECT FROM pg_locks WHERE pid = %s AND NOT granted", (two.info.backend_pid,)
            ).rowcount:
                pass
        one.commit()
        thread.join()
        ids = one.execute("SELECT source, doc_id FROM trecho.documents ORDER BY 1").fetchall()
        assert ids == [
            {"source": "0009-a.md", "doc_id": "0009-a.md"},
            {"source": "0009-b.md", "doc_id": "0009-b.md"},
        ]
