"""`trecho version`, and how `trecho embed` changes the recipe of a living index by itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from embedding_rows import Connection, value
from misbehaving_server import MisbehavingServer, vector_of
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from trecho.embed import embed_pending
from trecho.errors import ExitCode, UsageError
from trecho.version import Comparison, Question, batch_size, build, read_questions

RECIPE = {
    "provider": "openai-compatible",
    "model_id": "m",
    "dim": 768,
    "query_prefix": "",
    "passage_prefix": "",
}


@pytest.fixture
def provider_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MisbehavingServer]:
    for name in ("TRECHO_EMBEDDING_KEY", "TRECHO_EMBEDDING_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    with MisbehavingServer() as running:
        monkeypatch.setenv("TRECHO_EMBEDDING_URL", running.url)
        yield running


@pytest.fixture
def index(dsn: str, provider_server: MisbehavingServer) -> Iterator[Connection]:
    """Six documents in version 1, all with vectors."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        conn.execute("SELECT trecho.configure(%s)", (Jsonb(RECIPE),))
        for number in range(6):
            conn.execute(
                "SELECT trecho.put_document('docs', %s, %s)",
                (f"Um texto sobre o prazo {number}.", f"doc{number}.md"),
            )
        embed_pending(dsn)
        yield conn


def states(conn: Connection) -> dict[int, str]:
    rows = conn.execute("SELECT index_version, state::text FROM trecho.index_versions ORDER BY 1").fetchall()
    return {row["index_version"]: row["state"] for row in rows}


def vectors(conn: Connection, version: int) -> int:
    """How many placed chunks of a version have a vector; all must."""
    row = conn.execute(
        "SELECT count(*) AS n, count(c.embedding) AS filled FROM trecho.placements AS p"
        " JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key WHERE p.index_version = %s",
        (version,),
    ).fetchone()
    assert row is not None
    assert row["n"] == row["filled"]
    return int(row["n"])


def test_build__without_drift_makes_no_request(
    index: Connection, dsn: str, provider_server: MisbehavingServer, trecho: Callable[..., Any]
) -> None:
    sent = len(provider_server.requests)
    ran = trecho("version", "build", dsn=dsn)
    assert (ran.code, ran.out) == (0, "no drift: the active version has the wanted recipe\n")
    assert len(provider_server.requests) == sent


def test_build__a_new_model_is_embedded_once_and_becomes_active(
    index: Connection, dsn: str, provider_server: MisbehavingServer, trecho: Callable[..., Any]
) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    listed = json.loads(trecho("version", "list", "--json", dsn=dsn).out)
    assert [(part["key"], part["active"], part["wanted"]) for part in listed["drift"]] == [
        ("model_version", "1", "2")
    ]
    provider_server.texts.clear()
    provider_server.model = "2"
    ran = trecho("version", "build", dsn=dsn)
    assert (ran.code, ran.out) == (0, "version 2: 6 documents chunked, 6 texts embedded, active now\n")
    assert states(index) == {1: "retired", 2: "active"}
    assert vectors(index, 2) == 6
    assert set(provider_server.texts.values()) == {1}
    stored = value(
        index, "SELECT embedding::text FROM trecho.chunks_2 WHERE content = 'Um texto sobre o prazo 0.'"
    )
    assert json.loads(stored) == pytest.approx(vector_of("Um texto sobre o prazo 0.", 768, "2"), abs=1e-6)
    assert trecho("version", "list", dsn=dsn).out.splitlines()[1].startswith("2  active  ")


def test_embed__sees_drift_and_builds_by_itself(
    index: Connection, dsn: str, trecho: Callable[..., Any]
) -> None:
    index.execute("UPDATE trecho.index_versions SET model_version = NULL")  # written before the field existed
    ran = trecho("embed", dsn=dsn)
    assert ran.code == ExitCode.DONE
    assert states(index) == {1: "retired", 2: "active"}
    assert vectors(index, 2) == 6


