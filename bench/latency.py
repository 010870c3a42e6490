"""Latency of search beside its floors: the same rows, the same questions, in turns, in one run."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from pgvector.psycopg import register_vector

EF_SEARCH = 300
K = 10

# A figure, the floor it is divided by, and what p95 of the one through p95 of the other may be; None: no bound.
BOUNDS: list[tuple[str, str, float | None]] = [
    ("words", "raw count of OR", 0.25),
    ("words", "OR + ts_rank, top 20", 0.15),
    ("vectors", "raw KNN", 1.2),
    ("hybrid", "words + vectors", 1.4),
    ("hybrid, filter 1 %", "hybrid", 1.0),
    ("hybrid", "usual recipe (AND, RRF)", None),
]
BOUND_LARGE = 0.1  # words through the raw count, at 500,000 chunks
BOUND_RECALL = 0.97
BOUND_THROUGHPUT = 1.6  # 8 clients through one: searches a second, at least
BOUND_CROWD = 6.0  # and p95, at most
WORDS_ALONE = ("words", "raw count of OR", "OR + ts_rank, top 20")


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
    dsn: str,
    questions: Sequence[str],
    vectors: NDArray[np.float32],
    version: int = 1,
    names: Sequence[str] | None = None,
) -> dict[str, dict[str, float]]:
    """Milliseconds of each statement, taken in turns in a random order. names: only these statements.

    Returns: name -> p50, p95, mean; and cpu_p50, cpu_p95, processor time of the server process, where the server runs
    on this machine: on a busy one, what a statement costs shows there, and how long it waited for others does not.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        register_vector(conn)
        conn.execute(f"SET hnsw.ef_search = {EF_SEARCH}".encode())
        sets = parameters(conn, questions, vectors)
        asked = {name: s for name, s in statements(version).items() if names is None or name in names}
        clock = _processor_clock(conn)
        taken: dict[str, list[float]] = {name: [] for name in asked}
        burnt: dict[str, list[float]] = {name: [] for name in asked}
        order = random.Random(1)
        for rounds in range(2):  # the first warms the caches, and is not counted
            for values in sets:
                for name in order.sample(list(asked), len(asked)):
                    before, start = clock(), time.perf_counter()
                    conn.execute(asked[name].encode(), values).fetchall()
                    took, used = time.perf_counter() - start, clock() - before
                    if rounds:
                        taken[name].append(took * 1000)
                        burnt[name].append(used)
        if {"words", "vectors"} <= set(asked):
            for lists in (taken, burnt):
                lists["words + vectors"] = [
                    a + b for a, b in zip(lists["words"], lists["vectors"], strict=True)
                ]
        times = {name: _summary(values) for name, values in taken.items()}
        if any(burnt[name] and max(burnt[name]) > 0 for name in burnt):
            for name, used_by in burnt.items():
                times[name] |= {"cpu_" + key: value for key, value in _summary(used_by).items()}
        return times


def _processor_clock(conn: psycopg.Connection[Any]) -> Callable[[], float]:
    """Milliseconds of processor time that the server process of a connection has used; 0 where it cannot be seen."""
    path = Path(f"/proc/{conn.info.backend_pid}/schedstat")
    try:
        local = path.with_name("comm").read_text(encoding="ascii").startswith("postgres")
    except OSError:
        local = False
    if not local:
        return lambda: 0.0
    return lambda: int(path.read_text(encoding="ascii").split()[0]) / 1e6


def _summary(values: Sequence[float]) -> dict[str, float]:
    p50, p95 = np.percentile(values, [50, 95])
    return {"p50": float(p50), "p95": float(p95), "mean": float(np.mean(values))}


def ratios(times: dict[str, dict[str, float]], bound_of_words: float | None = None) -> list[dict[str, Any]]:
    """p95 of ours through p95 of its floor, beside the bound. bound_of_words: instead of the one to the raw count."""
    rows: list[dict[str, Any]] = []
    for of, to, bound in BOUNDS:
        if of not in times or to not in times:
            continue
        row: dict[str, Any] = {"of": of, "to": to, "p95": times[of]["p95"] / times[to]["p95"], "bound": bound}
        if bound_of_words is not None and to == "raw count of OR":
            row["bound"] = bound_of_words
        if "cpu_p95" in times[of]:
            row["cpu_p95"] = times[of]["cpu_p95"] / times[to]["cpu_p95"]
        rows.append(row)
    return rows


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
                "SELECT words::text, base_sql || ' + ' || rest_sql FROM trecho.lexeme_totals,"
                " trecho._read_query(%s, %s, false, 3000, chunk_count, 1 / sample_fraction)",
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
