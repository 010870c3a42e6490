"""The queue of texts that need a vector: who gets which text, which vectors are taken, what comes of failures."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from embedding_rows import Connection, add_texts, add_version, claim, counts, store, value, vector
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

Connect = Callable[..., Connection]


@pytest.fixture
def connect(dsn: str) -> Any:
    """Function that opens a connection in autocommit mode; all are closed at the end."""
    opened: list[Connection] = []

    def open_one(**options: Any) -> Connection:
        opened.append(psycopg.connect(dsn, autocommit=True, row_factory=dict_row, **options))
        return opened[-1]

    yield open_one
    for conn in opened:
        conn.close()


def refused(conn: Connection, sqlstate: str, query: str, *parameters: Any) -> psycopg.errors.Diagnostic:
    """The statement fails with this code; what it said."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute(query, parameters)
    assert caught.value.sqlstate == sqlstate
    return caught.value.diag


# ---------------------------------------------------------------------------------------------------- the text


def test_embedding_text__is_prefix_context_blank_line_content(shared_db: Connection) -> None:
    add_texts(shared_db, [])
    query = "SELECT trecho.embedding_text(1, %s, %s)"
    assert value(shared_db, query, "Manual > Prazos", "Dez dias.") == "passage: Manual > Prazos\n\nDez dias."
    assert value(shared_db, query, "", "Dez dias.") == "passage: Dez dias."
    assert value(shared_db, query, None, "Dez dias.") == "passage: Dez dias."
    assert refused(shared_db, "TR001", "SELECT trecho.embedding_text(99, '', 'x')").message_hint


def test_text_hash__is_the_sha256_of_the_embedded_text_and_what_put_document_writes(
    shared_db: Connection,
) -> None:
    assert value(shared_db, "SELECT trecho._ensure_version()") == 1
    shared_db.execute("SELECT trecho.put_document('docs', E'# Título\n\nOração ção 🙂', 'a.md')")
    rows = shared_db.execute(
        "SELECT c.text_hash, trecho.text_hash(1, c.context, c.content) AS told, trecho.embedding_text(1, c.context, c.content) AS text"
        " FROM trecho.chunks AS c"
    ).fetchall()
    assert rows
    for row in rows:
        assert row["text_hash"] == row["told"] == hashlib.sha256(row["text"].encode()).digest()


# ---------------------------------------------------------------------------------------------------- claims


def test_claim__gives_each_text_once_however_many_chunks_have_it(shared_db: Connection) -> None:
    conn = shared_db
    add_texts(conn, ["um", "dois"], source="a.md")
    add_texts(conn, ["um", "três"], source="b.md")
    assert sorted(claim(conn, "w").values()) == ["passage: dois", "passage: três", "passage: um"]
    assert claim(conn, "w") == {}
    assert counts(conn) == {"pending": 3, "leased": 3}


def test_claim__two_workers_at_once_share_the_texts_and_do_not_wait(connect: Connect) -> None:
    first, second = connect(), connect(options="-c lock_timeout=100ms")
    texts = add_texts(first, [f"texto {n}" for n in range(40)])
    with first.transaction():
        mine = claim(first, "first", 25)
        others = claim(second, "second", 40)
        assert store(second, "second", others) == len(others) == 15
    assert len(mine) == 25
    assert set(mine) | set(others) == set(texts.values())


def test_claim__keeps_to_the_byte_budget_but_never_gives_nothing(shared_db: Connection) -> None:
    conn = shared_db
    add_texts(conn, ["a" * 1000, "b" * 1000, "c" * 1000, "d" * 1000])
    assert len(claim(conn, "w", max_bytes=2500)) == 2
    assert len(claim(conn, "w", max_bytes=10)) == 1
    assert len(claim(conn, "w", max_bytes=10_000)) == 1