def test_sync__sees_drift_builds_by_itself_and_again_with_full(
    index: Connection, dsn: str, trecho: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\nUm texto da pasta.\n")
    config = tmp_path / "trecho.toml"
    config.write_text('[[source]]\npath = "docs"\n[embedding]\nmodel_version = "2"\n')
    assert trecho("sync", "--config", str(config), dsn=dsn).code == 0
    assert states(index) == {1: "retired", 2: "active"}
    assert vectors(index, 2) == 7
    assert trecho("sync", "--config", str(config), dsn=dsn).code == 0
    assert states(index) == {1: "retired", 2: "active"}
    assert trecho("sync", "--config", str(config), "--full", dsn=dsn).code == 0
    assert states(index)[3] == "active" and vectors(index, 3) == 7


def test_embed__full_embeds_everything_again(
    index: Connection, dsn: str, provider_server: MisbehavingServer, trecho: Callable[..., Any]
) -> None:
    provider_server.texts.clear()
    ran = trecho("embed", "--full", "--json", dsn=dsn)
    assert ran.code == ExitCode.DONE
    assert json.loads(ran.out)["texts"] == 6
    assert sum(n for text, n in provider_server.texts.items() if text.startswith("Um texto")) == 6
    assert states(index) == {1: "retired", 2: "active"}


def test_build__other_chunks_of_the_same_model_pay_for_nothing_that_is_known(
    index: Connection, dsn: str, provider_server: MisbehavingServer
) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"chunk_settings": {"section_max_chars": 900}}),))
    sent = len(provider_server.requests)
    result = build(dsn)
    assert (result.version, result.documents, result.activated) == (2, 6, True)
    assert vectors(index, 2) == 6
    assert len(provider_server.requests) == sent + 1  # the probe


