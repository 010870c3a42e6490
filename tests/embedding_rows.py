"""Chunk rows for tests of embedding, written past put_document so that a test says exactly which texts there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg
from misbehaving_server import vector_of
from psycopg.types.json import Jsonb

Connection = psycopg.Connection[dict[str, Any]]


def value(conn: Connection, query: str, *parameters: Any) -> Any:
    """The only column of the only row."""
    row = conn.execute(query, parameters).fetchone()
    assert row is not None
    (only,) = row.values()
    return only


def add_texts(
    conn: Connection, contents: Iterable[str], *, version: int = 1, source: str = "a.md"
) -> dict[str, bytes]:
    """One chunk for each content, placed, with no vector. Returns: content -> text_hash."""
    value(conn, "SELECT trecho._ensure_version()")
    rows = conn.execute(
        "INSERT INTO trecho.chunks (index_version, project, scope, source_path, kind, content, content_hash, text_hash)"
        " SELECT %(version)s, 'default', 'docs', %(source)s, 'section', c,"
        " sha256(convert_to(%(source)s || chr(1) || c, 'UTF8')), trecho.text_hash(%(version)s, '', c)"
        " FROM unnest(%(contents)s::text[]) AS c RETURNING content, text_hash",
        {"version": version, "source": source, "contents": list(contents)},
    ).fetchall()
    place_all(conn, version)
    return {row["content"]: row["text_hash"] for row in rows}


def place_all(conn: Connection, version: int = 1) -> None:
    """Place every chunk that is not, each in a document of its own that is not there: only chunks are looked at."""
    conn.execute(
        "INSERT INTO trecho.placements (index_version, document_id, ordinal, chunk_key, project, branch, chunk_id,"
        " anchor, start_line, end_line) SELECT c.index_version, -c.chunk_key, 1, c.chunk_key, c.project, 'main',"
        " 'a:' || c.chunk_key, 'a', 1, 1 FROM trecho.chunks AS c WHERE c.index_version = %s AND NOT EXISTS"
        " (SELECT FROM trecho.placements AS p WHERE p.index_version = c.index_version AND p.chunk_key = c.chunk_key)",
        (version,),
    )


def add_version(conn: Connection, state: str = "building", **recipe: Any) -> int:
    """Another version, with the recipe of version 1 but for what is given."""
    value(conn, "SELECT trecho._ensure_version()")
    with conn.transaction():
        conn.execute("SET LOCAL ROLE trecho_owner")
        number: int = value(
            conn,
            "SELECT trecho._create_version(trecho._version_recipe(1) || %s, %s::trecho.index_version_state)",
            Jsonb(recipe),
            state,
        )
        conn.execute("RESET ROLE")
    return number


def vector(text: str, dim: int = 384) -> str:
    """A vector as text, as a model of dim numbers gives it."""
    return "[" + ",".join(str(n) for n in (*vector_of(text, dim), *[0.0] * (768 - dim))) + "]"


def claim(conn: Connection, worker: str, max_texts: int = 64, **options: Any) -> dict[bytes, str]:
    """Lease texts. Returns: text_hash -> text."""
    extra = "".join(f", {name} => %({name})s" for name in options)
    rows = conn.execute(
        f"SELECT * FROM trecho.claim_embeddings(%(worker)s, max_texts => %(max_texts)s{extra})",
        {"worker": worker, "max_texts": max_texts, **options},
    ).fetchall()
    claimed = {row["text_hash"]: row["text"] for row in rows}
    assert len(claimed) == len(rows)
    return claimed


def store(conn: Connection, worker: str, texts: dict[bytes, str], version: int = 1) -> int:
    """Stage the vector of each text. Returns: how many were taken."""
    stored: int = value(
        conn,
        "SELECT trecho.store_embeddings(%s, %s, %s, %s::text[]::vector[])",
        worker,
        version,
        list(texts),
        [vector(text) for text in texts.values()],
    )
    return stored


def counts(conn: Connection, version: int = 1) -> dict[str, int]:
    """The counts of pending_embeddings that are not 0."""
    row = conn.execute("SELECT * FROM trecho.pending_embeddings(%s)", (version,)).fetchone()
    assert row is not None
    return {name: n for name, n in row.items() if n and name not in ("version", "retry_at")}
