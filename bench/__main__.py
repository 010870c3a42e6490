"""`python -m bench`: quality and latency of search beside its floors; a table, a JSON file and a picture."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from pgvector.psycopg import register_vector
from psycopg import conninfo, sql

from bench import latency, quality
from bench.corpus import FAQUAD, ROOT, Corpus, Questions, faquad, handbook
from bench.load import load
from bench.picture import bars
from bench.vectors import VectorCache
from trecho import cli
from trecho.db import find_dsn

RESULTS = ROOT / "bench" / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="90 questions, 10,000 chunks: under 3 minutes")
    parser.add_argument(
        "--large",
        action="store_true",
        help="only words over 500,000 chunks: about 10 GB of disk while it runs",
    )
    parser.add_argument(
        "--dsn",
        help="server, as a superuser (default: TRECHO_DSN, then .server/dsn); databases are made and dropped",
    )
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="folder of the results (default: bench/results)"
    )
    args = parser.parse_args()
    dsn = find_dsn(args.dsn)
    cache = VectorCache(RESULTS / "vectors.sqlite")
    started = time.time()
    source = faquad()
    result: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "quality": {},
        "latency": {},
    }
    with psycopg.connect(dsn) as conn:
        result["server"] = conn.info.parameter_status("server_version")
    if source is None:
        print(
            f"{FAQUAD} is absent: no quality on FaQuAD; the large corpus is made from examples/ instead",
            file=sys.stderr,
        )
    elif not args.large:
        step = 10 if args.quick else 1
        result["quality"]["FaQuAD"] = _faquad(dsn, source, step, cache)
        _show_quality("FaQuAD", result["quality"]["FaQuAD"])
    if not args.large and (not args.quick or source is None):
        result["quality"]["examples"] = _examples(dsn, cache)
        _show_quality("examples/questions.tsv", result["quality"]["examples"])
    text = source or handbook()
    result["corpus"] = "FaQuAD" if source else "examples"
    if args.large:
        result["latency"]["500000"] = _words(dsn, text, 500_000, 200, cache)
        _show_latency(500_000, result["latency"]["500000"])
    else:
        for size in [10_000] if args.quick else [10_000, 100_000]:
            result["latency"][str(size)] = _latency(dsn, text, size, 60 if args.quick else 200, cache)
            _show_latency(size, result["latency"][str(size)])
    result["load_after"] = os.getloadavg()[0]
    result["seconds"] = round(time.time() - started, 1)
    args.output.mkdir(parents=True, exist_ok=True)
    name = "search-large" if args.large else "search-quick" if args.quick else "search"
    (args.output / f"{name}.json").write_text(
        json.dumps(result, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
    )
    (args.output / f"{name}.svg").write_text(_picture(result), encoding="utf-8")
    print(f"\n{args.output / name}.json and {name}.svg written; {result['seconds']} s in all")
    return 0


@contextmanager
def _database(dsn: str) -> Iterator[str]:
    """A migrated database, dropped at the end."""
    name = f"trecho_bench_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            inside = conninfo.make_conninfo(dsn, dbname=name)
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as told:
                code = cli.main(["migrate", "--dsn", inside])
            if code:
                print(told.getvalue(), file=sys.stderr)
                raise SystemExit(code)
            yield inside
        finally:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _faquad(dsn: str, source: Questions, step: int, cache: VectorCache) -> list[dict[str, Any]]:
    with _database(dsn) as inside, psycopg.connect(inside, autocommit=True) as conn:
        register_vector(conn)
        quality.put_all(conn, quality.faquad_documents(source), cache)
        paths = [path for path, _ in quality.faquad_documents(source)]
        scores = quality.measure(
            conn, source.questions[::step], [paths[i] for i in source.answers[::step]], cache
        )
    return quality.as_rows(scores)


def _examples(dsn: str, cache: VectorCache) -> list[dict[str, Any]]:
    folder = ROOT / "examples"
    documents = [
        (path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.md"))
        if path.parent != folder
    ]
    known = {path for path, _ in documents}
    questions = [(question, path) for question, path in quality.example_questions(folder) if path in known]
    with _database(dsn) as inside, psycopg.connect(inside, autocommit=True) as conn:
        register_vector(conn)
        quality.put_all(conn, documents, cache)
        scores = quality.measure(conn, [q for q, _ in questions], [path for _, path in questions], cache)
    return quality.as_rows(scores)


def _latency(dsn: str, source: Questions, size: int, count: int, cache: VectorCache) -> dict[str, Any]:
    # Without context, as the paragraphs of FaQuAD are embedded, so that one cache serves both.
    corpus = Corpus(source, cache.passages(["passage: " + text for text in source.passages]))
    step = max(1, len(source.questions) // count)
    questions = source.questions[::step][:count]
    vectors = cache.queries(questions)
    with _database(dsn) as inside:
        started = time.time()
        with psycopg.connect(inside, autocommit=True) as conn:
            load(conn, corpus.sources(size), rebuild=True)
        loaded = time.time() - started
        times = latency.measure(inside, questions, vectors)
        return {
            "load_seconds": round(loaded, 1),
            "times": times,
            "ratios": latency.ratios(times),
            "agreement": latency.agreement(inside, questions[:50], vectors[:50]),
            "throughput": latency.throughput(inside, questions, vectors, 3 if size <= 10_000 else 10),
        }


def _words(dsn: str, source: Questions, size: int, count: int, cache: VectorCache) -> dict[str, Any]:
    """Words alone, over chunks without vectors: an HNSW index of 500,000 is not what is measured here."""
    corpus = Corpus(source, cache.passages(["passage: " + text for text in source.passages]))
    step = max(1, len(source.questions) // count)
    questions = source.questions[::step][:count]
    with _database(dsn) as inside:
        started = time.time()
        with psycopg.connect(inside, autocommit=True) as conn:
            bare = (
                replace(made, passages=[replace(passage, vector=None) for passage in made.passages])
                for made in corpus.sources(size)
            )
            load(conn, bare, rebuild=True)
        loaded = time.time() - started
        no_vectors = np.zeros((len(questions), 768), dtype=np.float32)
        times = latency.measure(inside, questions, no_vectors, names=latency.WORDS_ALONE)
        return {
            "load_seconds": round(loaded, 1),
            "times": times,
            "ratios": latency.ratios(times, latency.BOUND_LARGE),
            "agreement": {},
            "throughput": [],
        }


def _show_quality(name: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{name}, {rows[0]['n']} questions                 MRR@10   hit@10   against the usual recipe")
    for row in rows:
        print(
            f"  {row['name']:<40} {row['mrr']:>6.3f}   {row['hit']:>6.3f}   {row['gain']:>+7.3f} ± {row['error']:.3f}"
        )
    sys.stdout.flush()


def _show_latency(size: int, found: dict[str, Any]) -> None:
    measured = any("cpu_p95" in row for row in found["times"].values())
    print(
        f"\n{size:,} chunks, milliseconds                      p50       p95"
        + ("  processor p50       p95" if measured else "")
    )
    for name, row in found["times"].items():
        cpu = f"       {row['cpu_p50']:>8.2f}  {row['cpu_p95']:>8.2f}" if measured else ""
        print(f"  {name:<40} {row['p50']:>8.2f}  {row['p95']:>8.2f}{cpu}")
    for row in found["ratios"]:
        bound = "" if row["bound"] is None else f"  bound {row['bound']}"
        cpu = f", of processor time {row['cpu_p95']:.2f}" if "cpu_p95" in row else ""
        print(f"  p95 of {row['of']} / {row['to']}: {row['p95']:.2f}{cpu}{bound}")
    for name, value in found["agreement"].items():
        bound = f"  bound {latency.BOUND_RECALL}" if name.startswith("recall") else ""
        print(f"  {name}: {value:.3f}{bound}")
    for row in found["throughput"]:
        print(
            f"  {row['clients']} clients: {row['per_second']:.1f} hybrid searches a second, p95 {row['p95']:.1f} ms"
        )
    if found["throughput"]:
        one, many = found["throughput"]
        print(
            f"  8 clients / 1: {many['per_second'] / one['per_second']:.2f} times the searches"
            f" (bound {latency.BOUND_THROUGHPUT}),"
            f" {many['p95'] / one['p95']:.2f} times the p95 (bound {latency.BOUND_CROWD})"
        )
    sys.stdout.flush()


def _picture(result: dict[str, Any]) -> str:
    groups = []
    for name, rows in result["quality"].items():
        groups.append(
            (f"{name}: MRR@10", [(r["name"], r["mrr"], not r["name"].startswith("usual")) for r in rows], "")
        )
    for size, found in result["latency"].items():
        ours = ("words", "vectors", "hybrid")
        rows = [(name, row["p95"], name.startswith(ours)) for name, row in found["times"].items()]
        groups.append((f"{int(size):,} chunks: p95", rows, "ms"))
    return bars(groups)


if __name__ == "__main__":
    sys.exit(main())
