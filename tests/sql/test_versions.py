"""Index versions: drift, building beside the living one, the flip, going back, dropping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from embedding_rows import Connection, claim, counts, store, value, vector
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb


def refused(conn: Connection, sqlstate: str, query: str, *parameters: Any) -> None:
    """The statement fails with this code and tells a next step."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute(query, parameters)
    assert caught.value.sqlstate == sqlstate
    assert caught.value.diag.message_hint


def put(conn: Connection, content: str, path: str) -> None:
    conn.execute("SELECT trecho.put_document('docs', %s, %s)", (content, path))


def embed(conn: Connection, version: int) -> None:
    """Give every text of a version its vector."""
    while texts := claim(conn, "w", index_version=version):
        store(conn, "w", texts, version=version)
    while value(conn, "SELECT trecho.apply_embeddings(%s)", version):
        pass


def backfill(conn: Connection, version: int) -> None:
    while value(conn, "SELECT trecho.backfill_version(%s, 2)", version):
        pass


def states(conn: Connection) -> dict[int, str]:
    rows = conn.execute("SELECT index_version, state::text FROM trecho.index_versions ORDER BY 1").fetchall()
    return {row["index_version"]: row["state"] for row in rows}


def placed(conn: Connection, version: int) -> list[str]:
    """Contents of the placed chunks of a version, by document and position."""
    rows = conn.execute(
        "SELECT c.content FROM trecho.placements AS p JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key"
        " WHERE p.index_version = %s ORDER BY p.document_id, p.ordinal",
        (version,),
    ).fetchall()
    return [row["content"] for row in rows]


@pytest.fixture
def index(shared_db: Connection) -> Connection:
    """Five documents in version 1, all with vectors."""
    for number in range(5):
        put(shared_db, f"# Documento {number}\n\nUm texto sobre o prazo {number}.\n", f"doc{number}.md")
    embed(shared_db, 1)
    return shared_db


def test_drift__is_empty_for_the_wanted_recipe_and_names_each_difference(index: Connection) -> None:
    query = "SELECT key, active, wanted FROM trecho.drift()"
    assert index.execute(query).fetchall() == []
    index.execute(
        "SELECT trecho.configure(%s)",
        (Jsonb({"model_version": "2", "chunk_settings": {"section_max_chars": 900}}),),
    )
    assert index.execute(query).fetchall() == [
        {"key": "chunk_settings.section_max_chars", "active": 1500, "wanted": 900},
        {"key": "model_version", "active": "1", "wanted": "2"},
    ]


@pytest.mark.parametrize(
    "column",
    [
        "chunker_version",
        "chunk_settings",
        "text_search_config",
        "provider",
        "model_id",
        "model_version",
        "dim",
        "query_prefix",
        "passage_prefix",
    ],
)
def test_drift__an_unknown_part_of_the_recipe_is_drift(index: Connection, column: str) -> None:
    index.execute(f"UPDATE trecho.index_versions SET {column} = NULL")
    keys = {
        row["key"].partition(".")[0] for row in index.execute("SELECT key FROM trecho.drift()").fetchall()
    }
    assert keys == {column}


def test_build__without_drift_there_is_nothing_to_build(index: Connection) -> None:
    assert value(index, "SELECT trecho.begin_version_build()") is None
    assert states(index) == {1: "active"}


def test_build__fills_a_version_beside_and_the_flip_turns_searches_to_it(index: Connection) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    new = value(index, "SELECT trecho.begin_version_build()")
    assert value(index, "SELECT trecho.begin_version_build()") == new  # goes on with it
    assert states(index) == {1: "active", new: "building"}
    refused(index, "55000", "SELECT trecho.activate_version(%s)", new)
    backfill(index, new)
    assert placed(index, new) == placed(index, 1)
    assert counts(index, new)["pending"] == 5
    refused(index, "55000", "SELECT trecho.activate_version(%s)", new)
    assert value(index, "SELECT index_version FROM trecho.query_recipe()") == 1
    embed(index, new)
    assert value(index, "SELECT trecho.activate_version(%s)", new) is True
    assert value(index, "SELECT trecho.activate_version(%s)", new) is False
    assert states(index) == {1: "retired", new: "active"}
    assert value(index, "SELECT index_version FROM trecho.query_recipe()") == new
    assert index.execute("SELECT * FROM trecho.drift()").fetchall() == []
    assert value(index, "SELECT trecho.begin_version_build()") is None


