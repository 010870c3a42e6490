"""What embedding costs beside the model, and how long changing the model holds anybody up.

Run it with: python -m bench.embedding [worker] [change], each in a database of its own, made and dropped.

worker: texts a second from the queue to the staging, with a server in another process that answers at once; CPU of each
party; memory of the worker on the way. change: an index of two versions with HNSW under constant search and writing;
how long searches and writers took while searches turned to the new version and while the old one was dropped, how long
the locks were seen, and the disk after. On a machine that does other things read CPU times and ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from psycopg import conninfo
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from bench.load import Passage, Source, load
from trecho import cli, embed
from trecho.db import find_dsn

ROOT = Path(__file__).resolve().parent.parent
# fmt: off
WORDS = (
    "prazo", "contrato", "escala", "plantão", "turno", "reunião", "decisão", "serviço", "banco", "conta", "cliente",
    "erro", "alerta", "servidor", "chave", "acesso", "pedido", "entrega", "nota", "fatura", "imposto", "folha",
    "férias", "viagem", "compra", "estoque", "pagamento", "recibo", "auditoria", "segredo", "rede", "disco",
)
# fmt: on
_FAST_SERVER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from misbehaving_server import MisbehavingServer
with MisbehavingServer(768, fast=True) as server:
    server.texts.update = lambda texts: None  # so that its memory and time are not the subject
    server.answered.update = lambda texts: None
    server.requests = type("Nothing", (), {"append": lambda self, item: None})()
    server.headers = type("Nothing", (), {"append": lambda self, item: None})()
    print(server.url, flush=True)
    sys.stdin.read()
"""
Connection = psycopg.Connection[dict[str, Any]]