def test_claim__the_active_version_comes_before_the_one_being_built(shared_db: Connection) -> None:
    conn = shared_db
    add_texts(conn, ["velho"])
    other = add_version(conn, model_version="2", passage_prefix="p2: ")
    add_texts(conn, ["novo"], version=other)
    assert list(claim(conn, "w").values()) == ["passage: velho"]
    assert list(claim(conn, "w").values()) == ["p2: novo"]
    assert claim(conn, "w", index_version=1) == {}


def test_claim__a_retired_version_wants_nothing(shared_db: Connection) -> None:
    conn = shared_db
    other = add_version(conn, "retired", model_version="0")
    add_texts(conn, ["passado"], version=other)
    assert claim(conn, "w", index_version=other) == {}
    assert claim(conn, "w") == {}


def test_claim__the_texts_of_a_worker_that_died_are_free_at_once(connect: Connect) -> None:
    dead, alive = connect(), connect()
    texts = add_texts(alive, ["um", "dois"])
    assert len(claim(dead, "dead", lease="1 day")) == 2
    assert claim(alive, "alive") == {}
    pid = dead.info.backend_pid
    dead.close()
    while value(alive, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid):
        time.sleep(0.01)
    assert claim(alive, "alive") == {}  # freed, and waiting like any text that failed
    alive.execute("UPDATE trecho.embedding_attempts SET last_attempt_at = now() - interval '1 minute'")
    assert set(claim(alive, "alive")) == set(texts.values())
    row = alive.execute(
        "SELECT DISTINCT attempt_count, last_error, leased_by FROM trecho.embedding_attempts"
    ).fetchall()
    assert row == [
        {"attempt_count": 1, "last_error": "worker dead ended without reporting back", "leased_by": "alive"}
    ]


def test_claim__a_lease_that_ran_out_is_taken_over(connect: Connect) -> None:
    slow, other = connect(), connect()
    add_texts(slow, ["um"])
    mine = claim(slow, "slow", lease="1 millisecond")
    time.sleep(0.01)
    assert claim(other, "other") == mine
    assert store(slow, "slow", mine) == 0  # late: the text is another worker's now
    assert store(other, "other", mine) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        "''",
        "NULL",
        "'w', max_texts => 0",
        "'w', max_texts => 10001",
        "'w', max_bytes => 0",
        "'w', lease => '0'",
        "'w', lease => '2 days'",
    ],
)
def test_claim__a_bad_argument_raises_22023_with_a_hint(shared_db: Connection, arguments: str) -> None:
    assert refused(shared_db, "22023", f"SELECT trecho.claim_embeddings({arguments})").message_hint


def test_claim__unknown_version_raises_tr001(shared_db: Connection) -> None:
    assert refused(
        shared_db, "TR001", "SELECT trecho.claim_embeddings('w', index_version => 99)"
    ).message_hint


def test_claim__a_vector_known_from_an_equal_text_is_staged_and_not_paid_again(shared_db: Connection) -> None:
    conn = shared_db
    add_texts(conn, ["igual"], source="a.md")
    store(conn, "w", claim(conn, "w"))
    assert value(conn, "SELECT trecho.apply_embeddings(1)") == 0
    # A put that committed between the vector's arrival and now.
    add_texts(conn, ["igual"], source="b.md")
    assert counts(conn) == {"pending": 1}
    assert claim(conn, "w") == {}
    assert counts(conn) == {"staged": 1}
    value(conn, "SELECT trecho.apply_embeddings(1)")
    assert value(conn, "SELECT count(DISTINCT embedding::text) FROM trecho.chunks") == 1
    assert value(conn, "SELECT count(*) FROM trecho.chunks WHERE embedding IS NULL") == 0


