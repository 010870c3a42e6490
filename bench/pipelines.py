"""Whole pipelines side by side: trecho, pgai and cocoindex over the same files and server, by turns, in one run.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install -r bench/peers-pipelines.txt
    python -m bench.pipelines --peers /tmp/peers/bin/python                 # 2,000 files of 12 chunks: 5 to 10 minutes
    python -m bench.pipelines --peers /tmp/peers/bin/python --files 200     # or --folder with real Markdown files

Vectors come from a function that answers at once; trecho and pgai run a second time ("http") with a server that speaks
the API of OpenAI, since pgai has no provider within its process and the function is put into it. Only trecho builds an
HNSW index while it indexes: the seconds that this took within its run are taken off, and compared with a raw build
over the same rows right after it. (Two builds of a minute differ by more than all the rest takes.) Each figure of a
pass comes three times: seconds of the process with its start-up, seconds of the pass inside (for "nothing changed", of
a second pass in the same process), and seconds of CPU of the process and the server together. The CPU of the server is
that of the whole of it, so use one that nobody else uses.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from zlib import crc32

import numpy as np
import psycopg
from psycopg import conninfo

from bench.peer_pipelines import Vectors
from bench.reconcile import ROOT, Clock, database, edit_twenty, index_builds, show
from trecho.db import find_dsn

sys.path.insert(0, str(ROOT / "tests"))

from handbook import write_handbook

RUNNER = ROOT / "bench" / "peer_pipelines.py"
REQUIREMENTS = "bench/peers-pipelines.txt"
NOTHING = "nothing changed"
# cocoindex would report its use to its makers.
_QUIET = os.environ | {"COCOINDEX_DISABLE_USAGE_TRACKING": "1"}
# Path and text of every chunk that a search can find.
_CHUNKS = {
    "trecho": "SELECT coalesce(d.source_path, ''), c.content FROM trecho.documents AS d"
    " JOIN trecho.placements AS p USING (document_id) JOIN trecho.chunks AS c USING (index_version, chunk_key)",
    "pgai": "SELECT path, chunk FROM docs_chunks",
    "cocoindex": "SELECT path, content FROM docs_chunks",
}


@dataclass
class Pipeline:
    """One of them, with the database and the folder of its own state."""

    tool: str
    python: str
    dsn: str
    state: Path
    url: str = ""
    figures: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.tool}, http" if self.url else self.tool

    def run(self, folder: Path, *options: str) -> list[dict[str, float]]:
        """Its passes, each with seconds and texts embedded."""
        done = subprocess.run(
            [
                *(self.python, str(RUNNER), self.tool, self.dsn, str(folder), str(self.state)),
                *("--url", self.url, *options),
            ],
            capture_output=True,
            text=True,
            check=False,
            env=_QUIET,
        )
        if done.returncode != 0:
            sys.exit(f"{self.name} failed:\n{done.stderr}")
        # pgai writes its log there, too.
        return [] if "--prepare" in options else json.loads(done.stdout.splitlines()[-1])

    def measure(self, clock: Clock, stage: str, folder: Path) -> None:
        """One pass in a process of its own."""
        cpu, began = clock.cpu(), time.perf_counter()
        (only,) = self.run(folder)
        took = time.perf_counter() - began
        self.figures[stage] = {
            "process": took,
            "pass": only["seconds"],
            "CPU": clock.cpu() - cpu,
            "texts": only["texts"],
        }

    def chunks(self) -> Counter[tuple[str, str]]:
        """What a search can find."""
        with psycopg.connect(self.dsn) as conn:
            return Counter(conn.execute(_CHUNKS[self.tool].encode()).fetchall())


def installed(python: str) -> list[str]:
    """The peers that a Python has; says which are missing and how to get them."""
    found = []
    for name in ("pgai", "cocoindex"):
        module = {"pgai": "pgai.vectorizer", "cocoindex": "cocoindex, asyncpg"}[name]
        tried = subprocess.run(
            [python, "-c", f"import {module}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=_QUIET,
        )
        if tried.returncode == 0:
            found.append(name)
        else:
            why = tried.stderr.strip().rpartition("\n")[2]
            print(
                f"{name} is not measured, {python} cannot import it ({why}). Install it in an environment of its own:\n"
                f"  python -m venv /tmp/peers && /tmp/peers/bin/pip install -r {REQUIREMENTS}\n"
                "and give --peers /tmp/peers/bin/python.",
                file=sys.stderr,
            )
    return found


def as_uri(dsn: str) -> str:
    """A DSN in the form that every driver reads."""
    parts = {key: str(value) for key, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
    user, password, host, port, name = (
        quote(parts.pop(key, ""), safe="") for key in ("user", "password", "host", "port", "dbname")
    )
    return f"postgresql://{user}:{password}@{host}:{port}/{name}?{urlencode(parts)}".removesuffix("?")


def nothing_changed(pipelines: list[Pipeline], clock: Clock, folder: Path) -> None:
    """By turns: the median of three processes, and of three more passes within one."""
    taken: dict[str, list[dict[str, float]]] = {}
    for _ in range(3):
        for pipeline in pipelines:
            pipeline.measure(clock, NOTHING, folder)
            taken.setdefault(pipeline.name, []).append(pipeline.figures[NOTHING])
    for pipeline in pipelines:
        runs = taken[pipeline.name]
        again = [done["seconds"] for done in pipeline.run(folder, "--times", "4")[1:]]
        pipeline.figures[NOTHING] = {
            "process": statistics.median(run["process"] for run in runs),
            "pass": statistics.median(again),
            "CPU": statistics.median(run["CPU"] for run in runs),
            "texts": max(run["texts"] for run in runs),
        }


def measure(pipelines: list[Pipeline], clock: Clock, folder: Path, real: bool) -> dict[str, Any]:
    """Every stage, each with all pipelines by turns. Returns the counts beside the figures of the pipelines."""
    counts: dict[str, Any] = {"files": len(list(folder.rglob("*.md")))}
    for pipeline in pipelines:
        pipeline.run(folder, "--prepare")
    for pipeline in pipelines:
        pipeline.measure(clock, "first index", folder)
        counts[f"{pipeline.name}: chunks"] = pipeline.chunks().total()
        if pipeline.tool == "trecho":
            with psycopg.connect(pipeline.dsn, autocommit=True) as conn:
                index_builds(conn, clock, f"{pipeline.name}: ")
    nothing_changed(pipelines, clock, folder)

    if not real:
        before = {pipeline.name: pipeline.chunks() for pipeline in pipelines}
        edit_twenty(folder, sorted(folder.rglob("*.md")))
        for pipeline in pipelines:
            pipeline.measure(clock, "a word in 20 files", folder)
            changed = (pipeline.chunks() - before[pipeline.name]).total()
            counts[f"{pipeline.name}: chunks really changed"] = changed

    files = sorted(folder.rglob("*.md"))
    gone = files[:: max(1, len(files) // 5)][:5]
    for path in gone:
        path.unlink()
    for pipeline in pipelines:
        pipeline.measure(clock, "5 files deleted", folder)
        paths = {path for path, _ in pipeline.chunks()}
        counts[f"{pipeline.name}: still found"] = sum(str(path.relative_to(folder)) in paths for path in gone)

    file = sorted(folder.rglob("*.md"))[1]
    file.rename(file.with_name(f"renamed-{file.name}"))
    for pipeline in pipelines:
        pipeline.measure(clock, "a file renamed", folder)
    return counts


def bounds(pipelines: list[Pipeline], build: dict[str, float]) -> dict[str, float]:
    """Ours against the faster peer, where there is one; above the bound is a failure."""
    found: dict[str, float] = {}
    for http in (False, True):
        (ours,) = (p for p in pipelines if p.tool == "trecho" and bool(p.url) is http)
        raw, others, within = (
            build[f"{ours.name}: {what}"]
            for what in (
                "raw HNSW build",
                "raw word index and ANALYZE",
                "index builds within the first index",
            )
        )
        found[f"{ours.name}: index builds within the first index / the same builds alone"] = within / (
            raw + others
        )
        # cocoindex calls a function of its user, whatever that does.
        peers = [p for p in pipelines if p.tool == "cocoindex" or (p.tool == "pgai" and bool(p.url) is http)]
        if not peers:
            continue
        for unit in ("process", "pass", "CPU"):
            first, nothing = (
                min(peer.figures[stage][unit] for peer in peers) for stage in ("first index", NOTHING)
            )
            off = build[f"{ours.name}: raw HNSW build, CPU"] if unit == "CPU" else within - others
            net = ours.figures["first index"][unit] - off
            what = f"{unit}, http" if http else unit
            found[f"(first index - HNSW build) / faster peer, {what} (bound 0.7)"] = net / first
            found[f"{NOTHING} / faster peer, {what} (bound 0.5)"] = ours.figures[NOTHING][unit] / nothing
    return found


def serve(port: Connection) -> None:
    """Answer requests for embeddings at once with made-up vectors, in a process whose CPU is not counted."""
    vectors = Vectors()(512)
    written = [[repr(number) for number in vector.tolist()] for vector in vectors]
    texts = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def vector(self, text: str, form: str | None) -> str:
            """The same one for the same text: trecho asks again for one, to notice that a model was exchanged."""
            turn, which = divmod(crc32(text.encode()), len(vectors))
            turn %= len(written[which])
            if form == "base64":
                return f'"{base64.b64encode(np.roll(vectors[which], -turn).tobytes()).decode()}"'
            return f"[{','.join(written[which][turn:] + written[which][:turn])}]"

        def answer(self, body: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_GET(self) -> None:
            self.answer(str(texts))

        def do_POST(self) -> None:
            nonlocal texts
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
            form = asked.get("encoding_format")
            data = ",".join(
                f'{{"object":"embedding","index":{number},"embedding":{self.vector(text, form)}}}'
                for number, text in enumerate(given)
            )
            texts += len(given)
            self.answer(
                f'{{"object":"list","model":"instant","data":[{data}],"usage":{{"prompt_tokens":0,"total_tokens":0}}}}'
            )

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.send(server.server_port)
    server.serve_forever()


@contextmanager
def embedding_server() -> Iterator[str]:
    """Base URL of one that answers at once."""
    ours, its = Pipe()
    process = Process(target=serve, args=(its,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers installed")
    parser.add_argument("--files", type=int, default=2000, help="files to make (default 2000)")
    parser.add_argument("--sections", type=int, default=11, help="chunks of a file, less one (default 11)")
    parser.add_argument("--folder", type=Path, help="real Markdown files instead, which are copied")
    parser.add_argument(
        "--dsn", help="superuser's DSN of any database of the server; databases are made and dropped"
    )
    args = parser.parse_args()
    server = find_dsn(args.dsn)
    tools = ["trecho", *installed(args.peers)]
    with ExitStack() as stack:
        url = stack.enter_context(embedding_server())
        room = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = room / "files"
        if args.folder is None:
            write_handbook(folder, args.files, args.sections)
        else:
            shutil.copytree(args.folder, folder)
        pipelines = [
            Pipeline(
                tool,
                sys.executable if tool == "trecho" else args.peers,
                as_uri(stack.enter_context(database(server, migrated=tool == "trecho"))),
                room / tool,
                way,
            )
            for way in ("", url)
            for tool in tools
            if not (way and tool == "cocoindex")
        ]
        conn = stack.enter_context(psycopg.connect(pipelines[0].dsn, autocommit=True))
        clock = Clock.of(conn)
        counts = measure(pipelines, clock, folder, args.folder is not None)
        for pipeline in pipelines:
            for stage, figures in pipeline.figures.items():
                counts |= {f"{pipeline.name}: {stage}, {what}": figure for what, figure in figures.items()}
        show(counts | clock.figures | bounds(pipelines, clock.figures), "pipelines.json")


if __name__ == "__main__":
    main()