def test_build__a_provider_that_is_down_leaves_the_old_version_and_goes_on_later(
    index: Connection,
    dsn: str,
    provider_server: MisbehavingServer,
    trecho: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    monkeypatch.setenv("TRECHO_EMBEDDING_URL", "http://127.0.0.1:9/v1")
    ran = trecho("version", "build", dsn=dsn)
    assert ran.code == ExitCode.NOT_CURRENT
    assert "error: embedding provider" in ran.err
    assert states(index) == {1: "active", 2: "building"}
    monkeypatch.setenv("TRECHO_EMBEDDING_URL", provider_server.url)
    assert trecho("version", "build", dsn=dsn).code == ExitCode.DONE
    assert states(index) == {1: "retired", 2: "active"}


def test_build__documents_put_all_the_while_are_in_the_new_version(index: Connection, dsn: str) -> None:
    stop = threading.Event()
    put: list[str] = []

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            while not stop.is_set() and len(put) < 80:  # a slow machine must be able to catch up
                put.append(f"novo{len(put)}.md")
                conn.execute(
                    "SELECT trecho.put_document('docs', %s, %s)", (f"Um texto novo {len(put)}.", put[-1])
                )
                stop.wait(0.05)

    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    writer = threading.Thread(target=write)
    writer.start()
    try:
        result = build(dsn)
        for _ in range(20):
            if result.activated:
                break
            result = build(dsn)
    finally:
        stop.set()
        writer.join()
    assert result.activated
    build(dsn)
    missing = value(
        index,
        "SELECT count(*) FROM trecho.documents AS d WHERE NOT EXISTS (SELECT FROM trecho.indexed_documents AS i"
        " WHERE i.index_version = 2 AND i.document_id = d.document_id AND i.blob_sha = d.blob_sha)",
    )
    assert missing == 0
    assert value(index, "SELECT count(*) FROM trecho.documents") == 6 + len(put)


@pytest.mark.slow
@pytest.mark.parametrize("documents", [0, 25])  # from 20 on, the search indexes are built after the load
def test_build__four_writers_in_a_loop_do_not_keep_a_version_from_becoming_active(
    index: Connection, dsn: str, documents: int
) -> None:
    index.execute(
        "SELECT trecho.put_document('docs', 'Um texto de antes, o de número ' || n, 'antes' || n || '.md')"
        " FROM generate_series(1, %s) AS n",
        (documents,),
    )
    embed_pending(dsn)
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                count = 0
                while not stop.is_set():
                    count += 1
                    text = f"Um texto do escritor {number}, o de número {count}."
                    conn.execute(
                        "SELECT trecho.put_document('docs', %s, %s)", (text, f"e{number}-{count % 50}.md")
                    )
        except BaseException as error:
            failures.append(error)

    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    try:
        result = build(dsn)
        # As the next reader sees it, while they write on: every document stands in the version that answers.
        missing = value(index, "SELECT count(*) FROM trecho._missing_documents(2)")
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not failures
    assert result.activated, result
    assert result.rounds <= (4 if documents else 3)
    assert value(index, "SELECT trecho._has_search_indexes(2)") is True
    assert missing == 0
    assert value(index, "SELECT count(*) FROM trecho._missing_documents(2)") == 0
    embed_pending(dsn)
    assert vectors(index, 2) == value(index, "SELECT count(*) FROM trecho.documents")


def test_build__a_preset_becomes_the_wanted_recipe_and_is_built(
    index: Connection,
    dsn: str,
    provider_server: MisbehavingServer,
    trecho: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "voyage: voyage-4" in trecho("version", "presets").out
    assert set(json.loads(trecho("version", "presets", "--json").out)) >= {"local", "ollama", "llama.cpp"}
    assert trecho("version", "build", "--preset", "nenhum", dsn=dsn).code == ExitCode.USAGE
    ran = trecho("version", "build", "--preset", "voyage", dsn=dsn)  # it needs a key, and there is none
    assert (ran.code, states(index)) == (ExitCode.USAGE, {1: "active"})
    assert index.execute("SELECT * FROM trecho.drift()").fetchall() == []
    ran = trecho("version", "build", "--preset", "ollama", dsn=dsn)
    assert ran.code == 0, ran.err
    assert 'preset = "ollama"' in ran.err
    assert states(index) == {1: "retired", 2: "active"}
    row = index.execute("SELECT * FROM trecho.query_recipe()").fetchone()
    assert row is not None
    assert (row["provider"], row["model_id"], row["query_prefix"]) == (
        "ollama",
        "nomic-embed-text",
        "search_query: ",
    )
    assert provider_server.texts["search_document: Um texto sobre o prazo 0."] == 1


@pytest.mark.parametrize("column", ["model_version", "passage_prefix", "chunk_settings", "chunker_version"])
def test_sync__a_database_from_before_a_part_of_the_recipe_existed_heals_by_itself(
    index: Connection, dsn: str, trecho: Callable[..., Any], tmp_path: Path, column: str
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\nUm texto da pasta.\n")
    config = tmp_path / "trecho.toml"
    config.write_text('[[source]]\npath = "docs"\n')
    assert trecho("sync", "--config", str(config), dsn=dsn).code == 0
    index.execute(f"UPDATE trecho.index_versions SET {column} = NULL")
    assert trecho("sync", "--config", str(config), dsn=dsn).code == 0
    assert states(index) == {1: "retired", 2: "active"}
    assert vectors(index, 2) == 7
    assert index.execute("SELECT * FROM trecho.drift()").fetchall() == []
    assert trecho("sync", "--config", str(config), dsn=dsn).code == 0
    assert states(index) == {1: "retired", 2: "active"}


def test_build__a_database_that_chunks_in_the_client_is_cut_here(
    empty_dsn: str, provider_server: MisbehavingServer, trecho: Callable[..., Any], tmp_path: Path
) -> None:
    assert trecho("migrate", "--chunking", "client", dsn=empty_dsn).code == 0
    long = "\n\n".join(f"Parágrafo {n} " + "muito comprido " * 20 for n in range(8))
    (tmp_path / "a.md").write_text(f"# A\n\n{long}\n")
    (tmp_path / "b.md").write_text("# B\n\nUm texto curto.\n")
    with psycopg.connect(empty_dsn, autocommit=True, row_factory=dict_row) as conn:
        conn.execute("SELECT trecho.configure(%s)", (Jsonb(RECIPE),))
        assert trecho("sync", str(tmp_path), dsn=empty_dsn).code == 0
        before = vectors(conn, 1)
        # One command after the other sees the drift, and builds what it wants.
        for number, (command, setting) in enumerate(
            [
                (["version", "build"], {"section_max_chars": 700}),
                (["embed"], {"section_max_chars": 600}),
                (["sync", str(tmp_path)], {"section_max_chars": 500}),
            ],
            2,
        ):
            conn.execute("SELECT trecho.configure(%s)", (Jsonb({"chunk_settings": setting}),))
            ran = trecho(*command, dsn=empty_dsn)
            assert ran.code == 0, ran.err
            assert states(conn)[number] == "active"
            assert vectors(conn, number) > before
        # What the client cut is what it cuts for a new text.
        cut = "SELECT array_agg(content ORDER BY content) AS c FROM trecho.chunks WHERE index_version = 4"
        built = value(conn, cut)
        value(conn, "SELECT trecho.drop_version(2)")
        (tmp_path / "a.md").write_text(f"# A\n\n{long}\n\nMais.\n")
        assert trecho("sync", str(tmp_path), dsn=empty_dsn).code == 0
        assert set(built) - set(value(conn, cut)) == set()
        assert index_is_whole(conn, 4)


def index_is_whole(conn: Connection, version: int) -> bool:
    """Every document stands in the version with its present text."""
    return bool(value(conn, "SELECT NOT EXISTS (SELECT FROM trecho._missing_documents(%s))", version))


def test_sync__drops_a_version_whose_grace_is_over(
    index: Connection, dsn: str, trecho: Callable[..., Any], tmp_path: Path
) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    build(dsn)
    index.execute(
        "UPDATE trecho.index_versions SET retired_at = now() - interval '8 days' WHERE index_version = 1"
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\nUm texto da pasta.\n")
    assert trecho("sync", str(tmp_path / "docs"), dsn=dsn).code == 0
    assert states(index) == {2: "active"}


def test_going_back_is_one_command(
    index: Connection, dsn: str, provider_server: MisbehavingServer, trecho: Callable[..., Any]
) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    build(dsn)
    index.execute("SELECT trecho.put_document('docs', 'Um texto novo.', 'novo.md')")
    embed_pending(dsn)
    ran = trecho("version", "activate", "1", dsn=dsn)
    assert ran.code == ExitCode.DONE
    assert "trecho.toml" in ran.err
    assert states(index) == {1: "active", 2: "retired"}
    assert vectors(index, 1) == 7
    assert index.execute("SELECT * FROM trecho.drift()").fetchall() == []
    assert trecho("version", "activate", "1", dsn=dsn).out == "version 1 is active already\n"


def test_pause_resume_and_drop(index: Connection, dsn: str, trecho: Callable[..., Any]) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    value(index, "SELECT trecho.begin_version_build()")
    assert trecho("version", "pause", "2", dsn=dsn).code == 0
    assert trecho("version", "list", dsn=dsn).out.splitlines()[1].startswith("2  paused")
    # A paused build stops nothing else, and nothing turns searches to it.
    index.execute("SELECT trecho.put_document('docs', 'Um texto novo.', 'novo.md')")
    ran = trecho("version", "build", dsn=dsn)
    assert (ran.code, "is paused" in ran.err) == (ExitCode.NOT_CURRENT, True)
    assert trecho("embed", dsn=dsn).code == ExitCode.DONE
    assert vectors(index, 1) == 7
    assert states(index) == {1: "active", 2: "building"}
    assert trecho("version", "resume", "2", dsn=dsn).code == 0
    assert trecho("version", "drop", "2", dsn=dsn).code == 0
    assert trecho("version", "drop", "2", dsn=dsn).code == ExitCode.USAGE
    assert trecho("version", "drop", "1", dsn=dsn).code == ExitCode.ERROR
    assert states(index) == {1: "active"}


def test_compare__shows_what_a_version_would_gain_and_lose_before_searches_turn_to_it(
    index: Connection,
    dsn: str,
    provider_server: MisbehavingServer,
    trecho: Callable[..., Any],
    tmp_path: Path,
) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    value(index, "SELECT trecho.begin_version_build()")
    while value(index, "SELECT trecho.backfill_version(2)"):
        pass
    embed_pending(dsn)
    assert states(index) == {1: "active", 2: "building"}
    questions = tmp_path / "perguntas.tsv"
    questions.write_text("# comentário\nUm texto sobre o prazo 3.\tdoc3.md\n\nprazo\n", encoding="utf-8")
    ran = trecho("version", "compare", "1", "2", str(questions), "-k", "3", "--json", dsn=dsn)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["questions"], found["judged"], found["hits_old"], found["hits_new"]) == (2, 1, 1, 1)
    assert found["results"][0]["new"][0] == "doc3.md"
    assert found["overlap"] == 1.0
    assert trecho("version", "compare", "1", "2", str(questions), dsn=dsn).out.startswith(
        "2 questions, 10 results each: overlap 1.000"
    )
    assert trecho("version", "compare", "1", "9", str(questions), dsn=dsn).code == ExitCode.USAGE


def test_build__without_activation_waits_to_be_compared_whatever_else_runs(
    index: Connection, dsn: str, trecho: Callable[..., Any], tmp_path: Path
) -> None:
    index.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    ran = trecho("version", "build", "--no-activate", dsn=dsn)
    assert ran.code == ExitCode.DONE
    assert "trecho version activate 2" in ran.err
    assert vectors(index, 2) == 6
    index.execute("SELECT trecho.put_document('docs', 'Um texto novo.', 'novo.md')")
    assert trecho("embed", dsn=dsn).code == ExitCode.DONE
    assert states(index) == {1: "active", 2: "building"}
    questions = tmp_path / "perguntas.txt"
    questions.write_text("Um texto sobre o prazo 3.\n", encoding="utf-8")
    assert trecho("version", "compare", "1", "2", str(questions), dsn=dsn).code == 0
    assert trecho("version", "activate", "2", dsn=dsn).code == ExitCode.DONE
    assert states(index) == {1: "retired", 2: "active"}
    assert vectors(index, 2) == 7


def test_a_backfill__looks_through_all_documents_a_thousand_times_and_not_once_for_ten_of_them() -> None:
    for documents in (1_000, 10_000, 100_000):
        left, batches = documents, 0
        while left > 0:
            assert 10 <= batch_size(left) <= 100  # a put of any of them waits
            left -= batch_size(left)
            batches += 1
        assert batches <= max(400, documents // 80)
    assert batch_size(0) == 10


def test_comparison__counts_what_came_and_went() -> None:
    result = Comparison("q", "c", ["a", "b"], ["b", "c", "d"])
    assert (result.gained, result.lost) == (["c", "d"], ["a"])
    assert result.overlap == pytest.approx(1 / 3)
    assert Comparison("q", "", [], []).overlap == 1.0


def test_read_questions__takes_the_document_after_a_tab_and_refuses_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "q.tsv"
    path.write_text("qual o prazo?\tdoc.md\tnota\nsem resposta\n", encoding="utf-8")
    assert read_questions(path) == [Question("qual o prazo?", "doc.md"), Question("sem resposta")]
    path.write_text("\n# só comentário\n", encoding="utf-8")
    with pytest.raises(UsageError):
        read_questions(path)
    with pytest.raises(UsageError):
        read_questions(tmp_path / "nenhum")