@pytest.mark.parametrize(
    ("recipe", "fresh", "reused"),
    [
        ({"chunker_version": 2}, False, True),
        ({"chunk_settings": {"section_max_chars": 9}}, False, True),
        ({"chunker_version": 2}, True, False),  # --full
        ({"model_version": "2"}, False, False),
        ({"model_version": None}, False, False),
        ({"model_id": "outro"}, False, False),
        ({"provider": "ollama"}, False, False),
        ({"dim": 768}, False, False),
    ],
)
def test_vectors_of_another_version_are_reused_only_under_the_same_model(
    shared_db: Connection, recipe: dict[str, Any], fresh: bool, reused: bool
) -> None:
    conn = shared_db
    texts = add_texts(conn, ["um", "dois"])
    store(conn, "w", claim(conn, "w"))
    value(conn, "SELECT trecho.apply_embeddings(1)")
    other = add_version(conn, **recipe)
    conn.execute(
        "UPDATE trecho.index_versions SET reuse_vectors = %s WHERE index_version = %s", (not fresh, other)
    )
    add_texts(conn, ["um", "dois"], version=other)
    assert bool(claim(conn, "w", index_version=other)) is not reused
    if reused:
        assert counts(conn, other) == {"staged": 2}
        value(conn, "SELECT trecho.apply_embeddings(%s)", other)
    else:
        assert value(conn, "SELECT trecho._adopt_embeddings(%s, %s)", other, list(texts.values())) == 0


def test_adopt__copies_vectors_onto_the_chunks_at_once(shared_db: Connection) -> None:
    conn = shared_db
    texts = add_texts(conn, ["um"], source="a.md")
    store(conn, "w", claim(conn, "w"))
    value(conn, "SELECT trecho.apply_embeddings(1)")
    add_texts(conn, ["um"], source="b.md")
    assert value(conn, "SELECT trecho._adopt_embeddings(1, %s)", list(texts.values())) == 1
    assert counts(conn) == {}


def test_many_workers_at_once_pay_each_text_once(dsn: str, connect: Connect) -> None:
    conn = connect()
    contents = [f"texto {n % 300}" for n in range(400)]
    add_texts(conn, contents[:300], source="a.md")
    add_texts(conn, contents[300:], source="b.md")
    paid: Counter[str] = Counter()
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as mine:
                while True:
                    texts = claim(mine, name, 7)
                    if not texts:
                        if not counts(mine).get("pending"):
                            return
                        continue
                    with lock:
                        paid.update(texts.values())
                    assert store(mine, name, texts) == len(texts)
                    value(mine, "SELECT trecho.apply_embeddings(1, 5)")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert paid == Counter({f"passage: {content}": 1 for content in set(contents)})
    while value(conn, "SELECT trecho.apply_embeddings(1)"):
        pass
    rows = conn.execute("SELECT content, embedding::text AS embedding FROM trecho.chunks").fetchall()
    assert len(rows) == 400
    wanted = {
        row["content"]: value(conn, "SELECT %s::vector::text", vector("passage: " + row["content"]))
        for row in rows
    }
    assert all(row["embedding"] == wanted[row["content"]] for row in rows)


# ---------------------------------------------------------------------------------------------------- vectors


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        ("ARRAY[]::vector[]", "1 text hashes and 0 embeddings"),
        ("ARRAY['[1,2,3]']::vector[]", "embedding 1 of 1 has 3 numbers instead of 768"),
        ("ARRAY[NULL]::vector[]", "embedding 1 of 1 is NULL"),
        ("ARRAY[array_fill(0::real, ARRAY[768])::vector]", "embedding 1 of 1 is zero"),
        (
            "ARRAY[array_fill(1::real, ARRAY[768])::vector]",
            "embedding 1 of 1 has numbers after the 384 of its model",
        ),
    ],
)
def test_store__refuses_a_vector_that_cannot_be_right(
    shared_db: Connection, embeddings: str, message: str
) -> None:
    (text_hash,) = add_texts(shared_db, ["um"]).values()
    diag = refused(
        shared_db, "22023", f"SELECT trecho.store_embeddings('w', 1, %s, {embeddings})", [text_hash]
    )
    assert diag.message_primary == message
    assert diag.message_hint


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_store__nan_and_infinity_cannot_be_written_as_a_vector(shared_db: Connection, number: str) -> None:
    (text_hash,) = add_texts(shared_db, ["um"]).values()
    refused(
        shared_db,
        "22000",
        "SELECT trecho.store_embeddings('w', 1, %s, ARRAY[array_fill(%s::real, ARRAY[768])::vector])",
        [text_hash],
        number,
    )


