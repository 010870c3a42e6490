"""What a sync costs beside its floors, on the same files, rows and server in one run.

    python -m bench.reconcile            # 2,000 files of 12 chunks; with --folder, a folder of real ones
    python -m bench.reconcile --quick    # 200 files
    python -m bench.reconcile --memory   # only the memory of a client that publishes 10,000 changed documents

Floors: reading and hashing the files (a pass with nothing to do); one COPY of the same rows into tables of the same
shape with the same indexes built after it (a first pass without vectors); reading, splitting, made-up vectors and one
COPY with a tsvector (a first pass with vectors; pgai and cocoindex took 5.7 and 8.4 times as long as that on one
machine); one HNSW build over the same rows.

Every figure comes twice: seconds on the clock, and seconds of CPU of client and server together, which is what to read
on a machine that is not quiet. The CPU of the server is that of the whole of it, so use one that nobody else uses; it
is left out where the server's processes cannot be seen.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from psycopg import conninfo, sql

from trecho import cli
from trecho.config import folder_source
from trecho.db import Connection, find_dsn
from trecho.embed import Only, embed_pending
from trecho.providers.base import Outcome as VectorOutcome
from trecho.reconcile import Options, Outcome, Target, run_pass
from trecho.sources import read_folder

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from handbook import write_handbook  # noqa: E402

MAX_BYTES = 1 << 19
ROUNDS = 5
# What the faster peer (pgai) took for a first index, in floors of this kind, when the bounds were set.
PEER_FLOORS = 5.7
_TICKS = os.sysconf("SC_CLK_TCK")


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
        return list(unit_vectors(self._rng, len(texts)))

    def embed_query(self, texts: Sequence[str]) -> Any:
        return np.ones((len(texts), 768), dtype=np.float32)

    def probe(self) -> Any:
        return np.ones(768, dtype=np.float32)

    def close(self) -> None:
        """Nothing to close."""


def unit_vectors(rng: np.random.Generator, count: int) -> Any:
    """(count, 768) float32, each of length 1."""
    vectors = rng.standard_normal((count, 768)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# --------------------------------------------------------------------------------------------------- clock and CPU


def _stat(pid: int | str) -> tuple[int, int]:
    """Parent of a process, and the CPU ticks of it and of the children it has waited for."""
    text = Path(f"/proc/{pid}/stat").read_text()
    parts = text[text.rindex(")") + 2 :].split()
    return int(parts[1]), sum(int(part) for part in parts[11:15])


@dataclass
class Clock:
    """Seconds, and seconds of CPU of this process, its children and the server."""

    postmaster: int | None
    figures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, conn: psycopg.Connection[Any]) -> Clock:
        """The one for the server of a connection."""
        row = conn.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        try:
            parent, _ = _stat(row[0])
            name = Path(f"/proc/{row[0]}/comm").read_text().strip()
        except OSError:
            return cls(None)
        return cls(
            parent if name == "postgres" and conn.info.host in ("127.0.0.1", "localhost", "") else None
        )

    def cpu(self) -> float:
        """CPU so far."""
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        total = sum(usage.ru_utime + usage.ru_stime for usage in own)
        if self.postmaster is not None:
            time.sleep(0.05)  # what has just ended is waited for
            for name in os.listdir("/proc"):
                if name.isdigit():
                    try:
                        parent, ticks = _stat(name)
                    except (OSError, ValueError):
                        continue
                    if self.postmaster in (parent, int(name)):
                        total += ticks / _TICKS
        return total

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Record what happens inside."""
        cpu, began = self.cpu(), time.perf_counter()
        yield
        took = time.perf_counter() - began
        self.record(name, took, self.cpu() - cpu)

    def record(self, name: str, seconds: float, cpu: float) -> None:
        """Record one figure; the median where it is recorded in several rounds is up to the caller."""
        self.figures[name] = seconds
        self.figures[f"{name}, CPU"] = cpu

    def rounds(self, works: dict[str, Callable[[], Any]]) -> None:
        """Each work ROUNDS times, by turns: medians."""
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for _ in range(ROUNDS):
            for name, work in works.items():
                cpu, began = self.cpu(), time.perf_counter()
                work()
                taken[name].append((time.perf_counter() - began, self.cpu() - cpu))
        for name, pairs in taken.items():
            self.record(name, statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs))


# ------------------------------------------------------------------------------------------------------------ floors


def read_and_hash(folder: Path) -> None:
    for path in sorted(folder.rglob("*.md")):
        hashlib.sha256(path.read_bytes()).digest()


