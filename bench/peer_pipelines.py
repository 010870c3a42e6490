"""One pipeline over one folder, in the Python that has it installed: bench/pipelines.py runs this file.

    python bench/peer_pipelines.py trecho|pgai|cocoindex DSN FOLDER STATE [--prepare] [--times N] [--url URL]

Vectors come from a function that answers at once, or with --url from a server that speaks the API of OpenAI. The peers
are set up as their documentation shows, with what makes them faster where that is a setting. Prints one JSON document:
for each pass its seconds and the texts embedded.
"""

import argparse
import asyncio
import hashlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parent.parent
# Of the same order as a section of the files that bench/pipelines.py makes, so that all cut about as many chunks.
CHUNK_SIZE = 600
DIMENSIONS = 768


class Vectors:
    """Made-up vectors, drawn once and handed out by turns; counts the texts."""

    def __init__(self) -> None:
        import numpy as np

        drawn = np.random.default_rng(1).standard_normal((512, DIMENSIONS)).astype(np.float32)
        self._drawn = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        self.texts = 0

    def __call__(self, count: int) -> list[Any]:
        first, self.texts = self.texts, self.texts + count
        return [self._drawn[number % len(self._drawn)] for number in range(first, first + count)]


# One pass, and how many texts were embedded so far.
Passes = tuple[Callable[[], None], Callable[[], int]]


def served(url: str) -> int:
    """Texts that the server has seen."""
    with urllib.request.urlopen(f"{url}/texts") as answer:
        return int(answer.read())


# ------------------------------------------------------------------------------------------------------------ trecho


def prepare_trecho(dsn: str, url: str) -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "plpython")]
    import psycopg

    recipe = {"model_id": "instant", "dim": DIMENSIONS} | ({"provider": "openai"} if url else {})
    with psycopg.connect(dsn) as conn:
        conn.execute("SELECT trecho.configure(%s)", (json.dumps(recipe),))


@contextmanager
def trecho(dsn: str, folder: Path, state: Path, url: str) -> Iterator[Passes]:
    """The command `trecho sync`; the function is the provider of bench/reconcile.py in place of the model."""
    sys.path[:0] = [str(ROOT), str(ROOT / "plpython")]
    os.environ |= {"TRECHO_EMBEDDING_URL": url, "TRECHO_EMBEDDING_KEY": "none"}
    from trecho import cli, providers

    made: list[Any] = []

    def provider_for(recipe: Any) -> Any:
        from bench.reconcile import Instant

        made.append(Instant())
        return made[-1]

    if not url:
        providers.provider_for = provider_for

    def once() -> None:
        assert cli.main(["sync", str(folder), "--set", "bench", "--dsn", dsn]) == 0

    yield once, lambda: served(url) if url else sum(provider.texts for provider in made)


# -------------------------------------------------------------------------------------------------------------- pgai


def prepare_pgai(dsn: str, url: str) -> None:
    import pgai
    import psycopg

    pgai.install(dsn)
    with psycopg.connect(dsn) as conn:
        conn.execute(
            "CREATE TABLE docs (path text PRIMARY KEY, digest bytea NOT NULL, content text NOT NULL)"
        )
        conn.execute(
            "SELECT ai.create_vectorizer('docs'::regclass, loading => ai.loading_column('content'),"
            " parsing => ai.parsing_none(), destination => ai.destination_table('docs_chunks'), embedding => "
            + (
                f"ai.embedding_openai('instant', {DIMENSIONS}, base_url => '{url}'),"
                if url
                else f"ai.embedding_ollama('instant', {DIMENSIONS}),"
            )
            + " chunking => ai.chunking_recursive_character_text_splitter("
            f" chunk_size => {CHUNK_SIZE}, chunk_overlap => 0),"
            " scheduling => ai.scheduling_none(), indexing => ai.indexing_none())"
        )


