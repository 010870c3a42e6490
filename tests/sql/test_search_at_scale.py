"""Searches over thousands of chunks, where the indexes answer and not an exact scan."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from psycopg.rows import dict_row

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.load import Passage, Source, load

pytestmark = pytest.mark.slow
WEIRD = [
    "'",
    "\\\\",
    '"',
    '""',
    "!",
    "a:b?x=1",
    "Foo::bar",
    "😀",
    "x" * 10_000,
    "palavra " * 1_250,
    "-a " * 3_000,
    "de a o",
    "",
]
SIZE = 6000


def clustered(rng: np.random.Generator, centres: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Unit vectors, (count, 768), around the centres."""
    vectors = centres[rng.integers(len(centres), size=count)] + 0.5 / np.sqrt(384) * rng.standard_normal(
        (count, 768)
    )
    vectors[:, 384:] = 0
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def large(dsn: str) -> Iterator[tuple[psycopg.Connection[Any], NDArray[np.float32], NDArray[np.float32]]]:
    """Branch main with 6,000 chunks in 1,500 documents, branch small with 50; vectors of main; 20 query vectors."""
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((40, 768)).astype(np.float32) / np.sqrt(384)
    centres[:, 384:] = 0
    vectors = clustered(rng, centres, SIZE)
    words = [f"termo{i}" for i in range(300)]
    texts = [f"palavra comum {' '.join(rng.choice(words, 12))} {i}" for i in range(SIZE)]
    main = [
        Source(f"d/{n:04}.md", [Passage(texts[i], vectors[i]) for i in range(4 * n, 4 * n + 4)])
        for n in range(SIZE // 4)
    ]
    small = [
        Source(f"s/{n:02}.md", [Passage(f"palavra rara {n}", v)], branch="small")
        for n, v in enumerate(clustered(rng, centres, 50))
    ]
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        load(conn, main + small, rebuild=True)
        yield conn, vectors, clustered(rng, centres, 20)


def ask(conn: psycopg.Connection[Any], vector: NDArray[np.float32], **arguments: Any) -> list[dict[str, Any]]:
    names = "".join(f", {name} => %({name})s" for name in arguments)
    return conn.execute(
        f"SELECT * FROM trecho.search('palavra comum termo7', %(vector)s{names}) ORDER BY rank".encode(),
        {"vector": vector, **arguments},
    ).fetchall()


def parts(
    conn: psycopg.Connection[Any], vector: NDArray[np.float32], **arguments: Any
) -> dict[str, dict[str, Any]]:
    names = "".join(f", {name} => %({name})s" for name in arguments)
    rows = conn.execute(
        f"SELECT * FROM trecho.explain_search('palavra comum termo7', %(vector)s{names})".encode(),
        {"vector": vector, **arguments},
    ).fetchall()
    return {row["part"]: row for row in rows}


def test_at_scale__indexes_answer_and_answer_right(large: tuple[psycopg.Connection[Any], Any, Any]) -> None:
    conn, vectors, queries = large

    # The plans: HNSW and GIN, never a scan of everything.
    plan = parts(conn, queries[0])
    assert "chunks_1_vectors" in plan["vectors"]["plan"] and "Seq Scan" not in plan["vectors"]["plan"]
    assert "chunks_1_words" in plan["words"]["plan"] and "Seq Scan" not in plan["words"]["plan"]
    alone = parts(conn, queries[0], mode="semantic")["vectors"]
    assert "chunks_1_vectors" in alone["plan"] and "one pass" in alone["detail"]
    assert "iterative" in parts(conn, queries[0], mode="semantic", k=200)["vectors"]["detail"]

    # Any string is a query, on this path, too.
    for query in (
        *WEIRD,
        '"palavra comum"',
        '"termo7 termo8"',
        "palavra",
        "comum -termo7",
        'termo7 -"palavra comum"',
        "-palavra",
    ):
        for mode in ("lexical", "semantic", "hybrid"):
            conn.execute(
                "SELECT count(*) FROM trecho.search(%s, %s, mode => %s, prefix => true)",
                (query, queries[0], mode),
            )
            plans = conn.execute(
                "SELECT plan FROM trecho.explain_search(%s, %s, mode => %s, prefix => true) WHERE plan IS NOT NULL",
                (query, queries[0], mode),
            ).fetchall()
            for row in plans:
                # No scan of the table, and none of a whole index either: every one has a condition or an order. What an
                # exclusion alone leaves to a vector can only be read.
                if mode != "lexical" and query in ("-palavra", 'termo7 -"palavra comum"'):
                    break
                assert "Seq Scan" not in row["plan"], (query[:40], mode)
                scans = row["plan"].count("Index Scan") + row["plan"].count("Index Only Scan")
                bounds = row["plan"].count("Index Cond") + row["plan"].count("Order By")
                assert scans <= bounds, (query[:40], mode, row["plan"])

    # However often a statement has run on one connection, its plan stays (a generic one after five runs would not).
    before = parts(conn, queries[0], branch="small")["vectors"]["plan"]
    for _ in range(12):
        ask(conn, queries[0], branch="small")
        ask(conn, queries[0])
    assert parts(conn, queries[0], branch="small")["vectors"]["plan"] == before
    assert "chunks_1_vectors" in parts(conn, queries[0])["vectors"]["plan"]

    # Recall at the default settings, each passage a result.
    exact = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :10]
    hits = 0
    for query, nearest in zip(queries, exact, strict=True):
        found = {
            round(row["semantic_score"], 5) for row in ask(conn, query, mode="semantic", per_document=10)
        }
        hits += len(found & {round(float(query @ vectors[i]), 5) for i in nearest})
    assert hits / exact.size >= 0.97

    # 50 rows of a branch among 6,000 of another: all of k = 20, and all 50 of k = 60.
    for mode in ("lexical", "semantic", "hybrid"):
        assert len(ask(conn, queries[1], mode=mode, branch="small", k=20)) == 20
        assert len(ask(conn, queries[1], mode=mode, branch="small", k=60)) == 50
    assert "exact" in parts(conn, queries[1], branch="small")["vectors"]["detail"]

    # A filter that leaves 1 document in 100.
    for mode in ("lexical", "semantic", "hybrid"):
        rows = ask(conn, queries[2], mode=mode, path_prefix="d/000", k=20)
        assert {row["doc_id"] for row in rows} == {f"d/000{i}.md" for i in range(10)}

    # Many rows, half of the documents: through the indexes, and still k.
    for mode in ("lexical", "semantic", "hybrid"):
        rows = ask(conn, queries[2], mode=mode, path_prefix="d/0", k=200)
        assert len({row["doc_id"] for row in rows}) == 200
        assert all(row["source_path"].startswith("d/0") for row in rows)

    # Pages of the hybrid continue each other at depth.
    whole = [row["chunk_id"] for page in range(6) for row in ask(conn, queries[3], k=10, skip=10 * page)]
    assert len(set(whole)) == 60

    # So do those of vectors alone, from one pass into the iterations, and with a filter that half of the rows pass.
    for more in ({}, {"path_prefix": "d/0"}, {"per_document": 3}):
        whole = [
            row["chunk_id"]
            for page in range(12)
            for row in ask(conn, queries[3], mode="semantic", k=10, skip=10 * page, **more)
        ]
        assert len(whole) == len(set(whole)) == 120, more

    # Everything there is can be read.
    assert len(ask(conn, queries[4], mode="lexical", k=1000)) == 1000
    assert len(ask(conn, queries[4], mode="semantic", k=1000)) == 1000

    # The 500 nearest rows deleted without vacuum.
    nearest = np.argsort(-(vectors @ queries[5]))[:500]
    keys = conn.execute(
        "SELECT chunk_key FROM trecho.chunks WHERE index_version = 1 ORDER BY chunk_key"
    ).fetchall()
    gone = [keys[int(i)]["chunk_key"] for i in nearest]
    conn.execute("DELETE FROM trecho.placements WHERE chunk_key = ANY (%s)", (gone,))
    conn.execute("DELETE FROM trecho.chunks WHERE chunk_key = ANY (%s)", (gone,))
    for mode in ("lexical", "semantic", "hybrid"):
        assert len(ask(conn, queries[5], mode=mode, k=20)) == 20
    left = np.setdiff1d(np.arange(SIZE), nearest)
    best = float((vectors[left] @ queries[5]).max())
    assert ask(conn, queries[5], mode="semantic", k=1)[0]["semantic_score"] == pytest.approx(best, abs=1e-5)


