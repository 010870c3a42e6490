"""What a check of the index costs: CPU seconds of the server process for each check, and its peak memory.

    python -m bench.doctor [--documents 500] [--dsn DSN]

makes a database of its own on the server (a superuser's DSN; default TRECHO_TEST_DSN), fills it through a pass,
checks it and drops it. CPU time is read from /proc of the server process, so the server must be on this machine; other
load on the machine then matters little.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
import uuid
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import psycopg
from psycopg import conninfo, sql
from psycopg.rows import DictRow, dict_row

from trecho.cli import main as trecho

SECTION = (
    "## Procedimento {n}\n\nO operador {word} verifica a réplica {n}, registra a latência de gravação e confirma que o "
    "backup noturno terminou sem erro. Se a fila de {word} passar do limite, a partição é movida para outro nó e a "
    "equipe de plantão recebe um aviso com o identificador do volume, a hora e a causa provável.\n\n"
)
WORDS = (
    "índice",
    "vácuo",
    "cópia",
    "sessão",
    "bloqueio",
    "catálogo",
    "tabela",
    "junção",
    "planejador",
    "gatilho",
)


def text_of(number: int, sections: int = 12) -> str:
    """A document of about 5 KB."""
    word = WORDS[number % len(WORDS)]
    return f"# Manual {number}\n\n" + "".join(
        SECTION.format(n=f"{number}.{n}", word=word) for n in range(sections)
    )


def cpu_seconds(pid: int) -> float:
    """User and system time of a process of this machine."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_mib(pid: int) -> float:
    """Memory that belongs to the process alone, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def fill(conn: psycopg.Connection[DictRow], documents: int) -> int:
    """Publish documents, give every chunk a vector. Returns chunks."""
    row = conn.execute("SELECT trecho.begin_pass('default', 'main', 'bench', '{docs}') AS id").fetchone()
    assert row is not None
    conn.execute("SELECT trecho.begin_bulk_load(%s)", (row["id"],))
    with conn.pipeline():
        for number in range(documents):
            conn.execute(
                "SELECT trecho.stage_document(%s, 'docs', %s, %s)",
                (row["id"], f"d/{number}.md", text_of(number)),
            )
    while (conn.execute("SELECT trecho.plan_pass(%s) AS n", (row["id"],)).fetchone() or {})["n"]:
        pass
    place = conn.execute(
        "SELECT extnamespace::regnamespace::text AS n FROM pg_extension WHERE extname = 'vector'"
    ).fetchone()
    assert place is not None
    conn.execute(
        sql.SQL(
            "UPDATE trecho.chunks AS c SET embedding = ("
            "SELECT '[' || string_agg((get_byte(c.text_hash, n % 32) + 1)::text, ',' ORDER BY n)"
            "       || repeat(',0', 384) || ']'"
            "  FROM generate_series(0, 383) AS n)::{}.vector"
        ).format(sql.Identifier(place["n"]))
    )
    conn.execute("SELECT trecho.end_bulk_load()")
    conn.execute("SELECT trecho.publish_pass(%s, allow_pending => true)", (row["id"],))
    conn.execute("SELECT trecho.release_pass()")
    conn.execute("SELECT trecho.refresh_lexeme_stats()")
    conn.execute("VACUUM (ANALYZE) trecho.chunks_1, trecho.placements_1")
    counted = conn.execute("SELECT count(*) AS n FROM trecho.chunks").fetchone()
    assert counted is not None
    return int(counted["n"])


def measure(dsn: str, chunks: int) -> None:
    """Each check alone, then all of them, then quick, then the metrics."""
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, autocommit=True) as conn:
        pid = conn.info.backend_pid
        conn.execute("SELECT * FROM trecho.check_index()")  # the chunkers are loaded, the caches warm
        checks = conn.execute(
            "SELECT c.check_name, c.query FROM trecho._index_checks(1) AS c"
            " WHERE trecho._check_obstacle(c.check_name, 1) IS NULL ORDER BY c.n"
        ).fetchall()
        print(f"{'check':<38}{'CPU s':>8}{'µs a chunk':>12}")
        for check in checks:
            before = cpu_seconds(pid)
            query = str(check["query"]).replace("$1", "1").replace("$2", "NULL::text")
            conn.execute(f"SELECT count(*) FROM ({query}) AS q".replace("%", "%%").encode(), ())
            spent = cpu_seconds(pid) - before
            print(f"{check['check_name']:<38}{spent:>8.2f}{spent / chunks * 1e6:>12.1f}")
        for name, call in (
            ("check_index()", "trecho.check_index()"),
            ("check_index(thorough => false)", "trecho.check_index(thorough => false)"),
            ("metrics", "trecho.metrics"),
            ("index_health()", "trecho.index_health()"),
        ):
            before, began = cpu_seconds(pid), time.monotonic()
            found = conn.execute(f"SELECT * FROM {call}".encode()).fetchall()
            spent = cpu_seconds(pid) - before
            wall = time.monotonic() - began
            rows = f"{len(found)} rows, " if name == "metrics" else ""
            print(f"{name:<38}{spent:>8.2f}{spent / chunks * 1e6:>12.1f}   {rows}{wall:.2f} s on the clock")
        print(f"private memory of the server process after it: {private_mib(pid):.0f} MiB")


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--dsn", default=os.environ.get("TRECHO_TEST_DSN"))
    args = parser.parse_args()
    if not args.dsn:
        print("give --dsn or TRECHO_TEST_DSN", file=sys.stderr)
        return 2
    name = f"trecho_bench_doctor_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(args.dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            dsn = conninfo.make_conninfo(args.dsn, dbname=name)
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                assert trecho(["migrate", "--dsn", dsn]) == 0
            with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, autocommit=True) as conn:
                chunks = fill(conn, args.documents)
            print(f"{args.documents} documents, {chunks} chunks")
            measure(dsn, chunks)
        finally:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
