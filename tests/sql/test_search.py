"""Searches through the public SQL: k means k, filters, modes, pages, errors, rights."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.types.json import Jsonb
from support import Connection, as_role

CASTS = {"scopes": "trecho.chunk_scope[]", "embedding": "vector", "scope": "trecho.chunk_scope"}


def call(db: psycopg.Connection[Any], function: str, **arguments: Any) -> list[dict[str, Any]]:
    """Rows of a function of schema trecho."""
    parts = [f"{name} => %({name})s" + (f"::{CASTS[name]}" if name in CASTS else "") for name in arguments]
    return db.execute(f"SELECT * FROM trecho.{function}({', '.join(parts)})".encode(), arguments).fetchall()


def search(db: psycopg.Connection[Any], query: str = "palavra", **arguments: Any) -> list[dict[str, Any]]:
    return call(db, "search", query=query, **arguments)


def put(db: Connection, path: str | None, text: str, scope: str = "docs", **more: Any) -> dict[str, Any]:
    return call(db, "put_document", scope=scope, content=text, source_path=path, **more)[0]


def vector(angle: float, axis: int = 1) -> str:
    """A unit vector at an angle (degrees) from the first axis."""
    numbers = [0.0] * 768
    numbers[0], numbers[axis] = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return "[" + ",".join(map(str, numbers)) + "]"


def give_vector(db: Connection, path: str, angle: float) -> None:
    db.execute("UPDATE trecho.chunks SET embedding = %s WHERE source_path = %s", (vector(angle), path))


def sections(count: int, word: str = "palavra") -> str:
    """A document of that many chunks, all with the word."""
    return "\n\n".join(f"## Parte {i}\n\n{word} {'texto ' * 100}número {i}." for i in range(count))


@pytest.fixture
def library(shared_db: Connection) -> Connection:
    """Ten documents at 0, 5, ... 45 degrees; those with even numbers hold the word palavra."""
    for i in range(10):
        put(shared_db, f"dir{i % 2}/{i}.md", f"Documento {'palavra' if i % 2 == 0 else 'outro'} número {i}.")
        give_vector(shared_db, f"dir{i % 2}/{i}.md", 5 * i)
    return shared_db


def paths(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [row["source_path"] for row in rows]


def test_search__gives_every_column_of_the_design(library: Connection) -> None:
    row = search(library, "palavra", embedding=vector(0), k=1)[0]
    assert list(row)[:17] == [
        *("rank", "score", "lexical_score", "semantic_score", "chunk_id", "doc_id", "scope", "source_path"),
        *(
            "session_id",
            "title",
            "anchor",
            "ordinal",
            "chunk_count",
            "start_line",
            "end_line",
            "content",
            "metadata",
        ),
    ]
    assert (row["rank"], row["doc_id"], row["scope"], row["ordinal"], row["chunk_count"]) == (
        1,
        "dir0/0.md",
        "docs",
        1,
        1,
    )
    assert row["chunk_id"].startswith("dir0/0.md:1:")
    assert row["content"] == "Documento palavra número 0."
    assert (row["start_line"], row["end_line"]) == (1, 1)
    assert row["score"] == 1
    assert row["semantic_score"] == pytest.approx(1)
    assert row["lexical_score"] > 0


def test_semantic__orders_by_cosine(library: Connection) -> None:
    rows = search(library, embedding=vector(20), mode="semantic", k=3)
    assert rows[0]["source_path"] == "dir0/4.md"
    assert {row["source_path"] for row in rows[1:]} == {"dir1/3.md", "dir1/5.md"}
    assert [row["semantic_score"] for row in rows] == pytest.approx(
        [1, math.cos(math.radians(5)), math.cos(math.radians(5))]
    )
    assert all(row["lexical_score"] is None and row["score"] == row["semantic_score"] for row in rows)


def test_lexical__gives_only_matches_and_no_semantic_score(library: Connection) -> None:
    rows = search(library, "palavra", mode="lexical", k=10)
    assert sorted(paths(rows)) == [f"dir0/{i}.md" for i in (0, 2, 4, 6, 8)]
    assert all(row["semantic_score"] is None and row["score"] == row["lexical_score"] for row in rows)


def test_hybrid__knows_both_scores_of_every_result(library: Connection) -> None:
    rows = search(library, "palavra", embedding=vector(0), k=10)
    assert len(rows) == 10
    assert all(row["semantic_score"] is not None and row["lexical_score"] is not None for row in rows)
    assert all((row["lexical_score"] > 0) == row["source_path"].startswith("dir0/") for row in rows)
    assert [row["rank"] for row in rows] == list(range(1, 11))
    scores = [row["score"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize("fusion", ["minmax", "rrf"])
def test_hybrid__weights_decide_between_words_and_vectors(library: Connection, fusion: str) -> None:
    words = search(library, "palavra", embedding=vector(45), lexical_weight=1, fusion=fusion)
    assert {row["source_path"][:4] for row in words[:5]} == {"dir0"}
    vectors = search(library, "palavra", embedding=vector(45), lexical_weight=0, fusion=fusion)
    assert paths(vectors)[:2] == ["dir1/9.md", "dir0/8.md"]


def test_hybrid_without_a_vector__answers_by_words(library: Connection) -> None:
    assert search(library, "palavra") == search(library, "palavra", mode="lexical")


def test_a_chunk_without_a_vector__is_found_by_its_words_at_once(library: Connection) -> None:
    put(library, "novo.md", "Um xaxim acabou de chegar.")
    row = search(library, "xaxim", embedding=vector(0), k=1)[0]
    assert (row["source_path"], row["semantic_score"]) == ("novo.md", None)


@pytest.mark.parametrize("mode", ["lexical", "semantic", "hybrid"])
def test_k_means_k__300_chunks_in_one_document_and_30_documents_with_one_each(
    shared_db: Connection, mode: str
) -> None:
    put(shared_db, "longo.md", sections(300))
    give_vector(shared_db, "longo.md", 0)
    for i in range(30):
        put(
            shared_db,
            f"curto/{i}.md",
            f"Aqui só uma vez a palavra, entre {'muitas outras coisas ' * 20} número {i}.",
        )
        give_vector(shared_db, f"curto/{i}.md", 30 + i)
    shared_db.execute("SELECT trecho.refresh_lexeme_stats()")
    rows = search(shared_db, "palavra", embedding=vector(0), k=10, mode=mode)
    assert len({row["doc_id"] for row in rows}) == 10
    rows = search(shared_db, "palavra", embedding=vector(0), k=31, mode=mode)
    assert len({row["doc_id"] for row in rows}) == 31
    rows = search(shared_db, "palavra", embedding=vector(0), k=40, mode=mode)
    assert len(rows) == 31


def test_per_document__bounds_the_passages_of_one_document(shared_db: Connection) -> None:
    put(shared_db, "longo.md", sections(8))
    put(shared_db, "curto.md", "palavra")
    rows = search(shared_db, "palavra", k=10, per_document=3)
    assert sorted(paths(rows)) == ["curto.md", "longo.md", "longo.md", "longo.md"]
    assert len(search(shared_db, "palavra", k=20, per_document=100)) == 9


@pytest.mark.parametrize("mode", ["lexical", "semantic", "hybrid"])
def test_pages__continue_each_other_and_repeat_nothing(shared_db: Connection, mode: str) -> None:
    for i in range(60):
        put(shared_db, f"{i:02}.md", "palavra igual em todos" if i % 3 else f"palavra e outra {i}")
        give_vector(shared_db, f"{i:02}.md", i % 7)
    whole = search(shared_db, "palavra igual", embedding=vector(0), k=60, mode=mode)
    pages = [
        row
        for skip in range(0, 60, 7)
        for row in search(shared_db, "palavra igual", embedding=vector(0), k=7, skip=skip, mode=mode)
    ]
    assert paths(pages) == paths(whole)
    assert [row["rank"] for row in pages] == list(range(1, 61))


FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({"scopes": ["docs"]}, {"a/guia.md", "b/manual.md"}),
    ({"scopes": ["adr", "code"]}, {"adr/0001-x.md", "src/main.rs"}),
    ({"path_prefix": "a"}, {"a/guia.md", "adr/0001-x.md"}),
    ({"path_prefix": "a/"}, {"a/guia.md"}),
    ({"path_prefix": "%"}, set()),
    ({"languages": ["rust"]}, {"src/main.rs"}),
    ({"languages": []}, set()),
    ({"metadata_filter": Jsonb({"time": "dados"})}, {"b/manual.md"}),
    ({"metadata_filter": Jsonb({})}, {"a/guia.md", "b/manual.md", "adr/0001-x.md", "src/main.rs", "sessao"}),
    ({"scopes": ["session"]}, {"sessao"}),
    ({"path_prefix": "sessoes/"}, {"sessao"}),
    ({"updated_after": "2000-01-01"}, {"a/guia.md", "b/manual.md", "adr/0001-x.md", "src/main.rs", "sessao"}),
    ({"updated_after": "2999-01-01"}, set()),
    ({"branch": "outra"}, {"so-na-outra.md"}),
    ({"project": "vizinho"}, {"so-no-vizinho.md"}),
    ({"project": "nenhum"}, set()),
]
SESSION = uuid.UUID("11111111-1111-4111-8111-111111111111")


@pytest.fixture
def mixed(shared_db: Connection) -> Connection:
    put(shared_db, "a/guia.md", "A palavra do guia.")
    put(shared_db, "b/manual.md", "---\ntime: dados\n---\nA palavra do manual.")
    put(shared_db, "adr/0001-x.md", "# Decisão\n\nA palavra da decisão.", scope="adr")
    put(shared_db, "src/main.rs", "// palavra\nfn main() {}\n", scope="code")
    put(
        shared_db,
        None,
        '{"role": "user", "content": "a palavra da sessão"}\n',
        scope="session",
        session_id=SESSION,
        metadata=Jsonb({"origin": "sessoes/1.jsonl"}),
    )
    put(shared_db, "so-na-outra.md", "A palavra da outra.", branch="outra")
    put(shared_db, "so-no-vizinho.md", "A palavra do vizinho.", project="vizinho")
    shared_db.execute("UPDATE trecho.chunks SET embedding = %s", (vector(3),))
    return shared_db


@pytest.mark.parametrize("mode", ["lexical", "semantic", "hybrid"])
@pytest.mark.parametrize(
    ("arguments", "wanted"), FILTERS, ids=lambda part: str(sorted(part) if isinstance(part, set) else part)
)
def test_filters__apply_before_the_cut(
    mixed: Connection, mode: str, arguments: dict[str, Any], wanted: set[str]
) -> None:
    if arguments.get("project") == "nenhum" and mode != "lexical":
        return test_a_vector_without_an_index__raises_tr002(mixed)
    rows = search(mixed, "palavra", embedding=vector(0), mode=mode, k=20, **arguments)
    assert {row["source_path"] or "sessao" for row in rows} == wanted


ODD_PREFIXES = [
    "%",
    "_",
    "a_guia",
    "a%",
    "a/guia.m_",
    "\\\\",
    "'",
    '"',
    "",
    "A/",
    "a/guia.md ",
    "a//",
    "../a",
    "😀",
    "\u0301",
]


@pytest.mark.parametrize("mode", ["lexical", "semantic", "hybrid"])
@pytest.mark.parametrize("prefix", ODD_PREFIXES)
def test_path_prefix__is_taken_letter_by_letter(mixed: Connection, mode: str, prefix: str) -> None:
    rows = search(mixed, "palavra", embedding=vector(0), mode=mode, k=20, path_prefix=prefix)
    every = ("a/guia.md", "b/manual.md", "adr/0001-x.md", "src/main.rs", "sessoes/1.jsonl")
    found = {row["source_path"] or "sessoes/1.jsonl" for row in rows}
    assert found == {path for path in every if path.startswith(prefix)}


@pytest.mark.parametrize(
    "odd",
    [
        None,
        1,
        "time",
        True,
        [],
        ["time"],
        {},
        {"": None},
        {"time": {"a": [1, {"b": "'"}]}},
        {"time": "dados"},
    ],
)
def test_metadata_filter__may_be_any_json(mixed: Connection, odd: Any) -> None:
    wanted = {"b/manual.md"} if odd == {"time": "dados"} else None
    for mode in ("lexical", "semantic", "hybrid"):
        rows = search(mixed, "palavra", embedding=vector(0), mode=mode, k=20, metadata_filter=Jsonb(odd))
        if wanted is not None:
            assert {row["source_path"] for row in rows} == wanted
        elif odd == {}:
            assert len(rows) == 5
        else:
            assert rows == []


def test_equal_scores__are_in_order_of_document_however_they_were_written(shared_db: Connection) -> None:
    """More of them than get the whole score by words; written again from the last to the first, so that their chunks are in that order."""
    for text, numbers in (("palavra antiga", range(100)), ("palavra igual", reversed(range(100)))):
        for i in numbers:
            put(shared_db, f"{i:02}.md", text)
    for i in range(100):
        give_vector(shared_db, f"{i:02}.md", 0)
    for mode in ("lexical", "semantic", "hybrid"):
        for fusion in ("minmax", "rrf"):
            found = [
                path
                for skip in range(0, 100, 20)
                for path in paths(
                    search(
                        shared_db, "palavra", embedding=vector(0), k=20, skip=skip, mode=mode, fusion=fusion
                    )
                )
            ]
            assert found == [f"{i:02}.md" for i in range(100)], (mode, fusion)


def test_skip__beyond_the_end_finds_nothing(library: Connection) -> None:
    for mode in ("lexical", "semantic", "hybrid"):
        assert search(library, "palavra", embedding=vector(0), mode=mode, skip=50) == []
        assert search(library, "palavra", embedding=vector(0), mode=mode, skip=100_000, k=1000) == []
        assert len(search(library, "palavra", embedding=vector(0), mode=mode, k=1000)) in (5, 10)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    query=st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=60)
    | st.lists(
        st.sampled_from(['"', "-", "palavra", "'", "\\", " ", "documento", ":*", "!", "de"]), max_size=12
    ).map("".join),
    mode=st.sampled_from(["lexical", "semantic", "hybrid"]),
    k=st.integers(1, 1000),
    skip=st.sampled_from([0, 1, 9, 10, 100_000]),
    per_document=st.sampled_from([1, 2, 2**31 - 1]),
    fusion=st.sampled_from(["minmax", "rrf"]),
    filters=st.fixed_dictionaries(
        {},
        optional={
            "scopes": st.lists(st.sampled_from(["docs", "adr", "session", "code"]), max_size=4),
            "path_prefix": st.text(st.sampled_from("dir01/%_'\\.md"), max_size=8),
            "languages": st.lists(
                st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=5),
                max_size=2,
            ),
            "metadata_filter": st.recursive(
                st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab'\"%", max_size=3),
                lambda inner: (
                    st.lists(inner, max_size=2)
                    | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2)
                ),
                max_leaves=4,
            ).map(Jsonb),
            "session_id": st.uuids(),
            "updated_after": st.datetimes(),
            "prefix": st.booleans(),
            "ef_search": st.integers(1, 1000),
        },
    ),
)
def test_any_query_with_any_filters__answers_in_order_and_within_k(
    library: Connection,
    query: str,
    mode: str,
    k: int,
    skip: int,
    per_document: int,
    fusion: str,
    filters: dict[str, Any],
) -> None:
    rows = search(
        library,
        query,
        embedding=vector(7),
        mode=mode,
        k=k,
        skip=skip,
        per_document=per_document,
        fusion=fusion,
        **filters,
    )
    assert len(rows) <= k
    assert [row["rank"] for row in rows] == list(range(skip + 1, skip + 1 + len(rows)))
    assert len({row["chunk_id"] for row in rows}) == len(rows)
    scores = [row["score"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    prefix = filters.get("path_prefix")
    assert all(row["source_path"].startswith(prefix) for row in rows if prefix)


def test_session_filter__gives_that_session(mixed: Connection) -> None:
    rows = search(mixed, "palavra", session_id=SESSION)
    assert [(row["session_id"], row["source_path"], row["scope"]) for row in rows] == [
        (SESSION, None, "session")
    ]


@pytest.mark.parametrize("mode", ["semantic", "hybrid"])
def test_phrases_and_exclusions__filter_vectors_too(library: Connection, mode: str) -> None:
    rows = search(library, '"documento outro"', embedding=vector(0), mode=mode, k=10)
    assert sorted(paths(rows)) == [f"dir1/{i}.md" for i in (1, 3, 5, 7, 9)]
    rows = search(library, "documento -palavra", embedding=vector(0), mode=mode, k=10)
    assert sorted(paths(rows)) == [f"dir1/{i}.md" for i in (1, 3, 5, 7, 9)]


def test_removed_documents__are_gone_at_once(library: Connection) -> None:
    call(library, "remove_document", scope="docs", source_path="dir0/0.md")
    for mode in ("lexical", "semantic", "hybrid"):
        assert "dir0/0.md" not in paths(search(library, "palavra", embedding=vector(0), mode=mode, k=20))


def test_chunks_without_a_placement__are_invisible(library: Connection) -> None:
    library.execute(
        "DELETE FROM trecho.placements AS p USING trecho.documents AS d WHERE d.document_id = p.document_id AND d.source = 'dir0/2.md'"
    )
    for mode in ("lexical", "semantic", "hybrid"):
        found = paths(search(library, "palavra", embedding=vector(0), mode=mode, k=20))
        assert found and "dir0/2.md" not in found


def test_quarantined_chunks__are_hidden_until_the_setting_is_off(library: Connection) -> None:
    library.execute("UPDATE trecho.chunks SET quarantined = true WHERE source_path = 'dir0/0.md'")
    for mode in ("lexical", "semantic", "hybrid"):
        library.execute("SET LOCAL trecho.hide_quarantined = on")
        assert "dir0/0.md" not in paths(search(library, "palavra", embedding=vector(0), mode=mode, k=20))
        library.execute("SET LOCAL trecho.hide_quarantined = off")
        assert "dir0/0.md" in paths(search(library, "palavra", embedding=vector(0), mode=mode, k=20))


def test_a_chunk_that_stands_twice_in_a_document__is_given_once(shared_db: Connection) -> None:
    put(shared_db, "a.md", "palavra")
    shared_db.execute(
        "INSERT INTO trecho.placements SELECT index_version, document_id, ordinal + 1, chunk_key, project, branch, chunk_id || 'b', anchor,"
        " start_line + 1, end_line + 1 FROM trecho.placements"
    )
    give_vector(shared_db, "a.md", 0)
    for mode in ("lexical", "semantic", "hybrid"):
        rows = search(shared_db, "palavra", embedding=vector(0), mode=mode, per_document=9)
        assert [row["ordinal"] for row in rows] == [1]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"k": 0}, "22023"),
    ({"k": -1}, "22023"),
    ({"k": None}, "22023"),
    ({"skip": -1}, "22023"),
    ({"mode": "both"}, "22023"),
    ({"mode": None}, "22023"),
    ({"mode": "semantic"}, "22023"),
    ({"per_document": 0}, "22023"),
    ({"lexical_weight": 1.5}, "22023"),
    ({"lexical_weight": "NaN"}, "22023"),
    ({"fusion": "sum"}, "22023"),
    ({"ef_search": 0}, "22023"),
    ({"embedding": "[1,2,3]"}, "22023"),
    ({"embedding": "[" + ",".join(["0"] * 768) + "]"}, "22023"),
    ({"embedding": vector(45, axis=767)}, "TR006"),
    ({"index_version": 99}, "TR001"),
    ({"index_version": 0}, "TR001"),
    ({"index_version": 0, "embedding": vector(0)}, "TR006"),
    ({"branch": None}, "22004"),
    ({"project": None}, "22004"),
]


@pytest.mark.parametrize(("arguments", "sqlstate"), BAD, ids=lambda value: str(value)[:40])
def test_bad_arguments__are_refused_with_their_code(
    library: Connection, arguments: dict[str, Any], sqlstate: str
) -> None:
    for function in ("search", "explain_search"):
        with pytest.raises(psycopg.Error) as caught, library.transaction():
            call(library, function, query="palavra", **arguments)
        assert caught.value.sqlstate == sqlstate
    if not {"skip"} & set(arguments):
        with pytest.raises(psycopg.Error) as caught, library.transaction():
            call(library, "evidence", query="palavra", **arguments)
        assert caught.value.sqlstate == sqlstate


def test_a_vector_without_an_index__raises_tr002(shared_db: Connection) -> None:
    for mode in ("semantic", "hybrid"):
        with pytest.raises(psycopg.Error) as caught, shared_db.transaction():
            search(shared_db, embedding=vector(0), mode=mode, branch="vazia")
        assert caught.value.sqlstate == "TR002"
        assert "trecho sync" in str(caught.value.diag.message_hint)
    shared_db.execute(
        "INSERT INTO trecho.branches (project, branch, last_completed_at) VALUES ('default', 'master', now())"
    )
    with pytest.raises(psycopg.Error) as caught, shared_db.transaction():
        search(shared_db, embedding=vector(0), branch="vazia")
    assert caught.value.diag.message_hint == "Branches of this project that are indexed: 'master'."
    assert search(shared_db, mode="lexical", branch="vazia") == []
    assert search(shared_db, mode="hybrid", branch="vazia") == []
    assert search(shared_db, embedding=vector(0), mode="lexical", branch="vazia") == []


def second_version(db: Connection, state: str) -> int:
    db.execute("SET LOCAL ROLE trecho_owner")  # who owns partitions
    row = db.execute(
        "SELECT trecho._create_version(trecho._wanted_recipe(), %s::trecho.index_version_state) AS version",
        (state,),
    ).fetchone()
    db.execute("RESET ROLE")
    assert row is not None
    return int(row["version"])


def test_a_vector_without_its_version__is_refused_while_two_stand(library: Connection) -> None:
    second_version(library, "building")
    with pytest.raises(psycopg.Error) as caught, library.transaction():
        search(library, embedding=vector(0))
    assert caught.value.sqlstate == "TR003"
    assert len(search(library, embedding=vector(0), index_version=1)) == 10
    assert len(search(library, "palavra", mode="lexical")) == 5


def test_a_vector_of_a_version_that_is_being_built__is_refused(library: Connection) -> None:
    version = second_version(library, "building")
    library.execute(
        "INSERT INTO trecho.indexed_documents SELECT %s, document_id, blob_sha, 0 FROM trecho.indexed_documents",
        (version,),
    )
    with pytest.raises(psycopg.Error) as caught, library.transaction():
        search(library, embedding=vector(0), index_version=version)
    assert caught.value.sqlstate == "TR006"


def test_a_retired_version__still_answers_vectors_made_for_it(library: Connection) -> None:
    version = second_version(library, "retired")
    library.execute("UPDATE trecho.index_versions SET state = 'retired' WHERE index_version = 1")
    library.execute("UPDATE trecho.index_versions SET state = 'active' WHERE index_version = %s", (version,))
    library.execute("UPDATE trecho.index_state SET active_version = %s", (version,))
    assert len(search(library, embedding=vector(0), index_version=1)) == 10
    assert search(library, "palavra", mode="lexical") == []
    assert {row["index_version"] for row in search(library, "palavra", mode="lexical", index_version=1)} == {
        1
    }


def test_search__leaves_settings_as_they_were(library: Connection) -> None:
    names = (
        "hnsw.ef_search",
        "hnsw.iterative_scan",
        "enable_seqscan",
        "jit",
        "plan_cache_mode",
        "search_path",
    )
    library.execute("SET LOCAL hnsw.ef_search = 77")
    ask = "SELECT " + ", ".join(f"current_setting('{name}') AS \"{name}\"" for name in names)
    before = library.execute(ask.encode()).fetchone()
    search(library, "palavra", embedding=vector(0))
    assert library.execute(ask.encode()).fetchone() == before


def test_search__works_in_a_read_only_transaction(dsn: str) -> None:
    with psycopg.Connection[dict[str, Any]].connect(dsn, row_factory=psycopg.rows.dict_row) as db:
        put(db, "a.md", "a palavra")
        give_vector(db, "a.md", 0)
        db.commit()
        db.execute("SET TRANSACTION READ ONLY")
        for mode in ("lexical", "semantic", "hybrid"):
            assert paths(search(db, "palavra", embedding=vector(0), mode=mode)) == ["a.md"]
        assert call(db, "explain_search", query="palavra")
        assert call(db, "evidence", query="palavra")


def test_search__is_stable_and_sees_one_snapshot(shared_db: Connection) -> None:
    rows = shared_db.execute(
        "SELECT p.proname, p.provolatile, p.prosecdef FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace"
        " WHERE n.nspname = 'trecho' AND p.proname IN ('search', 'evidence') ORDER BY 1"
    ).fetchall()
    assert [(r["proname"], r["provolatile"], r["prosecdef"]) for r in rows] == [
        ("evidence", "s", True),
        ("search", "s", True),
    ]


def test_a_member_of_reader__may_search_and_nobody_else(
    dsn: str, make_role: Callable[..., str], plain_role: str
) -> None:
    reader = make_role("trecho_reader")
    with psycopg.Connection[dict[str, Any]].connect(
        dsn, row_factory=psycopg.rows.dict_row, autocommit=True
    ) as db:
        put(db, "a.md", "a palavra")
        with psycopg.connect(as_role(dsn, reader)) as conn:
            assert conn.execute("SELECT source_path FROM trecho.search('palavra')").fetchall() == [("a.md",)]
        with (
            psycopg.connect(as_role(dsn, plain_role)) as conn,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            conn.execute("SELECT source_path FROM trecho.search('palavra')")


def test_project_grants__separate_projects(dsn: str, make_role: Callable[..., str]) -> None:
    ours, theirs = make_role("trecho_reader"), make_role("trecho_reader")
    with psycopg.Connection[dict[str, Any]].connect(
        dsn, row_factory=psycopg.rows.dict_row, autocommit=True
    ) as db:
        put(db, "a.md", "a palavra", project="nosso")
        assert call(db, "revoke_project", role="trecho_reader", project="*") == [{"revoke_project": True}]
        assert call(db, "grant_project", role=ours, project="nosso") == [{"grant_project": True}]
        assert call(db, "grant_project", role=ours, project="nosso") == [{"grant_project": False}]
        ask = "SELECT count(*) FROM trecho.search('palavra', project => 'nosso')"
        with psycopg.connect(as_role(dsn, ours)) as conn:
            assert conn.execute(ask).fetchone() == (1,)
        with psycopg.connect(as_role(dsn, theirs)) as conn, pytest.raises(psycopg.Error) as caught:
            conn.execute(ask)
        assert caught.value.sqlstate == "42501"
        assert caught.value.diag.message_hint
        # SET ROLE counts: a member of both roles reads as the one it has taken.
        db.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(theirs), sql.Identifier(ours)))
        with psycopg.connect(as_role(dsn, ours)) as conn:
            conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(theirs)))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(ask)
        with pytest.raises(psycopg.Error) as caught:
            call(db, "grant_project", role="no_such_role_at_all", project="x")
        assert caught.value.sqlstate == "42704"


def test_explain_search__shows_every_part_with_time_and_plan(library: Connection) -> None:
    rows = {row["part"]: row for row in call(library, "explain_search", query="palavra", embedding=vector(0))}
    assert list(rows) == ["total", "filter", "query", "words", "vectors", "fusion"]
    assert rows["total"]["row_count"] == 10
    assert rows["filter"]["row_count"] == 10
    assert rows["words"]["row_count"] == 5
    assert rows["vectors"]["row_count"] == 10
    assert all(row["milliseconds"] >= 0 and row["detail"] for row in rows.values())
    assert "chunks_1" in rows["words"]["plan"] and "chunks_1" in rows["vectors"]["plan"]
    assert "over-fetch" in rows["fusion"]["detail"]


def test_excerpt__marks_accented_unaccented_plural_and_partial_matches(shared_db: Connection) -> None:
    def excerpt(content: str, query: str, **more: Any) -> str:
        return str(call(shared_db, "excerpt", content=content, query=query, **more)[0]["excerpt"])

    assert excerpt("As reuniões de\n  hoje", "reuniao") == "As **reuniões** de hoje"
    assert excerpt("as reunioes de hoje", "reunião") == "as **reunioes** de hoje"
    assert excerpt("chama carregarPedidos aqui", "pedidos") == "chama **carregarPedidos** aqui"
    assert excerpt("lê src/main.rs e sai", "main") == "lê src/**main**.rs e sai"
    assert excerpt("nada disso", "palavra") == "nada disso"
    assert (
        excerpt("uma palavra -outra", "palavra -outra", start_mark="<", stop_mark=">")
        == "uma <palavra> -outra"
    )
    assert excerpt("", "x") == ""
    long = "antes " * 200 + "a palavra rara aqui " + "depois " * 200
    found = excerpt(long, "palavra rara", max_chars=60)
    assert "**palavra** **rara**" in found
    assert found.startswith("… ") and found.endswith(" …")
    assert len(found) <= 60 + 4 * 2 + 4
    assert len(excerpt("x" * 5000, "palavra", max_chars=60)) <= 64


def test_evidence__keeps_its_budget_and_heads_each_block(shared_db: Connection) -> None:
    put(shared_db, "longo.md", sections(6))
    put(shared_db, "curto.md", "Só uma palavra.")
    text = call(shared_db, "evidence", query="palavra", per_document=2, max_chars=4000)[0]["evidence"]
    heads = [line for line in text.splitlines() if line.startswith("doc_id: ")]
    assert len(heads) >= 2
    assert "doc_id: curto.md · chunk: 1/1" in heads
    for size in (200, 500, 1000, 3000):
        text = call(shared_db, "evidence", query="palavra", max_chars=size)[0]["evidence"]
        assert 0 < len(text) <= size
    assert call(shared_db, "evidence", query="inexistente")[0]["evidence"] == ""


def test_evidence__merges_neighbours(shared_db: Connection) -> None:
    put(shared_db, "longo.md", sections(3))
    text = call(shared_db, "evidence", query="palavra", per_document=9)[0]["evidence"]
    assert text.splitlines()[0] == "doc_id: longo.md · chunk: 1-3/3"
    assert text.count("doc_id:") == 1
    assert [text.count(f"## Parte {i}") for i in range(3)] == [1, 1, 1]


def test_evidence__shows_lines_that_windows_share_once(shared_db: Connection) -> None:
    lines = [f"linha palavra {i}" for i in range(150)]
    put(shared_db, "a.txt", "\n".join(lines) + "\n", scope="docs")
    text = call(shared_db, "evidence", query="palavra", per_document=9, max_chars=20000)[0]["evidence"]
    assert text.splitlines()[1:] == lines