def test_store__takes_nothing_that_no_chunk_wants(shared_db: Connection) -> None:
    conn = shared_db
    add_texts(conn, ["um", "dois"])
    texts = claim(conn, "w")
    gone = next(iter(texts))
    conn.execute("DELETE FROM trecho.chunks WHERE text_hash = %s", (gone,))
    assert store(conn, "w", texts) == 1
    assert value(conn, "SELECT count(*) FROM trecho.staged_embeddings WHERE text_hash = %s", gone) == 0
    assert store(conn, "w", texts) == 0  # a second time
    assert value(conn, "SELECT count(*) FROM trecho.embedding_attempts") == 0


def test_store_and_apply__a_version_that_is_gone_takes_nothing_and_fails_nothing(
    shared_db: Connection,
) -> None:
    conn = shared_db
    other = add_version(conn, model_version="2")
    add_texts(conn, ["um"], version=other)
    texts = claim(conn, "w", index_version=other)
    conn.execute("DELETE FROM trecho.index_versions WHERE index_version = %s", (other,))
    conn.execute(f"DROP TABLE trecho.chunks_{other}, trecho.placements_{other}")
    assert store(conn, "w", texts, version=other) == 0
    assert value(conn, "SELECT trecho.apply_embeddings(%s)", other) == 0
    assert value(conn, "SELECT count(*) FROM trecho.embedding_attempts") == 0


def test_apply__moves_a_bounded_number_and_tells_what_is_left(connect: Connect) -> None:
    conn, other = connect(), connect(options="-c lock_timeout=100ms")
    add_texts(conn, [f"texto {n}" for n in range(10)])
    store(conn, "w", claim(conn, "w"))
    assert value(conn, "SELECT trecho.apply_embeddings(1, 4)") == 6
    with conn.transaction():
        assert value(conn, "SELECT trecho.apply_embeddings(1, 4)") == 2
        assert (
            value(other, "SELECT trecho.apply_embeddings(1, 100)") == 4
        )  # the rest at once, without waiting
    assert value(conn, "SELECT trecho.apply_embeddings(1)") == 0
    assert value(conn, "SELECT count(*) FROM trecho.chunks WHERE embedding IS NOT NULL") == 10
    assert refused(conn, "22023", "SELECT trecho.apply_embeddings(1, 0)").message_hint


def test_a_staged_vector_survives_and_is_not_paid_again(connect: Connect) -> None:
    conn = connect()
    add_texts(conn, ["um"])
    store(conn, "w", claim(conn, "w"))
    conn.close()
    other = connect()
    assert claim(other, "x") == {}
    assert counts(other) == {"staged": 1}
    assert value(other, "SELECT trecho.apply_embeddings(1)") == 0
    assert counts(other) == {}


# ---------------------------------------------------------------------------------------------------- failures


def test_fail__five_times_gives_a_text_up_until_it_is_retried(shared_db: Connection) -> None:
    conn = shared_db
    (text_hash,) = add_texts(conn, ["ruim"]).values()
    for attempt in range(1, 6):
        assert set(claim(conn, "w")) == {text_hash}
        assert (
            value(conn, "SELECT trecho.fail_embedding('w', 1, %s, %s)", text_hash, f"erro\n{attempt}")
            == attempt
        )
        assert claim(conn, "w") == {}  # pauses first
        conn.execute("UPDATE trecho.embedding_attempts SET last_attempt_at = now() - interval '10 minutes'")
    assert claim(conn, "w") == {}
    assert counts(conn) == {"failed": 1}
    assert value(conn, "SELECT last_error FROM trecho.embedding_attempts") == "erro 5"
    assert value(conn, "SELECT trecho.retry_failed(1, '1 hour')") == 0
    assert value(conn, "SELECT trecho.retry_failed(1)") == 1
    assert store(conn, "w", claim(conn, "w")) == 1
    assert counts(conn) == {"staged": 1}
    assert value(conn, "SELECT count(*) FROM trecho.embedding_attempts") == 0