def test_build__with_other_chunk_settings_pays_only_for_texts_that_changed(index: Connection) -> None:
    put(
        index,
        "# Longo\n\n" + "\n\n".join(f"Parágrafo {n} " + "muito comprido " * 20 for n in range(8)),
        "longo.md",
    )
    embed(index, 1)
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"chunk_settings": {"section_max_chars": 700}}),))
    new = value(index, "SELECT trecho.begin_version_build()")
    backfill(index, new)
    claimed = claim(index, "w", index_version=new)
    assert claimed
    assert all("Parágrafo" in text for text in claimed.values())
    assert counts(index, new)["staged"] == 5


def test_activate__what_was_written_while_the_last_round_ran_may_follow(index: Connection) -> None:
    conn = index
    conn.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    new = value(conn, "SELECT trecho.begin_version_build()")
    backfill(conn, new)
    query = "SELECT trecho.activate_version(%s, written_since => %s)"
    refused(conn, "55000", query, new, None)
    # One transaction, one created_at: all five were written at once.
    since = value(conn, "SELECT max(created_at) FROM trecho.chunks WHERE index_version = %s", new)
    later = value(conn, "SELECT %s::timestamptz + interval '1 microsecond'", since)
    refused(conn, "55000", query, new, later)
    assert value(conn, query, new, since) is True
    assert states(conn) == {1: "retired", new: "active"}


def test_has_pending__looks_at_what_was_written_before(index: Connection) -> None:
    put(index, "# Documento 9\n\nNovo.\n", "doc9.md")
    query = "SELECT trecho.has_pending_embeddings(1, %s)"
    written = value(index, "SELECT max(created_at) FROM trecho.chunks")
    assert value(index, query, None) is True
    assert value(index, query, written) is False
    texts = claim(index, "w")
    assert value(index, query, None) is True  # a worker has it
    store(index, "w", texts)
    assert value(index, query, None) is False
    refused(index, "TR001", "SELECT trecho.has_pending_embeddings(99)")


def test_activate__waits_for_a_writer_that_knows_nothing_of_the_version(dsn: str) -> None:
    """It read the set of versions before, and writes after: what it wrote must be in the version when it is read."""
    with (
        psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn,
        psycopg.connect(dsn, row_factory=dict_row) as writer,
    ):
        put(conn, "Um texto.", "a.md")
        put(writer, "Um texto de antes.", "b.md")  # not committed
        conn.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
        new = value(conn, "SELECT trecho.begin_version_build()")
        backfill(conn, new)
        embed(conn, new)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute("SELECT trecho.activate_version(%s)", (new,))
        writer.commit()
        refused(conn, "55000", "SELECT trecho.activate_version(%s)", new)  # one document is missing
        backfill(conn, new)
        embed(conn, new)
        assert value(conn, "SELECT trecho.activate_version(%s)", new) is True
        assert sorted(placed(conn, new)) == ["Um texto de antes.", "Um texto."]


def test_activate__waits_for_a_pass_that_began_before_the_version(dsn: str) -> None:
    with (
        psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn,
        psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as syncing,
    ):
        put(conn, "Um texto.", "a.md")
        pass_id = value(
            syncing, "SELECT trecho.begin_pass('default', 'main', 'd', ARRAY['docs']::trecho.chunk_scope[])"
        )
        conn.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
        new = value(conn, "SELECT trecho.begin_version_build()")
        backfill(conn, new)
        embed(conn, new)
        refused(conn, "55006", "SELECT trecho.activate_version(%s)", new)
        syncing.execute("SELECT trecho.abandon_pass(%s)", (pass_id,))
        syncing.execute("SELECT trecho.release_pass()")
        assert value(conn, "SELECT trecho.activate_version(%s)", new) is True


def test_build__full_makes_a_version_of_the_same_recipe_that_reuses_nothing(index: Connection) -> None:
    new = value(index, 'SELECT trecho.begin_version_build("full" => true)')
    assert value(index, 'SELECT trecho.begin_version_build("full" => true)') == new
    backfill(index, new)
    assert len(claim(index, "w", index_version=new)) == 5