_COPIED = {
    "blobs": "*",
    "documents": "document_id, project, branch, source_set, scope, source_path, session_id, doc_id, wanted_doc_id,"
    " doc_id_claimed, title, language, metadata, blob_sha, diverged, revision, updated_at",
    "chunks_1": "index_version, chunk_key, project, scope, source_path, session_id, kind, symbol, language, context,"
    " content, chunk_max_bytes, content_hash, text_hash, quarantined, created_at, embedding",
    "placements_1": "*",
    "indexed_documents": "*",
}


def copy_rows(conn: psycopg.Connection[Any], clock: Clock, name: str) -> None:
    """COPY what is published into tables of the same shape, then build the same indexes."""
    data: dict[str, bytes] = {}
    for table, columns in _COPIED.items():
        conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(f"bench_{table}")))
        conn.execute(
            sql.SQL("CREATE TABLE {} (LIKE trecho.{} INCLUDING ALL EXCLUDING INDEXES)").format(
                sql.Identifier(f"bench_{table}"), sql.Identifier(table)
            )
        )
        query = sql.SQL("COPY (SELECT {} FROM trecho.{}) TO STDOUT (FORMAT binary)").format(
            sql.SQL(columns), sql.Identifier(table)
        )
        with conn.cursor().copy(query) as copy:
            data[table] = b"".join(bytes(block) for block in copy)
    conn.execute("ALTER TABLE bench_chunks_1 SET (toast_tuple_target = 4080)")
    indexes = [
        row[0]
        for table in _COPIED
        for row in conn.execute(
            "SELECT regexp_replace(indexdef, ' INDEX \\S+ ON trecho\\.', ' INDEX ON bench_') FROM pg_indexes"
            " WHERE schemaname = 'trecho' AND tablename = %s",
            (table,),
        ).fetchall()
    ]
    with clock.timing(name):
        for table, columns in _COPIED.items():
            names = sql.SQL("") if columns == "*" else sql.SQL("({})").format(sql.SQL(columns))
            into = sql.SQL("COPY {} {} FROM STDIN (FORMAT binary)").format(
                sql.Identifier(f"bench_{table}"), names
            )
            with conn.cursor().copy(into) as copy:
                copy.write(data[table])
        for statement in indexes:
            conn.execute(statement)
    for table in _COPIED:
        conn.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"bench_{table}")))


def bare_pipeline(conn: psycopg.Connection[Any], folder: Path) -> None:
    """The least that any pipeline does: read, split at headings, made-up vectors, one COPY with a tsvector."""
    rng = np.random.default_rng(1)
    conn.execute(
        "CREATE TABLE bench_bare (path text, n int, content text, embedding vector(768),"
        " words tsvector GENERATED ALWAYS AS (to_tsvector('portuguese', content)) STORED)"
    )
    into = "COPY bench_bare (path, n, content, embedding) FROM STDIN (FORMAT binary)"
    with conn.cursor().copy(into) as copy:
        copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
        for path in sorted(folder.rglob("*.md")):
            pieces = path.read_text(encoding="utf-8", errors="replace").replace("\0", "").split("\n## ")
            vectors = unit_vectors(rng, len(pieces)).astype(">f4")
            for number, piece in enumerate(pieces):
                fields = (
                    str(path).encode(),
                    struct.pack("!i", number),
                    piece.encode(),
                    struct.pack("!HH", 768, 0) + vectors[number].tobytes(),
                )
                row = b"".join(struct.pack("!i", len(field)) + field for field in fields)
                copy.write(struct.pack("!h", len(fields)) + row)
        copy.write(struct.pack("!h", -1))
    conn.execute("DROP TABLE bench_bare")


def hnsw_build(conn: psycopg.Connection[Any]) -> None:
    """Build the HNSW index of the active version once more, with the memory that a sync gives it."""
    row = conn.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'chunks_1_vectors'").fetchone()
    assert row is not None
    conn.execute("SET maintenance_work_mem = '512MB'")
    conn.execute(row[0].replace("chunks_1_vectors", "bench_vectors"))
    conn.execute("DROP INDEX trecho.bench_vectors")