@contextmanager
def pgai(dsn: str, folder: Path, state: Path, url: str) -> Iterator[Passes]:
    """What differs is written to the table that pgai watches, then its worker runs once, two tasks at a time.

    It has no provider within its process: the function takes the place of its client of Ollama.
    """
    os.environ["OPENAI_API_KEY"] = "none"
    import logging

    import psycopg
    import structlog
    from ddtrace.trace import tracer
    from pgai.vectorizer.embedders import Ollama
    from pgai.vectorizer.embeddings import EmbeddingResponse, Usage
    from pgai.vectorizer.worker import Worker

    # As pgai's own command does.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    tracer.enabled = False
    vectors = Vectors()

    async def nothing(self: Any) -> None:
        """There is no model to pull."""

    async def answer(self: Any, documents: list[str]) -> Any:
        return EmbeddingResponse(embeddings=vectors(len(documents)), usage=Usage(0, 0))

    Ollama.setup = nothing
    Ollama.call_embed_api = answer

    def once() -> None:
        with psycopg.connect(dsn) as conn:
            known = dict(conn.execute("SELECT path, digest FROM docs").fetchall())
            changed = []
            for path in sorted(folder.rglob("*.md")):
                data = path.read_bytes()
                name, digest = str(path.relative_to(folder)), hashlib.sha256(data).digest()
                if known.pop(name, None) != digest:
                    changed.append((name, digest, data.decode(errors="replace").replace("\0", "")))
            if changed:
                conn.cursor().executemany(
                    "INSERT INTO docs VALUES (%s, %s, %s) ON CONFLICT (path)"
                    " DO UPDATE SET digest = excluded.digest, content = excluded.content",
                    changed,
                )
            if known:
                conn.execute("DELETE FROM docs WHERE path = ANY (%s)", (list(known),))
        error = asyncio.run(Worker(dsn, once=True, concurrency=2).run())
        if error is not None:
            raise error

    yield once, lambda: served(url) if url else vectors.texts


# --------------------------------------------------------------------------------------------------------- cocoindex


@contextmanager
def cocoindex(dsn: str, folder: Path, state: Path, url: str) -> Iterator[Passes]:
    """A flow from a folder to a table; files and texts are remembered, as its documentation advises."""
    import asyncpg
    import cocoindex as coco
    from cocoindex.connectors import localfs, postgres
    from cocoindex.ops.text import RecursiveSplitter
    from cocoindex.resources.file import FileLike, PatternFilePathMatcher
    from cocoindex.resources.schema import VectorSchema
    from numpy import dtype, float32
    from numpy.typing import NDArray

    pool_key = coco.ContextKey[asyncpg.Pool]("bench_db")
    splitter = RecursiveSplitter()
    vectors = Vectors()
    schema = VectorSchema(dtype=dtype(float32), size=DIMENSIONS)

    @coco.lifespan
    async def resources(builder: Any) -> Any:
        builder.settings.db_path = state
        async with asyncpg.create_pool(dsn) as pool:
            builder.provide(pool_key, pool)
            yield

    @dataclass
    class Row:
        path: str
        number: int
        content: str
        embedding: Annotated[NDArray[float32], schema]

    @coco.fn.as_async(memo=True, batching=True, max_batch_size=256)
    async def embed(texts: list[str]) -> list[NDArray[float32]]:
        return vectors(len(texts))

    @coco.fn
    async def chunk(numbered: Any, path: str, table: Any) -> None:
        number, piece = numbered
        table.declare_row(row=Row(path, number, piece.text, await embed(piece.text)))

    @coco.fn(memo=True)
    async def document(file: FileLike, table: Any) -> None:
        pieces = splitter.split(
            await file.read_text(), chunk_size=CHUNK_SIZE, chunk_overlap=0, language="markdown"
        )
        await coco.map(chunk, list(enumerate(pieces)), str(file.file_path.path), table)

    @coco.fn
    async def flow(source: Path) -> None:
        table = await postgres.mount_table_target(
            pool_key,
            table_name="docs_chunks",
            table_schema=await postgres.TableSchema.from_class(Row, primary_key=["path", "number"]),
        )
        files = localfs.walk_dir(
            source, recursive=True, path_matcher=PatternFilePathMatcher(included_patterns=["**/*.md"])
        )
        await coco.mount_each(document, files.items(), table)

    app = coco.App(coco.AppConfig(name="bench"), flow, source=folder)
    yield app.update_blocking, lambda: vectors.texts


PIPELINES = {"trecho": trecho, "pgai": pgai, "cocoindex": cocoindex}
PREPARATIONS = {"trecho": prepare_trecho, "pgai": prepare_pgai}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pipeline", choices=PIPELINES)
    parser.add_argument("dsn")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "state", type=Path, help="where a pipeline keeps what it remembers outside the database"
    )
    parser.add_argument("--url", default="", help="base URL of a server instead of the function")
    parser.add_argument("--prepare", action="store_true", help="make the tables that a first pass needs")
    parser.add_argument("--times", type=int, default=1, help="passes, one after the other in this process")
    args = parser.parse_args()
    if args.prepare:
        if args.pipeline in PREPARATIONS:
            PREPARATIONS[args.pipeline](args.dsn, args.url)
        return
    passes = []
    with PIPELINES[args.pipeline](args.dsn, args.folder.resolve(), args.state, args.url) as (once, texts):
        for _ in range(args.times):
            before, began = texts(), time.perf_counter()
            once()
            passes.append({"seconds": time.perf_counter() - began, "texts": texts() - before})
    print(json.dumps(passes))


if __name__ == "__main__":
    main()