def test_pages__of_passages_with_one_vector_neither_repeat_nor_lose_any(dsn: str) -> None:
    """Boilerplate: hundreds of passages are the same to a vector, so where one page ends among them is decided by document."""
    rng = np.random.default_rng(11)
    vectors = clustered(rng, rng.standard_normal((5, 768)).astype(np.float32) / np.sqrt(384), 3000)
    same = vectors[0]
    sources = [
        Source(f"d/{i:04}.md", [Passage(f"Texto número {i}", same if i % 25 == 0 else vectors[i])])
        for i in range(3000)
    ]
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        load(conn, sources, rebuild=True)
        assert "one pass" in parts(conn, same, mode="semantic")["vectors"]["detail"]
        pages = [
            row["source_path"]
            for skip in range(0, 70, 7)
            for row in ask(conn, same, mode="semantic", k=7, skip=skip)
        ]
        assert pages == [f"d/{i:04}.md" for i in range(0, 1750, 25)]


def test_pages__continue_each_other_whatever_is_asked(dsn: str) -> None:
    """Words as frequent as in a language, so that some queries have few good candidates and others many; short documents and long ones."""
    rng = np.random.default_rng(5)
    words = np.array(
        [f"{a}{b}{c}o" for a in "bcdfglmpt" for b in ("ar", "el", "in", "os") for c in "bdfglmnprt"]
    )
    weights = 1 / (np.arange(len(words)) + 3) ** 0.9
    sizes = [40] * 30 + [int(size) for size in rng.integers(1, 4, 1600)]
    vectors = iter(
        clustered(rng, rng.standard_normal((40, 768)).astype(np.float32) / np.sqrt(384), sum(sizes))
    )
    sources = [
        Source(
            f"d/{n:04}.md",
            [
                Passage(
                    " ".join(rng.choice(words, int(rng.choice([8, 20, 40])), p=weights / weights.sum())),
                    next(vectors),
                )
                for _ in range(size)
            ],
        )
        for n, size in enumerate(sizes)
    ]
    queries = clustered(rng, rng.standard_normal((40, 768)).astype(np.float32) / np.sqrt(384), 16)
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        load(conn, sources, rebuild=True)
        for number, vector in enumerate(queries):
            arguments = {
                "query": " ".join(rng.choice(words, (1, 2, 4, 7)[number % 4])),
                "embedding": None if number % 6 == 0 else vector,
                "fusion": ("minmax", "rrf")[number % 2],
                "per_document": (1, 3)[number // 2 % 2],
            }
            read = [
                [
                    row["chunk_id"]
                    for skip in range(0, 63, k)
                    for row in conn.execute(
                        "SELECT chunk_id FROM trecho.search(%(query)s, %(embedding)s, k => %(k)s, skip => %(skip)s,"
                        " fusion => %(fusion)s, per_document => %(per_document)s, ef_search => 1000) ORDER BY rank",
                        {**arguments, "k": k, "skip": skip},
                    )
                ]
                for k in (7, 21, 63)
            ]
            assert len(read[0]) == len(set(read[0])), arguments
            assert read[0] == read[1] == read[2], arguments