def test_fail__the_pause_doubles_and_the_first_retry_is_told(shared_db: Connection) -> None:
    conn = shared_db
    (text_hash,) = add_texts(conn, ["ruim"]).values()
    claim(conn, "w")
    conn.execute("SELECT trecho.fail_embedding('w', 1, %s, 'x')", (text_hash,))
    assert counts(conn) == {"pending": 1, "waiting": 1}
    assert value(
        conn,
        "SELECT p.retry_at = a.last_attempt_at + interval '1 second' FROM trecho.pending_embeddings(1) AS p, trecho.embedding_attempts AS a",
    )
    pauses = [
        value(conn, "SELECT extract(epoch FROM trecho._retry_delay(%s))::integer", n)
        for n in (0, 1, 2, 4, 9, 10, 60)
    ]
    assert pauses == [0, 1, 2, 8, 256, 300, 300]


def test_fail__a_text_that_was_refused_is_given_up_at_once(shared_db: Connection) -> None:
    conn = shared_db
    (text_hash,) = add_texts(conn, ["ruim"]).values()
    claim(conn, "w")
    assert (
        value(conn, "SELECT trecho.fail_embedding('w', 1, %s, 'longo demais', permanent => true)", text_hash)
        == 5
    )
    assert counts(conn) == {"failed": 1}


def test_fail__only_the_holder_of_the_lease_is_heard(shared_db: Connection) -> None:
    conn = shared_db
    (text_hash,) = add_texts(conn, ["um"]).values()
    claim(conn, "w")
    assert value(conn, "SELECT trecho.fail_embedding('outro', 1, %s, 'x')", text_hash) is None
    assert counts(conn) == {"pending": 1, "leased": 1}


def test_release__gives_texts_back_as_they_were(shared_db: Connection) -> None:
    conn = shared_db
    texts = add_texts(conn, ["um", "dois", "três"])
    claim(conn, "w")
    assert value(conn, "SELECT trecho.release_embeddings('w', %s)", [texts["um"]]) == 1
    assert set(claim(conn, "x")) == {texts["um"]}
    assert value(conn, "SELECT trecho.release_embeddings('w')") == 2
    assert value(conn, "SELECT trecho.release_embeddings('w')") == 0
    assert value(conn, "SELECT sum(attempt_count) FROM trecho.embedding_attempts") == 0


def test_retry_failed__bad_arguments_are_refused(shared_db: Connection) -> None:
    assert refused(shared_db, "TR001", "SELECT trecho.retry_failed(99)").message_hint
    add_texts(shared_db, [])
    assert refused(shared_db, "22023", "SELECT trecho.retry_failed(1, '-1 second')").message_hint


# ---------------------------------------------------------------------------------------------------- quarantine


def test_release__finds_a_text_that_stands_nowhere_any_more(shared_db: Connection) -> None:
    conn = shared_db
    text = add_texts(conn, ["senha"])["senha"]
    assert value(conn, "SELECT trecho.quarantine_text(%s, 'Secret Keyword')", text) is True
    conn.execute("DELETE FROM trecho.chunks WHERE text_hash = %s", (text,))
    assert value(conn, "SELECT trecho.quarantine_text(%s, 'Secret Keyword')", text) is True
    assert value(conn, "SELECT count(*) FROM trecho.quarantined_texts") == 1
    assert value(conn, "SELECT trecho.release_text(%s)", text) == 0
    add_texts(conn, ["senha"])
    assert value(conn, "SELECT trecho.quarantine_text(%s, 'Secret Keyword')", text) is False