@contextmanager
def database(base: str) -> Iterator[str]:
    """A migrated database on the server of `base`, dropped at the end. Gives its DSN."""
    name = f"bench_embedding_{time.time_ns()}"
    with psycopg.connect(base, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    dsn = conninfo.make_conninfo(base, dbname=name)
    try:
        if cli.main(["migrate", "--dsn", dsn]):
            raise SystemExit("trecho migrate failed")
        yield dsn
    finally:
        with psycopg.connect(base, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def connect(dsn: str) -> Connection:
    """A connection in autocommit mode."""
    return psycopg.connect(dsn, autocommit=True, row_factory=dict_row)


def value(conn: Connection, query: str, *parameters: Any) -> Any:
    """The only column of the only row."""
    row = conn.execute(query.encode(), parameters or None).fetchone()
    return next(iter(row.values())) if row else None


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, its ended children included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[n]) for n in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Resident memory of a process, megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def load_average() -> float:
    return round(os.getloadavg()[0], 1)


# ------------------------------------------------------------------------------------------------ the worker


def measure_worker(base: str, texts: int, workers: int) -> dict[str, Any]:
    """Texts a second into the staging; nothing is put on chunks, which is HNSW's cost and not the worker's."""
    with database(base) as dsn, connect(dsn) as conn:
        server = subprocess.Popen(
            [sys.executable, "-c", _FAST_SERVER, str(ROOT / "tests")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        os.environ["TRECHO_EMBEDDING_URL"] = server.stdout.readline().strip()
        os.environ.pop("TRECHO_EMBEDDING_KEY_FILE", None)
        os.environ["TRECHO_EMBEDDING_KEY"] = "k"
        try:
            # The preset of OpenAI: 256 texts a request, vectors in base64, as a server that is fast would be asked.
            recipe = {"provider": "openai", "model_id": "text-embedding-3-small", "dim": 768}
            conn.execute(
                "SELECT trecho.configure(%s)", (Jsonb(recipe | {"query_prefix": "", "passage_prefix": ""}),)
            )
            value(conn, "SELECT trecho._ensure_version()")
            conn.execute(
                "DROP INDEX trecho.chunks_1_words"
            )  # loading is not the subject; HNSW stays, and holds no NULL
            conn.execute(
                "INSERT INTO trecho.chunks (index_version, project, scope, source_path, kind, content, content_hash,"
                " text_hash) SELECT 1, 'default', 'docs', 'a.md', 'section', t, sha256(convert_to('a' || n, 'UTF8')),"
                " sha256(convert_to(t, 'UTF8'))"
                " FROM (SELECT n, 'Parágrafo ' || n || repeat(' sobre o prazo do contrato de entrega', 15) AS t"
                "         FROM generate_series(1, %s) AS n) AS x",
                (texts,),
            )
            conn.execute(
                "INSERT INTO trecho.placements (index_version, document_id, ordinal, chunk_key, project, branch,"
                " chunk_id, anchor, start_line, end_line)"
                " SELECT 1, 1, row_number() OVER (), c.chunk_key, c.project, 'main', c.chunk_key::text, 'a', 1, 1"
                "   FROM trecho.chunks AS c"
            )
            conn.execute("VACUUM ANALYZE trecho.chunks_1")
            conn.execute("VACUUM ANALYZE trecho.placements_1")
            return _run_worker(conn, dsn, server.pid, texts, workers)
        finally:
            server.kill()
            server.wait()


def _run_worker(conn: Connection, dsn: str, server_pid: int, texts: int, workers: int) -> dict[str, Any]:
    memory: dict[int, float] = {}
    backends: dict[int, float] = {}
    embed._apply = lambda conn, version: 0
    embed._apply_all = lambda factory, conn, version, stop: None

    def watch() -> None:
        with connect(dsn) as own:
            while not done.wait(0.2):
                for row in own.execute(
                    "SELECT pid FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name = 'trecho embed'"
                ).fetchall():
                    try:
                        backends[row["pid"]] = cpu_of(row["pid"])
                    except OSError:  # it has ended, or runs on another machine
                        continue

    def tell(count: int, total: int) -> None:
        for mark in (20_000, 100_000, texts):
            if count >= mark and mark not in memory:
                memory[mark] = round(rss_mb(os.getpid()), 1)

    done = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    server_before, own_before, began = cpu_of(server_pid), time.process_time(), time.perf_counter()
    report = embed.embed_pending(dsn, on_progress=tell, workers=workers)
    wall, own = time.perf_counter() - began, time.process_time() - own_before
    done.set()
    watcher.join()
    staged = value(conn, "SELECT count(*) FROM trecho.staged_embeddings")
    server_cpu, database_cpu = cpu_of(server_pid) - server_before, sum(backends.values())
    overhead = own + database_cpu
    return {
        "texts": texts,
        "staged": staged,
        "requests": report.provider_calls,
        "workers": workers,
        "wall_s": round(wall, 1),
        "per_s": round(staged / wall),
        "cpu_worker_s": round(own, 1),
        "cpu_database_s": round(database_cpu, 1),
        "cpu_server_s": round(server_cpu, 1),
        # What two cores would do that had nothing else to do, the provider not counted.
        "per_s_on_two_cores": round(2 * staged / overhead) if overhead else None,
        "rss_mb_at": {str(mark): size for mark, size in memory.items()},
    }


# ------------------------------------------------------------------------------------------------ changing the model


class Clock:
    """Latencies, with the time each began."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float]] = []
        self.errors: list[str] = []

    def run(self, stop: threading.Event, work: Callable[[], object]) -> None:
        while not stop.is_set():
            began = time.perf_counter()
            try:
                work()
            except psycopg.Error as error:
                self.errors.append(str(error).partition("\n")[0])
            self.rows.append((began, time.perf_counter() - began))

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Milliseconds of what ran at some time between these."""
        ran = sorted(took * 1000 for began, took in self.rows if began < end and began + took > begin)
        if not ran:
            return {"count": 0}
        return {
            "count": len(ran),
            "p50_ms": round(ran[len(ran) // 2], 1),
            "p95_ms": round(ran[int(len(ran) * 0.95)], 1),
            "max_ms": round(ran[-1], 1),
        }


class LockWatch:
    """Looks again and again which locks of this kind are held; a lock seen once counts as the pause between looks."""

    QUERY = (
        "SELECT l.pid, coalesce(l.relation::regclass::text, 'versions') AS what FROM pg_locks AS l"
        " WHERE l.granted AND l.pid <> pg_backend_pid()"
        "   AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())"
        "   AND ((l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'"
        "         AND l.relation IN ('trecho.chunks'::regclass, 'trecho.placements'::regclass))"
        "     OR (l.locktype = 'advisory' AND l.mode = 'ExclusiveLock'))"
    )

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.longest: dict[str, float] = {}
        self.looks = 0
        self.seconds = 0.0

    def _look(self) -> None:
        seen: dict[tuple[int, str], tuple[float, float]] = {}
        with connect(self._dsn) as conn:
            began = before = time.perf_counter()
            while not self._stop.is_set():
                now_held = {(row["pid"], row["what"]) for row in conn.execute(self.QUERY.encode()).fetchall()}
                now = time.perf_counter()
                for key in now_held:
                    first = seen[key][0] if key in seen else before
                    seen[key] = (first, now)
                    self.longest[key[1]] = max(self.longest.get(key[1], 0.0), now - first)
                for key in set(seen) - now_held:
                    del seen[key]
                self.looks += 1
                before = now
            self.seconds = time.perf_counter() - began

    def __enter__(self) -> LockWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def report(self) -> dict[str, Any]:
        return {
            "ms_between_looks": round(1000 * self.seconds / max(self.looks, 1), 1),
            "longest_ms": {what: round(1000 * seconds, 1) for what, seconds in self.longest.items()},
        }


def sources(count: int, seed: int = 1) -> Iterator[Source]:
    """Documents of ten passages with words of Portuguese and clustered vectors."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((200, 768)).astype(np.float32)
    for number in range(count // 10):
        centre = centres[rng.integers(0, len(centres), 10)]
        vectors = centre + 0.6 * rng.standard_normal((10, 768)).astype(np.float32)
        vectors[:, 384:] = 0  # as the model of the default recipe gives them
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        passages = [
            Passage(
                f"Parágrafo {number}-{part}: " + " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), 60)),
                v,
            )
            for part, v in enumerate(vectors)
        ]
        yield Source(f"doc{number}.md", passages)


def copy_version(conn: Connection, old: int) -> int:
    """A version of a new model, filled with the rows of the old one; its index is built after, as any load does."""
    conn.execute("SELECT trecho.configure(%s)", (Jsonb({"model_version": "2"}),))
    new = int(value(conn, "SELECT trecho.begin_version_build()"))
    conn.execute("SET ROLE trecho_owner")
    conn.execute(f"DROP INDEX trecho.chunks_{new}_words, trecho.chunks_{new}_vectors")
    columns = (
        "project, scope, source_path, session_id, kind, symbol, language, context, content, chunk_max_bytes,"
        " content_hash, text_hash, quarantined, embedding, chunk_key"
    )
    conn.execute(
        f"INSERT INTO trecho.chunks_{new} (index_version, {columns}) SELECT {new}, {columns} FROM trecho.chunks_{old}"
    )
    places = "document_id, ordinal, chunk_key, project, branch, chunk_id, anchor, start_line, end_line"
    conn.execute(
        f"INSERT INTO trecho.placements_{new} (index_version, {places})"
        f" SELECT {new}, {places} FROM trecho.placements_{old}"
    )
    conn.execute(
        "INSERT INTO trecho.indexed_documents (index_version, document_id, blob_sha, chunk_count)"
        f" SELECT {new}, document_id, blob_sha, chunk_count FROM trecho.indexed_documents WHERE index_version = {old}"
    )
    conn.execute("SET maintenance_work_mem = '1GB'")
    conn.execute("SELECT trecho._create_search_indexes(%s)", (new,))
    conn.execute("RESET ROLE")
    conn.execute(f"VACUUM ANALYZE trecho.chunks_{new}")
    conn.execute(f"VACUUM ANALYZE trecho.placements_{new}")
    return new


def measure_change(base: str, chunks: int, searchers: int) -> dict[str, Any]:
    """The flip and the drop under constant search and writing."""
    with database(base) as dsn, connect(dsn) as conn:
        load(conn, sources(chunks), rebuild=True)
        conn.execute("CHECKPOINT")
        one = value(conn, "SELECT pg_database_size(current_database())")
        new = copy_version(conn, 1)
        conn.execute("SELECT trecho.refresh_lexeme_stats(%s)", (new,))
        conn.execute("CHECKPOINT")
        both = value(conn, "SELECT pg_database_size(current_database())")
        result = _change_under_load(conn, dsn, new, searchers)
        conn.execute("CHECKPOINT")
        after = value(conn, "SELECT pg_database_size(current_database())")
        return {
            "chunks": chunks,
            **result,
            "disk_mb": {"one": one >> 20, "both": both >> 20, "after_drop": after >> 20},
            "disk_after_over_before": round(after / one, 3),
        }


def _change_under_load(  # noqa: PLR0915
    conn: Connection, dsn: str, new: int, searchers: int
) -> dict[str, Any]:
    stop = threading.Event()
    search, write = Clock(), Clock()
    mixed: list[str] = []
    vectors = np.random.default_rng(7).standard_normal((50, 768)).astype(np.float32)
    vectors[:, 384:] = 0

    def searching() -> None:
        rng = np.random.default_rng(threading.get_ident() % 1000)
        with connect(dsn) as own:

            def once() -> None:
                recipe = value(own, "SELECT index_version FROM trecho.query_recipe()")
                vector = "[" + ",".join(f"{n:.5f}" for n in vectors[rng.integers(0, 50)]) + "]"
                words = " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), 3))
                rows = own.execute(
                    "SELECT chunk_id FROM trecho.search(%s, %s::text::vector, %s, k => 10)",
                    (words, vector, recipe),
                ).fetchall()
                if len(rows) != 10:
                    mixed.append(f"{len(rows)} rows")

            search.run(stop, once)

    def writing() -> None:
        with connect(dsn) as own:
            numbers = iter(range(1_000_000))

            def once() -> None:
                number = next(numbers)
                own.execute(
                    "SELECT trecho.put_document('docs', %s, %s)",
                    (f"Um texto novo {number}.", f"novo{number % 20}.md"),
                )
                time.sleep(0.02)

            write.run(stop, once)

    threads = [threading.Thread(target=searching) for _ in range(searchers)]
    threads.append(threading.Thread(target=writing))
    for thread in threads:
        thread.start()
    try:
        time.sleep(20)
        phases: dict[str, tuple[float, float]] = {}
        since = value(conn, "SELECT clock_timestamp() - interval '1 hour'")
        marks = [time.perf_counter()]
        locks: dict[str, Any] = {}
        tries: dict[str, int] = {}
        calls: dict[str, float] = {}
        phases["before"] = (marks[0] - 15, marks[0])
        for name, query, parameters in (
            ("activate", "SELECT trecho.activate_version(%s, written_since => %s)", (new, since)),
            ("drop", "SELECT trecho.drop_version(%s)", (1,)),
        ):
            began = time.perf_counter()
            tries[name] = 0
            with LockWatch(dsn) as watch:
                time.sleep(0.3)
                while True:
                    tries[name] += 1
                    called = time.perf_counter()
                    try:
                        value(conn, query, *parameters)
                        break
                    except psycopg.errors.LockNotAvailable:
                        time.sleep(0.2)
                calls[name] = round(1000 * (time.perf_counter() - called), 1)
                time.sleep(0.3)
            locks[name] = watch.report()
            phases[name] = (began, time.perf_counter())
            time.sleep(10)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return {
        "load_average": load_average(),
        "tries": tries,
        "last_call_ms": calls,
        "locks": locks,
        "searches": {name: search.between(*span) for name, span in phases.items()},
        "writes_with_a_pause_of_20_ms": {name: write.between(*span) for name, span in phases.items()},
        "failed_searches": search.errors[:5],
        "short_answers": mixed[:5],
        "failed_writes": write.errors[:5],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", metavar="worker|change", help="default: both")
    parser.add_argument("--texts", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--chunks", type=int, default=50_000)
    parser.add_argument("--searchers", type=int, default=2)
    parser.add_argument(
        "--dsn", help="superuser's DSN of any database of the server; databases are made and dropped"
    )
    args = parser.parse_args()
    what = args.what or ["worker", "change"]
    if set(what) - {"worker", "change"}:
        parser.error("worker and change can be measured")
    base = find_dsn(args.dsn)
    results: dict[str, Any] = {}
    if "change" in what:
        results["change"] = measure_change(base, args.chunks, args.searchers)
    if "worker" in what:
        results["worker"] = measure_worker(base, args.texts, args.workers) | {"load_average": load_average()}
    print(json.dumps(results, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