def test_build__changed_and_removed_documents_reach_both_versions(index: Connection) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    new = value(index, "SELECT trecho.begin_version_build()")
    value(index, "SELECT trecho.backfill_version(%s, 3)", new)
    put(index, "# Documento 0\n\nMudou.\n", "doc0.md")
    put(index, "# Documento 9\n\nNovo.\n", "doc9.md")
    index.execute("SELECT trecho.remove_document('docs', 'doc1.md')")
    index.execute("SELECT trecho.remove_document('docs', 'doc4.md')")
    backfill(index, new)
    assert placed(index, new) == placed(index, 1)
    assert len(placed(index, new)) == 4


def test_build__a_recipe_that_changes_again_gives_the_first_build_up(index: Connection) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    first = value(index, "SELECT trecho.begin_version_build()")
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "3"}),))
    second = value(index, "SELECT trecho.begin_version_build()")
    assert states(index) == {1: "active", first: "retired", second: "building"}
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "1"}),))
    assert value(index, "SELECT trecho.begin_version_build()") is None
    assert value(index, "SELECT trecho.drop_expired_version()") in (first, second)
    assert value(index, "SELECT trecho.drop_expired_version()") in (first, second)
    assert value(index, "SELECT trecho.drop_expired_version()") is None
    assert states(index) == {1: "active"}


def test_pause__stops_filling_and_resume_goes_on(index: Connection) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    new = value(index, "SELECT trecho.begin_version_build()")
    value(index, "SELECT trecho.backfill_version(%s, 3)", new)
    index.execute("SELECT trecho.pause_version(%s)", (new,))
    refused(index, "55000", "SELECT trecho.backfill_version(%s)", new)
    assert claim(index, "w", index_version=new) == {}
    put(index, "# Documento 9\n\nNovo.\n", "doc9.md")
    index.execute("SELECT trecho.pause_version(%s, false)", (new,))
    backfill(index, new)
    assert sorted(placed(index, new)) == sorted(placed(index, 1))
    refused(index, "55000", "SELECT trecho.pause_version(1)")
    refused(index, "TR001", "SELECT trecho.pause_version(99)")


def test_going_back__a_retired_version_is_brought_up_to_date_first(index: Connection) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    new = value(index, "SELECT trecho.begin_version_build()")
    backfill(index, new)
    embed(index, new)
    value(index, "SELECT trecho.activate_version(%s)", new)
    put(index, "# Documento 9\n\nNovo.\n", "doc9.md")
    refused(index, "55000", "SELECT trecho.activate_version(1)")
    index.execute("SELECT trecho.reopen_version(1)")
    refused(index, "55000", "SELECT trecho.activate_version(1)")
    backfill(index, 1)
    embed(index, 1)
    assert value(index, "SELECT trecho.activate_version(1)") is True
    assert sorted(placed(index, 1)) == sorted(placed(index, new))
    assert states(index) == {1: "active", new: "retired"}


def test_drop__leaves_nothing_and_a_number_is_never_used_again(index: Connection) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    new = value(index, "SELECT trecho.begin_version_build()")
    backfill(index, new)
    store(index, "w", claim(index, "w", 2, index_version=new), version=new)
    claim(index, "w", 1, index_version=new)
    assert value(index, "SELECT trecho.drop_version(%s)", new) is True
    assert value(index, "SELECT trecho.drop_version(%s)", new) is False
    for table in (
        "chunks",
        "placements",
        "staged_embeddings",
        "embedding_attempts",
        "indexed_documents",
        "index_versions",
    ):
        assert value(index, f"SELECT count(*) FROM trecho.{table} WHERE index_version = %s", new) == 0
    assert (
        value(
            index,
            "SELECT count(*) FROM pg_class WHERE relname IN (%s, %s)",
            f"chunks_{new}",
            f"placements_{new}",
        )
        == 0
    )
    assert value(index, "SELECT trecho.begin_version_build()") == new + 1
    refused(index, "55006", "SELECT trecho.drop_version(1)")


def test_expired__a_version_is_dropped_when_its_grace_is_over(index: Connection) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    new = value(index, "SELECT trecho.begin_version_build()")
    backfill(index, new)
    embed(index, new)
    value(index, "SELECT trecho.activate_version(%s)", new)
    assert value(index, "SELECT trecho.drop_expired_version()") is None
    index.execute(
        "UPDATE trecho.index_versions SET retired_at = now() - interval '8 days' WHERE index_version = 1"
    )
    assert value(index, "SELECT trecho.drop_expired_version()") == 1
    assert states(index) == {new: "active"}