def test_quarantine__takes_the_vector_away_everywhere_until_released(shared_db: Connection) -> None:
    conn = shared_db
    texts = add_texts(conn, ["senha", "outro"])
    store(conn, "w", claim(conn, "w"))
    value(conn, "SELECT trecho.apply_embeddings(1)")
    other = add_version(conn, chunker_version=2)
    add_texts(conn, ["senha"], version=other)
    assert claim(conn, "w", index_version=other) == {}  # its vector is known, and staged

    assert value(conn, "SELECT trecho.quarantine_text(%s, 'Secret Keyword')", texts["senha"]) is True
    held = "SELECT index_version, embedding IS NULL AS bare FROM trecho.chunks WHERE quarantined ORDER BY 1"
    assert conn.execute(held).fetchall() == [
        {"index_version": 1, "bare": True},
        {"index_version": other, "bare": True},
    ]
    assert value(conn, "SELECT count(*) FROM trecho.staged_embeddings") == 0
    assert claim(conn, "w") == {}
    assert counts(conn) == {"quarantined": 1}
    listed = conn.execute(
        "SELECT reason, source, chunk_ids FROM trecho.list_quarantined('default')"
    ).fetchall()
    assert [(r["reason"], r["source"], len(r["chunk_ids"])) for r in listed] == [
        ("Secret Keyword", "a.md", 1)
    ] * 2

    assert value(conn, "SELECT trecho.release_text(%s)", texts["senha"]) == 2
    assert value(conn, "SELECT trecho.quarantine_text(%s, 'Secret Keyword')", texts["senha"]) is False
    assert set(claim(conn, "w", index_version=1)) == {texts["senha"]}
    assert conn.execute("SELECT * FROM trecho.list_quarantined()").fetchall() == []


def test_quarantine__a_chunk_written_meanwhile_is_held_at_the_next_claim(shared_db: Connection) -> None:
    conn = shared_db
    texts = add_texts(conn, ["senha"], source="a.md")
    value(conn, "SELECT trecho.quarantine_text(%s, 'x')", texts["senha"])
    add_texts(conn, ["senha"], source="b.md")
    assert claim(conn, "w") == {}
    assert value(conn, "SELECT count(*) FROM trecho.chunks WHERE quarantined") == 2


def test_quarantine__a_late_vector_is_not_taken(shared_db: Connection) -> None:
    conn = shared_db
    add_texts(conn, ["senha"])
    texts = claim(conn, "w")
    value(conn, "SELECT trecho.quarantine_text(%s, 'x')", next(iter(texts)))
    assert store(conn, "w", texts) == 0


def test_quarantine__holds_in_versions_with_another_prefix_before_they_send_it(shared_db: Connection) -> None:
    conn = shared_db
    other = add_version(conn, passage_prefix="doc: ")
    texts = add_texts(conn, ["senha", "outro"])
    later = add_texts(conn, ["senha", "outro"], version=other)
    assert texts["senha"] != later["senha"]
    value(conn, "SELECT trecho.quarantine_text(%s, 'x')", texts["senha"])
    assert set(claim(conn, "w", index_version=other)) == {later["outro"]}
    third = add_version(conn, passage_prefix="")  # made after
    add_texts(conn, ["senha"], version=third)
    assert claim(conn, "w", index_version=third) == {}
    listed = conn.execute("SELECT index_version FROM trecho.list_quarantined() ORDER BY 1").fetchall()
    assert [row["index_version"] for row in listed] == [1, other, third]
    # Released under any of its hashes, it is released in every version.
    assert value(conn, "SELECT trecho.release_text(%s)", later["senha"]) == 3
    assert value(conn, "SELECT trecho.quarantine_text(%s, 'x')", texts["senha"]) is False
    for version in (1, other, third):
        assert "senha" in {
            text.removeprefix("passage: ").removeprefix("doc: ")
            for text in claim(conn, "v", index_version=version).values()
        }


