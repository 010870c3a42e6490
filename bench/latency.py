"""Latency of search beside its floors: the same rows, the same questions, in turns, in one run."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from pgvector.psycopg import register_vector

EF_SEARCH = 200
K = 10

# Name of a figure, and by which floor it is divided.
RATIOS = [
    ("words", "raw count of OR"),
    ("words", "OR + ts_rank, top 20"),
    ("vectors", "raw KNN"),
    ("hybrid", "words + vectors"),
    ("hybrid, filter 1 %", "hybrid"),
    ("hybrid", "usual recipe (AND, RRF)"),
]


def statements(version: int) -> dict[str, str]:
    """What is timed, by name. Parameters: query, vector, any (the OR of the stock lexemes of the query)."""
    chunks = f"trecho.chunks_{version}"
    search = f"SELECT * FROM trecho.search(%(query)s, {{}}, {version}, k => {K}, mode => '{{}}'{{}})"
    return {
        "words": search.format("NULL", "lexical", ""),
        "vectors": search.format("%(vector)s", "semantic", ""),
        "hybrid": search.format("%(vector)s", "hybrid", ""),
        "hybrid, filter 1 %": search.format("%(vector)s", "hybrid", ", path_prefix => 'area-07/'"),
        "raw count of OR": f"SELECT count(*) FROM {chunks} WHERE search_vector @@ %(any)s::tsquery",
        "OR + ts_rank, top 20": f"SELECT chunk_key, content FROM {chunks} WHERE search_vector @@ %(any)s::tsquery"
        " ORDER BY ts_rank(search_vector, %(any)s::tsquery) DESC LIMIT 20",
        "raw KNN": f"SELECT chunk_key, content FROM {chunks} ORDER BY embedding <=> %(vector)s LIMIT {K}",
        "usual recipe (AND, RRF)": f"""
            WITH words AS (
                SELECT chunk_key, row_number() OVER (ORDER BY rank DESC) AS place FROM (
                    SELECT chunk_key, ts_rank_cd(search_vector, q) AS rank
                      FROM {chunks}, websearch_to_tsquery('portuguese', %(query)s) AS q
                     WHERE search_vector @@ q ORDER BY rank DESC LIMIT 40) AS w
            ), vectors AS (
                SELECT chunk_key, row_number() OVER () AS place
                  FROM (SELECT chunk_key FROM {chunks} ORDER BY embedding <=> %(vector)s LIMIT 40) AS v
            )
            SELECT c.chunk_key, c.content FROM (SELECT chunk_key, sum(1.0 / (60 + place)) AS score
              FROM (TABLE words UNION ALL TABLE vectors) AS l GROUP BY 1 ORDER BY 2 DESC LIMIT {K}) AS f
              JOIN {chunks} AS c USING (chunk_key)""",
    }


def parameters(
    conn: psycopg.Connection[Any], questions: Sequence[str], vectors: NDArray[np.float32]
) -> list[dict[str, Any]]:
    """Parameters of `statements`, one set per question."""
    quoted = "string_agg('''' || replace(replace(l, '\\', '\\\\'), '''', '''''') || '''', ' | ')"
    sets = []
    for question, vector in zip(questions, vectors, strict=True):
        row = conn.execute(
            f"SELECT {quoted} FROM unnest(tsvector_to_array(to_tsvector('portuguese', %s))) AS l".encode(),
            (question,),
        ).fetchone()
        assert row is not None
        sets.append({"query": question, "vector": vector, "any": row[0]})
    return sets


def measure(
    dsn: str, questions: Sequence[str], vectors: NDArray[np.float32], version: int = 1
) -> dict[str, dict[str, float]]:
    """Milliseconds of each statement, taken in turns in a random order. Returns: name -> p50, p95, mean."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        register_vector(conn)
        conn.execute(f"SET hnsw.ef_search = {EF_SEARCH}".encode())
        sets = parameters(conn, questions, vectors)
        asked = statements(version)
        taken: dict[str, list[float]] = {name: [] for name in asked}
        order = random.Random(1)
        for rounds in range(2):  # the first warms the caches, and is not counted
            for values in sets:
                for name in order.sample(list(asked), len(asked)):
                    start = time.perf_counter()
                    conn.execute(asked[name].encode(), values).fetchall()
                    if rounds:
                        taken[name].append((time.perf_counter() - start) * 1000)
        times = {name: _summary(values) for name, values in taken.items()}
        both = [a + b for a, b in zip(taken["words"], taken["vectors"], strict=True)]
        times["words + vectors"] = _summary(both)
        return times


