"""What a sync costs beside its floor, on the same files, rows and server in one run.

Run it with: python -m bench.reconcile [--files N].

Floors: reading and hashing the files (for a pass with nothing to do); one COPY of the same rows into tables of the same
shape with the same indexes, built after (for a first pass).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from psycopg import conninfo, sql

from trecho import cli
from trecho.config import folder_source
from trecho.db import Connection, find_dsn
from trecho.embed import embed_pending
from trecho.providers.base import Outcome as VectorOutcome
from trecho.reconcile import Options, Outcome, Target, run_pass
from trecho.sources import read_folder

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from handbook import write_handbook  # noqa: E402

MAX_BYTES = 1 << 19


class Instant:
    """A provider that answers at once: a random vector of length 1 for each text."""

    name = "instant"
    leaves_process = False
    concurrency = 2
    batch_texts = 256
    batch_bytes = 1 << 20

    def __init__(self) -> None:
        self.calls = 0
        self.texts = 0
        self.stopping = threading.Event()
        self._rng = np.random.default_rng(1)

    def embed_passages(self, texts: Sequence[str]) -> list[VectorOutcome]:
        self.calls += 1
        self.texts += len(texts)
        vectors = self._rng.standard_normal((len(texts), 768)).astype(np.float32)
        return list(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    def embed_query(self, texts: Sequence[str]) -> Any:
        return np.ones((len(texts), 768), dtype=np.float32)

    def probe(self) -> Any:
        return np.ones(768, dtype=np.float32)

    def close(self) -> None:
        """Nothing to close."""


def timed(work: Callable[[], Any]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def read_and_hash(folder: Path) -> None:
    for path in sorted(folder.rglob("*.md")):
        hashlib.sha256(path.read_bytes()).digest()


def copy_rows(conn: psycopg.Connection[Any]) -> float:
    """Seconds to COPY the rows of the active version into tables of the same shape, then build the same indexes."""
    for name in ("chunks_1", "placements_1"):
        conn.execute(sql.SQL("DROP TABLE IF EXISTS bench_{}").format(sql.SQL(name)))
    conn.execute(
        "CREATE TABLE bench_chunks_1 (LIKE trecho.chunks_1 INCLUDING ALL EXCLUDING INDEXES)"
        " WITH (toast_tuple_target = 4080)"
    )
    conn.execute("CREATE TABLE bench_placements_1 (LIKE trecho.placements_1 INCLUDING ALL EXCLUDING INDEXES)")
    columns = sql.SQL(
        "index_version, chunk_key, project, scope, source_path, session_id, kind, symbol, language, context, content,"
        " chunk_max_bytes, content_hash, text_hash, quarantined, created_at, embedding"
    )
    data: dict[str, bytes] = {}
    for name, what in (("chunks_1", columns), ("placements_1", sql.SQL("*"))):
        query = sql.SQL("COPY (SELECT {} FROM trecho.{}) TO STDOUT (FORMAT binary)").format(
            what, sql.Identifier(name)
        )
        with conn.cursor().copy(query) as copy:
            data[name] = b"".join(bytes(block) for block in copy)
    began = time.perf_counter()
    with conn.cursor().copy(
        sql.SQL("COPY bench_chunks_1 ({}) FROM STDIN (FORMAT binary)").format(columns)
    ) as copy:
        copy.write(data["chunks_1"])
    with conn.cursor().copy("COPY bench_placements_1 FROM STDIN (FORMAT binary)") as copy:
        copy.write(data["placements_1"])
    for statement in conn.execute(
        "SELECT regexp_replace(indexdef, ' INDEX \\S+ ON trecho\\.', ' INDEX ON bench_') AS ddl FROM pg_indexes"
        " WHERE schemaname = 'trecho' AND tablename IN ('chunks_1', 'placements_1')"
    ).fetchall():
        conn.execute(statement[0])
    took = time.perf_counter() - began
    conn.execute("DROP TABLE bench_chunks_1, bench_placements_1")
    return took


def hnsw_build(conn: psycopg.Connection[Any]) -> float:
    """Seconds to build the HNSW index of the active version once."""
    row = conn.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'chunks_1_vectors'").fetchone()
    assert row is not None
    conn.execute("DROP INDEX trecho.chunks_1_vectors")
    return timed(lambda: conn.execute(row[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--sections", type=int, default=11, help="chunks of a file, less one (default 11)")
    parser.add_argument(
        "--dsn", help="superuser's DSN of any database of the server; a database is made and dropped"
    )
    args = parser.parse_args()
    base = find_dsn(args.dsn)
    name = f"bench_reconcile_{time.time_ns()}"
    with psycopg.connect(base, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            with tempfile.TemporaryDirectory() as folder:
                print_table(
                    measure(
                        conninfo.make_conninfo(base, dbname=name), Path(folder), args.files, args.sections
                    )
                )
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def measure(dsn: str, folder: Path, files: int, sections: int) -> dict[str, Any]:
    """All figures of one run. Seconds, except where the name says otherwise."""
    assert cli.main(["migrate", "--dsn", dsn]) == 0
    write_handbook(folder, files, sections)
    source = folder_source(folder, "docs", "bench")
    target = Target("default", "main", "bench", "docs")
    provider = Instant()

    def embed(conn: Connection, tell: Callable[[int, int], None]) -> tuple[int, int]:
        report = embed_pending(dsn, provider=provider, on_progress=tell)  # type: ignore[arg-type]
        return report.texts, report.provider_calls

    def sync(with_vectors: bool = True) -> Outcome:
        return run_pass(
            dsn, target, read_folder(source, MAX_BYTES), Options(embed=embed if with_vectors else None)
        )

    figures: dict[str, Any] = {"files": files}
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute('SELECT trecho.configure(\'{"model_id": "instant", "dim": 768}\')')
        figures["first pass, no vectors"] = timed(lambda: sync(False))
        figures["COPY of the same rows, no vectors"] = copy_rows(conn)
        figures["chunks"] = conn.execute("SELECT count(*) FROM trecho.chunks").fetchone()[0]  # type: ignore[index]
        conn.execute("SELECT trecho.drop_project('default')")
        conn.execute("VACUUM FULL trecho.chunks_1")
        figures["first pass with vectors at once"] = timed(sync)
        figures["raw HNSW build over the same rows"] = hnsw_build(conn)
        figures["read and hash"] = statistics.median(timed(lambda: read_and_hash(folder)) for _ in range(5))
        figures["pass with nothing to do"] = statistics.median(timed(sync) for _ in range(5))
        before = provider.texts
        for number, path in enumerate(sorted(folder.rglob("*.md"))[:: max(1, files // 20)][:20]):
            head, mark, rest = path.read_text(encoding="utf-8").partition("\n## Parte 2")
            path.write_text(head + mark + rest.replace(". ", f". Palavra{number} ", 1), encoding="utf-8")
        figures["a word in 20 files"] = timed(sync)
        figures["texts embedded for it"] = provider.texts - before
    return figures


def print_table(figures: dict[str, Any]) -> None:
    """The figures, the ratios, and JSON in bench/results."""
    ratios = {
        "first pass / COPY, no vectors (bound 2)": figures["first pass, no vectors"]
        / figures["COPY of the same rows, no vectors"],
        "nothing to do / read and hash (bound 3)": figures["pass with nothing to do"]
        / figures["read and hash"],
        "first pass with vectors, less one HNSW build": figures["first pass with vectors at once"]
        - figures["raw HNSW build over the same rows"],
    }
    for key, number in {**figures, **ratios}.items():
        print(f"{key:<48} {number:>10.3f}" if isinstance(number, float) else f"{key:<48} {number:>10}")
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    (results / "reconcile.json").write_text(
        json.dumps({**figures, **ratios}, indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