def test_quarantine__a_document_put_in_a_version_with_another_prefix_is_held_at_once(
    shared_db: Connection,
) -> None:
    conn = shared_db
    conn.execute("SELECT trecho.put_document('docs', 'O texto da senha.', 'a.md')")
    text_hash = value(conn, "SELECT text_hash FROM trecho.chunks")
    value(conn, "SELECT trecho.quarantine_text(%s, 'x')", text_hash)
    other = add_version(conn, passage_prefix="doc: ")
    conn.execute("SELECT trecho.put_document('docs', 'O texto da senha.', 'a.md')")
    rows = conn.execute("SELECT index_version, quarantined FROM trecho.chunks ORDER BY 1").fetchall()
    assert [(row["index_version"], row["quarantined"]) for row in rows] == [(1, True), (other, True)]
    assert value(conn, "SELECT count(*) FROM trecho.search('senha', mode => 'lexical')") == 0


def test_purge__forgets_what_was_held_of_the_source_alone(shared_db: Connection) -> None:
    conn = shared_db
    for path, content in (("a.md", "Um segredo."), ("b.md", "Outro segredo."), ("c.md", "Outro segredo.")):
        conn.execute("SELECT trecho.put_document('docs', %s, %s)", (content, path))
    for row in conn.execute("SELECT DISTINCT text_hash FROM trecho.chunks").fetchall():
        value(conn, "SELECT trecho.quarantine_text(%s, 'x')", row["text_hash"])
    held = "SELECT count(*) FROM trecho.quarantined_texts"
    before = value(conn, held)
    value(conn, "SELECT trecho.purge('docs', 'a.md')")
    assert value(conn, held) == before - 1
    value(conn, "SELECT trecho.purge('docs', 'b.md')")
    assert value(conn, "SELECT count(*) FROM trecho.list_quarantined()") == 1


def test_quarantine__bad_arguments_are_refused(shared_db: Connection) -> None:
    assert refused(shared_db, "22023", "SELECT trecho.quarantine_text('\\x00', 'x')").message_hint
    assert refused(shared_db, "P0002", "SELECT trecho.release_text(%s)", b"0" * 32).message_hint


# ---------------------------------------------------------------------------------------------------- the rest


def test_probe__the_first_vector_is_remembered_and_others_are_measured_against_it(
    shared_db: Connection,
) -> None:
    add_texts(shared_db, [])
    query = "SELECT trecho.check_embedding_probe(1, %s::vector)"
    assert value(shared_db, query, vector("sonda")) == 0
    assert value(shared_db, query, vector("sonda")) == pytest.approx(0, abs=1e-6)
    assert value(shared_db, query, vector("outro modelo")) > 0.5
    assert value(shared_db, query, vector("sonda")) == pytest.approx(0, abs=1e-6)
    assert refused(shared_db, "22023", query, vector("sonda", 768)).message_hint
    assert refused(
        shared_db, "TR001", "SELECT trecho.check_embedding_probe(99, %s::vector)", vector("sonda")
    ).message_hint


def test_put_document__wakes_the_workers(connect: Connect) -> None:
    listener, writer = connect(), connect()
    listener.execute("LISTEN trecho_embed")
    writer.execute("SELECT trecho.put_document('docs', 'Um texto novo.', 'a.md')")
    heard = list(listener.notifies(timeout=10, stop_after=1))
    assert [n.channel for n in heard] == ["trecho_embed"]