def index_builds(conn: psycopg.Connection[Any], clock: Clock, of: str = "") -> None:
    """Record the seconds that syncs spent on index builds since the statistics were reset, then the same builds alone.

    of: begins the names of the figures. Two HNSW builds of a minute differ by more than the rest of a sync takes.
    """
    row = conn.execute(
        "SELECT total_time / 1000 FROM pg_stat_user_functions WHERE funcname = '_build_search_indexes'"
    ).fetchone()
    assert row is not None
    with clock.timing(f"{of}raw HNSW build"):
        hnsw_build(conn)
    with clock.timing(f"{of}raw word index and ANALYZE"):
        conn.execute("CREATE INDEX bench_words ON trecho.chunks_1 USING gin (search_vector)")
        conn.execute("ANALYZE trecho.chunks_1")
    conn.execute("DROP INDEX trecho.bench_words")
    clock.figures[f"{of}index builds within the first index"] = row[0]


# ------------------------------------------------------------------------------------------------------------ the run


@contextmanager
def database(dsn: str, migrated: bool = True) -> Iterator[str]:
    """DSN of a new database that times its functions, migrated unless it is for another tool, dropped afterwards."""
    name = f"bench_reconcile_{time.time_ns()}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            inside = conninfo.make_conninfo(dsn, dbname=name)
            admin.execute(
                sql.SQL("ALTER DATABASE {} SET track_functions = 'pl'").format(sql.Identifier(name))
            )
            if migrated:
                assert cli.main(["migrate", "--dsn", inside]) == 0
            yield inside
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