@pytest.mark.parametrize("function", ["activate_version", "reopen_version"])
def test_an_unknown_version_raises_tr001(shared_db: Connection, function: str) -> None:
    refused(shared_db, "TR001", f"SELECT trecho.{function}(99)")


def test_a_long_reader_makes_a_drop_give_up_soon_and_waits_for_nothing(dsn: str) -> None:
    with (
        psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn,
        psycopg.connect(dsn, row_factory=dict_row) as reader,
    ):
        put(conn, "Um texto.", "a.md")
        conn.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
        new = value(conn, "SELECT trecho.begin_version_build()")
        reader.execute("SELECT count(*) FROM trecho.chunks")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute("SELECT trecho.drop_version(%s)", (new,))
        assert states(conn)[new] == "building"
        reader.rollback()
        assert value(conn, "SELECT trecho.drop_version(%s)", new) is True


def test_a_drop_ends_an_autovacuum_that_is_in_its_way(dsn: str) -> None:
    """A session that holds the lock of VACUUM stands for autovacuum, which would end itself when waited for."""
    with (
        psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn,
        psycopg.connect(dsn, row_factory=dict_row) as vacuum,
    ):
        put(conn, "Um texto.", "a.md")
        conn.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
        new = value(conn, "SELECT trecho.begin_version_build()")
        vacuum.execute(f"LOCK TABLE trecho.chunks_{new} IN SHARE UPDATE EXCLUSIVE MODE")
        timer = threading.Timer(1.2, vacuum.rollback)  # as autovacuum does, asked after deadlock_timeout
        timer.start()
        try:
            assert value(conn, "SELECT trecho.drop_version(%s)", new) is True
        finally:
            timer.join()


def test_searches_never_fail_and_see_one_version_while_it_changes(dsn: str) -> None:
    """Words only, so that no vector has to follow; the flip and the drop are what is tried."""
    stop = threading.Event()
    errors: list[BaseException] = []
    answers: set[tuple[str, ...]] = set()

    def search() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
                while not stop.is_set():
                    rows = conn.execute(
                        "SELECT content FROM trecho.search('prazo', k => 10, mode => 'lexical')"
                    ).fetchall()
                    answers.add(tuple(sorted(row["content"] for row in rows)))
        except BaseException as error:
            errors.append(error)

    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        for number in range(5):
            put(conn, f"Um texto sobre o prazo {number}.", f"doc{number}.md")
        embed(conn, 1)
        threads = [threading.Thread(target=search) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for round_number in range(2, 6):
                conn.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": str(round_number)}),))
                new = value(conn, "SELECT trecho.begin_version_build()")
                backfill(conn, new)
                embed(conn, new)
                while True:
                    try:
                        assert value(conn, "SELECT trecho.activate_version(%s)", new) is True
                        break
                    except psycopg.errors.LockNotAvailable:
                        continue
                conn.execute(
                    "UPDATE trecho.index_versions SET retired_at = '-infinity' WHERE state = 'retired'"
                )
                while value(conn, "SELECT count(*) FROM trecho.index_versions") > 1:
                    value(conn, "SELECT trecho.drop_expired_version()")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not errors
    assert answers == {tuple(f"Um texto sobre o prazo {n}." for n in range(5))}


@pytest.mark.parametrize(
    ("isolation", "arguments", "error"),
    [
        ("READ COMMITTED", {}, None),
        ("READ COMMITTED", {"index_version": 1}, "TR001"),
        ("READ COMMITTED", {"index_version": 1, "embedding": "vector"}, "TR006"),
        ("REPEATABLE READ", {}, "40001"),
    ],
)
def test_a_search_whose_version_is_dropped_after_it_began__reads_the_one_that_stands(
    dsn: str, isolation: str, arguments: dict[str, object], error: str | None
) -> None:
    """Its snapshot is held back at the first argument, until the version that it shows is gone."""
    if "embedding" in arguments:
        arguments = arguments | {"embedding": vector("prazo")}
    names = "".join(f", {name} => %({name})s" for name in arguments).replace("ng)s", "ng)s::vector")
    statement = f"SELECT content FROM trecho.search((SELECT 'prazo' FROM pg_advisory_lock(7) AS l){names})"
    found: list[object] = []

    def search() -> None:
        with psycopg.connect(dsn, row_factory=dict_row) as late:
            late.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
            try:
                found.extend(row["content"] for row in late.execute(statement.encode(), arguments))
            except psycopg.Error as raised:
                found.append(raised.sqlstate)

    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        put(conn, "Um texto sobre o prazo.", "doc.md")
        embed(conn, 1)
        conn.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=search)
        thread.start()
        try:
            while not value(
                conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            ):
                pass
            conn.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
            assert value(conn, "SELECT trecho.begin_version_build()") == 2
            backfill(conn, 2)
            embed(conn, 2)
            assert value(conn, "SELECT trecho.activate_version(2)") is True
            assert value(conn, "SELECT trecho.drop_version(1)") is True
        finally:
            conn.execute("SELECT pg_advisory_unlock(7)")
            thread.join()
    assert found == [error or "Um texto sobre o prazo."]