def test_grants__a_writer_embeds_a_reader_does_not_and_only_an_operator_releases(
    dsn: str, make_role: Callable[..., str], connect: Connect
) -> None:
    admin = connect()
    add_texts(admin, ["um"])
    writer = connect(user=make_role("trecho_writer"))
    texts = claim(writer, "w")
    assert store(writer, "w", texts) == 1
    assert value(writer, "SELECT trecho.apply_embeddings(1)") == 0
    assert counts(writer) == {}
    value(writer, "SELECT trecho.retry_failed(1)")
    value(writer, "SELECT trecho.release_embeddings('w')")
    assert value(writer, "SELECT trecho.quarantine_text(%s, 'x')", next(iter(texts))) is True
    refused(writer, "42501", "SELECT trecho.release_text(%s)", next(iter(texts)))
    refused(writer, "42501", "SELECT * FROM trecho.chunks")
    reader = connect(user=make_role("trecho_reader"))
    refused(reader, "42501", "SELECT trecho.claim_embeddings('w')")
    operator = connect(user=make_role("trecho_operator"))
    assert len(operator.execute("SELECT * FROM trecho.list_quarantined()").fetchall()) == 1
    assert value(operator, "SELECT trecho.release_text(%s)", next(iter(texts))) == 1


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["claim", "store", "fail", "release", "quarantine", "free", "apply", "add", "delete"]
        ),
        st.integers(0, 9),
        st.integers(0, 2),
    ),
    max_size=25,
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(OPERATIONS)
def test_whatever_workers_do_a_text_is_in_one_state_and_a_vector_is_its_own(  # noqa: PLR0912
    shared_db: Connection, operations: list[tuple[str, int, int]]
) -> None:
    conn = shared_db
    contents = [f"texto {n}" for n in range(6)]
    with conn.transaction(force_rollback=True):
        hashes = add_texts(conn, contents)
        held: dict[str, dict[bytes, str]] = {f"w{n}": {} for n in range(3)}
        for step, (operation, number, who) in enumerate(operations):
            worker = f"w{who}"
            content = contents[number % 6]
            if operation == "claim":
                claimed = claim(conn, worker, 1 + number)
                assert not any(set(claimed) & set(texts) for texts in held.values())
                held[worker] |= claimed
            elif operation == "store":
                stored = store(conn, worker, held[worker])
                assert stored <= len(held[worker])
                held[worker] = {}
            elif operation == "fail" and held[worker]:
                text_hash, _ = held[worker].popitem()
                conn.execute(
                    "SELECT trecho.fail_embedding(%s, 1, %s, 'x', %s)", (worker, text_hash, number % 2 == 0)
                )
            elif operation == "release":
                conn.execute("SELECT trecho.release_embeddings(%s)", (worker,))
                held[worker] = {}
            elif operation == "quarantine":
                conn.execute("SELECT trecho.quarantine_text(%s, 'x')", (hashes[content],))
                for texts in held.values():
                    texts.pop(hashes[content], None)
            elif operation == "free" and value(
                conn,
                "SELECT count(*) FROM trecho.quarantined_texts WHERE passage_hash = sha256(convert_to(%s, 'UTF8'))",
                content,
            ):
                conn.execute("SELECT trecho.release_text(%s)", (hashes[content],))
            elif operation == "apply":
                conn.execute("SELECT trecho.apply_embeddings(1, %s)", (1 + number,))
            elif operation == "add":
                add_texts(
                    conn,
                    [content],
                    source=f"novo {step}",
                )
            elif operation == "delete":
                conn.execute("DELETE FROM trecho.chunks WHERE text_hash = %s", (hashes[content],))
                for texts in held.values():
                    texts.pop(hashes[content], None)
                conn.execute("DELETE FROM trecho.embedding_attempts WHERE text_hash = %s", (hashes[content],))
            found = counts(conn)
            bare = value(conn, "SELECT count(DISTINCT text_hash) FROM trecho.chunks WHERE embedding IS NULL")
            staged = value(
                conn,
                "SELECT count(*) FROM trecho.staged_embeddings AS s WHERE EXISTS (SELECT FROM trecho.chunks AS c WHERE c.text_hash = s.text_hash AND c.embedding IS NULL)",
            )
            assert (
                found.get("pending", 0) + found.get("failed", 0) + found.get("quarantined", 0) + staged
                >= bare
            )
            assert not value(
                conn, "SELECT count(*) FROM trecho.chunks WHERE quarantined AND embedding IS NOT NULL"
            )
        for row in conn.execute(
            "SELECT DISTINCT content, embedding FROM trecho.chunks WHERE embedding IS NOT NULL"
        ).fetchall():
            assert row["embedding"] == value(conn, "SELECT %s::vector", vector("passage: " + row["content"]))