# A child's ru_maxrss counts what its parent had before exec, so the command reads its own high-water mark.
_COMMAND = """
import sys
from trecho import cli
code = cli.main(sys.argv[2:])
with open("/proc/self/status") as status, open(sys.argv[1], "w") as out:
    out.write(next(line for line in status if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""


def process(*args: str) -> tuple[float, float, float]:
    """Seconds, seconds of CPU and the most memory (MiB) of a trecho command."""
    with tempfile.NamedTemporaryFile("r") as mark:
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", _COMMAND, mark.name, *args],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plpython")])},
        ) as command:
            _, status, usage = os.wait4(command.pid, 0)
            command.returncode = os.waitstatus_to_exitcode(status)
        took = time.perf_counter() - began
        assert command.returncode == 0, args
        return took, usage.ru_utime + usage.ru_stime, int(mark.read()) / 1024


def edit_twenty(folder: Path, files: Sequence[Path]) -> None:
    """One more word in one passage of each of 20 files."""
    for number, path in enumerate(files[:: max(1, len(files) // 20)][:20]):
        head, mark, rest = path.read_text(encoding="utf-8").partition("\n## Parte 2")
        path.write_text(head + mark + rest.replace(". ", f". Palavra{number} ", 1), encoding="utf-8")


def measure(dsn: str, folder: Path, real: bool) -> dict[str, Any]:
    """All figures of one run."""
    source = folder_source(folder, "docs", "bench")
    target = Target("default", "main", "bench", "docs")
    provider = Instant()
    files = sorted(folder.rglob("*.md"))

    def embed(conn: Connection, pass_id: int, tell: Callable[[int, int], None]) -> tuple[int, int, int]:
        report = embed_pending(dsn, provider=provider, on_progress=tell, only=Only(pass_id))  # type: ignore[arg-type]
        return report.texts, report.provider_calls, report.failed

    def sync(with_vectors: bool = True) -> Outcome:
        outcome = run_pass(
            dsn, target, read_folder(source, MAX_BYTES), Options(embed=embed if with_vectors else None)
        )
        assert outcome.state == "published"
        return outcome

    with psycopg.connect(dsn, autocommit=True) as conn:
        clock = Clock.of(conn)
        figures = clock.figures
        conn.execute('SELECT trecho.configure(\'{"model_id": "instant", "dim": 768}\')')
        with clock.timing("first pass, no vectors"):
            sync(False)
        copy_rows(conn, clock, "COPY of the same rows")
        row = conn.execute("SELECT count(*) FROM trecho.chunks").fetchone()
        counts = {"files": len(files), "chunks": row[0] if row else 0}
        conn.execute("SELECT trecho.drop_project('default')")
        conn.execute("VACUUM FULL trecho.chunks_1")
        with clock.timing("bare pipeline"):
            bare_pipeline(conn, folder)
        conn.execute("SELECT pg_stat_reset()")
        with clock.timing("first pass with vectors"):
            sync()
        index_builds(conn, clock)
        with clock.timing("bare pipeline again"):
            bare_pipeline(conn, folder)
        conn.execute("VACUUM ANALYZE trecho.chunks_1")
        clock.rounds({"read and hash": lambda: read_and_hash(folder), "nothing to do": sync})
        command = ("sync", str(folder), "--set", "bench", "--dsn", dsn, "--no-embed")
        runs = [process(*command) for _ in range(3)]
        figures["trecho sync, nothing to do"], figures["trecho sync, nothing to do, CPU"], _ = sorted(runs)[1]
        if not real:
            before = provider.texts
            edit_twenty(folder, files)
            with clock.timing("a word in 20 files"):
                sync()
            counts["texts embedded for it"] = provider.texts - before
    return counts | figures


def small_folder(dsn: str) -> dict[str, float]:
    """A sync of 200 files of 1.3 MB from the command line: clock, CPU and memory above trecho --version."""
    with tempfile.TemporaryDirectory() as folder:
        write_handbook(Path(folder), 200, 13)
        _, _, bare = process("--version")
        command = ("sync", folder, "--set", "pequeno", "--no-embed", "--dsn", dsn)
        took, cpu, memory = process(*command)
        again, again_cpu, _ = process(*command)
    return {
        "trecho sync, 200 files": took,
        "trecho sync, 200 files, CPU of the client": cpu,
        "its memory above trecho --version, MiB": memory - bare,
        "again, nothing changed": again,
        "again, nothing changed, CPU of the client": again_cpu,
    }


def memory(dsn: str, files: int) -> dict[str, float]:
    """The most memory of a command that publishes `files` changed documents, after one that published them first."""
    with tempfile.TemporaryDirectory() as folder:
        command = ("sync", folder, "--set", "grande", "--no-embed", "--dsn", dsn)
        write_handbook(Path(folder), files, 3)
        first, _, first_memory = process(*command)
        write_handbook(Path(folder), files, 3, seed=2)
        again, _, again_memory = process(*command)
        _, _, bare = process("--version")
    return {
        "documents": files,
        "first pass": first,
        "its memory, MiB": first_memory,
        "every document changed": again,
        "memory of that, MiB (bound 300)": again_memory,
        "trecho --version, MiB": bare,
    }


def ratios(figures: dict[str, Any]) -> dict[str, float]:
    """The bounds, by the clock and by CPU."""
    found = {}
    for unit in ("", ", CPU"):
        floor = (figures[f"bare pipeline{unit}"] + figures[f"bare pipeline again{unit}"]) / 2
        build = (
            figures["raw HNSW build, CPU"]
            if unit
            else figures["index builds within the first index"] - figures["raw word index and ANALYZE"]
        )
        found |= {
            f"first pass / COPY, no vectors{unit} (bound 2)": figures[f"first pass, no vectors{unit}"]
            / figures[f"COPY of the same rows{unit}"],
            f"nothing to do / read and hash{unit} (bound 3)": figures[f"nothing to do{unit}"]
            / figures[f"read and hash{unit}"],
            f"(first pass - HNSW build) / bare pipeline{unit} (bound {0.7 * PEER_FLOORS:.1f})": (
                figures[f"first pass with vectors{unit}"] - build
            )
            / floor,
        }
    return found


def show(figures: dict[str, Any], name: str) -> None:
    """Print the figures, and keep them as JSON in bench/results."""
    load = os.getloadavg()[0]
    for key, number in {**figures, "load of the machine (1 min)": load}.items():
        print(f"{key:<64} {number:>10.3f}" if isinstance(number, float) else f"{key:<64} {number:>10}")
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    (results / name).write_text(json.dumps({**figures, "load": load}, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, help="files to make (default 2000; quick: 200; memory: 10000)")
    parser.add_argument("--sections", type=int, default=11, help="chunks of a file, less one (default 11)")
    parser.add_argument("--folder", type=Path, help="real Markdown files instead of made ones")
    parser.add_argument("--quick", action="store_true", help="200 files")
    parser.add_argument("--memory", action="store_true", help="the memory of 10,000 changed documents")
    parser.add_argument(
        "--dsn", help="superuser's DSN of any database of the server; a database is made and dropped"
    )
    args = parser.parse_args()
    with database(find_dsn(args.dsn)) as dsn, tempfile.TemporaryDirectory() as made:
        if args.memory:
            show(memory(dsn, args.files or 10_000), "reconcile-memory.json")
            return
        folder = args.folder or Path(made)
        if args.folder is None:
            write_handbook(folder, args.files or (200 if args.quick else 2000), args.sections)
        figures = measure(dsn, folder, args.folder is not None)
        figures |= ratios(figures)
        with database(find_dsn(args.dsn)) as other:
            figures |= small_folder(other)
        show(figures, "reconcile-quick.json" if args.quick else "reconcile.json")


if __name__ == "__main__":
    main()
