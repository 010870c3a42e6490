"""Bytes per chunk and what a build of the indexes costs: `python -m bench.sizing --dsn SUPERUSER` (docs/sizing.md).

Times are CPU seconds of the backend, so that a busy machine changes them little.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.__main__ import _database
from bench.corpus import Corpus, faquad
from bench.load import load
from bench.vectors import VectorCache

RESULTS = Path(__file__).parent / "results"

# What a chunk costs, by relation; index and table of TOAST together.
SIZES = """
SELECT c.relname AS name, pg_relation_size(c.oid) AS heap,
       coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0) AS toast, pg_indexes_size(c.oid) AS indexes
  FROM pg_class AS c
 WHERE c.relnamespace = 'trecho'::regnamespace AND c.relkind = 'r'
 ORDER BY pg_total_relation_size(c.oid) DESC
"""
INDEXES = """
SELECT i.indexrelid::regclass::text AS name, pg_get_indexdef(i.indexrelid) AS definition,
       pg_relation_size(i.indexrelid) AS bytes
  FROM pg_index AS i WHERE i.indrelid = 'trecho.chunks_1'::regclass ORDER BY 1
"""
CPU = """
CREATE FUNCTION pg_temp.cpu() RETURNS double precision LANGUAGE plpython3u AS
$$import resource
used = resource.getrusage(resource.RUSAGE_SELF)
return used.ru_utime + used.ru_stime$$
"""


def measure(dsn: str, corpus: Corpus, size: int, memories: list[str]) -> dict[str, Any]:
    """Load that many chunks and build their indexes, HNSW once for each maintenance_work_mem (the last one stays)."""
    notices: list[str] = []
    with _database(dsn) as inside, psycopg.connect(inside, autocommit=True) as conn:
        conn.add_notice_handler(lambda diag: notices.append(diag.message_primary or ""))
        conn.execute(CPU)
        definitions = {name: text for name, text, _ in conn.execute(INDEXES).fetchall()}
        words, vectors = "trecho.chunks_1_words", "trecho.chunks_1_vectors"
        for name in (words, vectors):
            conn.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(*name.split("."))))
        began = _cpu(conn)
        loaded = load(conn, corpus.sources(size))
        result: dict[str, Any] = {"chunks": loaded, "load_cpu_seconds": round(_cpu(conn) - began, 1)}
        conn.execute("SET max_parallel_maintenance_workers = 0")
        began = _cpu(conn)
        conn.execute(definitions[words])
        result["gin_cpu_seconds"] = round(_cpu(conn) - began, 1)
        result["hnsw"] = []
        for memory in memories:
            conn.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(sql.Identifier(*vectors.split("."))))
            conn.execute(sql.SQL("SET maintenance_work_mem = {}").format(sql.Literal(memory)))
            notices.clear()
            began = _cpu(conn)
            conn.execute(definitions[vectors])
            fitted = [int(m[1]) for n in notices if (m := re.search(r"after (\d+) tuples", n))]
            result["hnsw"].append(
                {
                    "maintenance_work_mem": memory,
                    "cpu_seconds": round(_cpu(conn) - began, 1),
                    "vectors_in_memory": fitted[0] if fitted else loaded,
                }
            )
            print(size, result["hnsw"][-1], flush=True)
        result["definition"] = definitions[vectors]
        row = conn.execute(
            "SELECT avg(octet_length(c.content) + octet_length(c.context)), avg(pg_column_size(c.search_vector)),"
            " pg_database_size(current_database()) FROM trecho.chunks AS c"
        ).fetchone()
        assert row is not None
        result |= {"text_bytes": round(row[0]), "tsvector_bytes": round(row[1]), "database_bytes": row[2]}
        result["tables"] = {
            name: {"heap": heap, "toast": toast, "indexes": indexes}
            for name, heap, toast, indexes in conn.execute(SIZES).fetchall()
            if heap + toast + indexes > loaded * 2
        }
        result["indexes"] = {name: size for name, _, size in conn.execute(INDEXES).fetchall()}
    return result


def _cpu(conn: psycopg.Connection[Any]) -> float:
    row = conn.execute("SELECT pg_temp.cpu()").fetchone()
    assert row is not None
    return float(row[0])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description=__doc__)
    parser.add_argument("--dsn", required=True, help="superuser; databases are made and dropped")
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000], metavar="N")
    parser.add_argument(
        "--memory",
        nargs="+",
        default=["64MB", "1GB"],
        metavar="SIZE",
        help="maintenance_work_mem, each in turn",
    )
    args = parser.parse_args()
    source = faquad()
    if source is None:
        parser.error("FaQuAD does not lie beside the repository")
    cache = VectorCache(RESULTS / "vectors.sqlite")
    passages = cache.passages(["passage: " + text for text in source.passages])
    results = []
    for size in args.sizes:
        # The dear build, with memory that does not suffice, is measured on the smallest size alone.
        memories = args.memory if size == min(args.sizes) else args.memory[-1:]
        results.append(measure(args.dsn, Corpus(source, passages), size, memories))
        print(json.dumps(results[-1], indent=2), flush=True)
    (RESULTS / "sizing.json").write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