def test_hybrid_answers_come_from_the_version_the_vector_was_made_for_while_it_changes(dsn: str) -> None:
    """Each version cuts another way, so that an answer shows where it came from."""
    stop = threading.Event()
    errors: list[BaseException] = []
    answers: set[tuple[int, tuple[str, ...]]] = set()
    asked = vector("qual é o prazo?")

    def search() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
                while not stop.is_set():
                    version = value(conn, "SELECT index_version FROM trecho.query_recipe()")
                    rows = conn.execute(
                        "SELECT content FROM trecho.search('prazo', %s::vector, %s, k => 50, per_document => 50)",
                        (asked, version),
                    ).fetchall()
                    answers.add((version, tuple(sorted(row["content"] for row in rows))))
        except BaseException as error:
            errors.append(error)

    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        for number in range(3):
            text = "\n\n".join(f"O prazo {number} do item {n}. " + "Outras palavras. " * 12 for n in range(8))
            put(conn, f"# Documento {number}\n\n{text}\n", f"doc{number}.md")
        embed(conn, 1)
        contents = {1: placed(conn, 1)}
        threads = [threading.Thread(target=search) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for new, size in enumerate((900, 600, 300), 2):
                settings = {"chunk_settings": {"section_max_chars": size}}
                conn.execute("SELECT trecho.configure(%s)", (Jsonb(settings),))
                assert value(conn, "SELECT trecho.begin_version_build()") == new
                backfill(conn, new)
                embed(conn, new)
                contents[new] = placed(conn, new)
                while True:
                    try:
                        assert value(conn, "SELECT trecho.activate_version(%s)", new) is True
                        break
                    except psycopg.errors.LockNotAvailable:
                        continue
                # The one before the last: nobody has a vector for it any more.
                conn.execute(
                    "UPDATE trecho.index_versions SET retired_at = '-infinity' WHERE index_version < %s",
                    (new - 1,),
                )
                while value(conn, "SELECT count(*) FROM trecho.index_versions") > 2:
                    value(conn, "SELECT trecho.drop_expired_version()")
            # On a busy machine nobody may have searched since.
            while not errors and not any(version == 4 for version, _ in answers.copy()):
                time.sleep(0.01)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not errors
    assert len({tuple(sorted(found)) for found in contents.values()}) == 4
    assert {version for version, _ in answers} >= {1, 4}
    for version, answer in answers:
        assert answer == tuple(sorted(contents[version]))


def test_grants__an_operator_goes_back_and_drops_a_writer_builds(
    dsn: str, make_role: Callable[..., str]
) -> None:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as admin:
        put(admin, "Um texto.", "a.md")
        admin.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    with psycopg.connect(
        dsn, user=make_role("trecho_writer"), autocommit=True, row_factory=dict_row
    ) as writer:
        new = value(writer, "SELECT trecho.begin_version_build()")
        backfill(writer, new)
        embed(writer, new)
        assert value(writer, "SELECT trecho.activate_version(%s)", new) is True
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            writer.execute("SELECT trecho.drop_version(1)")
    with psycopg.connect(
        dsn, user=make_role("trecho_operator"), autocommit=True, row_factory=dict_row
    ) as operator:
        assert value(operator, "SELECT trecho.drop_version(1)") is True