def _summary(values: Sequence[float]) -> dict[str, float]:
    p50, p95 = np.percentile(values, [50, 95])
    return {"p50": float(p50), "p95": float(p95), "mean": float(np.mean(values))}


def ratios(times: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """p95 of ours through p95 of its floor."""
    return [{"of": of, "to": to, "p95": times[of]["p95"] / times[to]["p95"]} for of, to in RATIOS]


def agreement(
    dsn: str, questions: Sequence[str], vectors: NDArray[np.float32], version: int = 1
) -> dict[str, float]:
    """How much of the exact top 10 the fast answers hold. Returns: name -> 0 to 1."""
    chunks = f"trecho.chunks_{version}"
    found: dict[str, list[float]] = {"recall@10 of vectors": [], "overlap@10 of words with exact scoring": []}
    with psycopg.connect(dsn, autocommit=True) as conn:
        register_vector(conn)
        for question, vector in zip(questions, vectors, strict=True):
            near = _ids(
                conn,
                "SELECT p.chunk_id FROM"
                f" (SELECT chunk_key FROM {chunks} ORDER BY (embedding <=> %(vector)s) + 0 LIMIT 10) AS n"
                f" JOIN trecho.placements_{version} AS p USING (chunk_key)",
                {"vector": vector},
            )
            ours = _ids(
                conn,
                "SELECT chunk_id"
                f" FROM trecho.search(%(q)s, %(vector)s, {version}, mode => 'semantic', per_document => 10)",
                {"q": question, "vector": vector},
            )
            found["recall@10 of vectors"].append(len(near & ours) / max(1, len(near)))
            row = conn.execute(
                "SELECT words::text, score_sql FROM trecho.lexeme_totals,"
                " trecho._parse_query(%s, %s, false, 3000, chunk_count, 1 / sample_fraction)",
                (question, version),
            ).fetchone()
            if row is None or row[0] is None:
                continue
            best = _ids(
                conn,
                "SELECT p.chunk_id FROM (SELECT c.chunk_key"
                f" FROM {chunks} AS c WHERE c.search_vector @@ %(words)s::tsquery ORDER BY {row[1]} DESC LIMIT 10) AS n"
                f" JOIN trecho.placements_{version} AS p USING (chunk_key)",
                {"words": row[0]},
            )
            ours = _ids(
                conn,
                "SELECT chunk_id"
                f" FROM trecho.search(%(q)s, NULL, {version}, mode => 'lexical', per_document => 10)",
                {"q": question},
            )
            found["overlap@10 of words with exact scoring"].append(len(best & ours) / max(1, len(best)))
    return {name: float(np.mean(values)) for name, values in found.items()}


def _ids(conn: psycopg.Connection[Any], statement: str, values: dict[str, Any]) -> set[str]:
    return {row[0] for row in conn.execute(statement.encode(), values).fetchall()}


def throughput(
    dsn: str, questions: Sequence[str], vectors: NDArray[np.float32], seconds: float, version: int = 1
) -> list[dict[str, float]]:
    """Hybrid searches by 1 and by 8 clients at once. Returns: clients, searches per second, p95 (ms)."""
    results = []
    for clients in (1, 8):
        taken: list[float] = []
        stop = time.perf_counter() + seconds
        threads = [
            threading.Thread(
                target=_client, args=(dsn, questions, vectors, version, stop, seed, taken.append)
            )
            for seed in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results.append(
            {"clients": clients, "per_second": len(taken) / seconds, "p95": float(np.percentile(taken, 95))}
        )
    return results


def _client(
    dsn: str,
    questions: Sequence[str],
    vectors: NDArray[np.float32],
    version: int,
    stop: float,
    seed: int,
    note: Callable[[float], None],
) -> None:
    order = random.Random(seed)
    statement = statements(version)["hybrid"].encode()
    with psycopg.connect(dsn, autocommit=True) as conn:
        register_vector(conn)
        while (start := time.perf_counter()) < stop:
            i = order.randrange(len(questions))
            conn.execute(statement, {"query": questions[i], "vector": vectors[i]}).fetchall()
            note((time.perf_counter() - start) * 1000)
