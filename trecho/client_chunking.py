"""Chunk in the client, for servers without plpython3u: the same package, the same columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

import trecho_chunkers
from trecho_chunkers.describe import describe
from trecho_chunkers.model import ChunkError


@dataclass(frozen=True)
class Cut:
    """A chunked document as trecho.plan_document takes it; error alone when it cannot be chunked."""

    description: dict[str, Any] | None
    chunks: dict[str, list[dict[str, Any]]] | None
    error: str | None = None


def cut(path: str, content: str, scope: str, settings_of: Mapping[str, Any], project: str = "default") -> Cut:
    """Chunk one text with the settings of every index version (version -> settings)."""
    try:
        about = describe(path, content, scope, project)
        chunks = {
            version: [
                {**c._asdict(), "digest": sha1(c.content.encode(), usedforsecurity=False).hexdigest()[:10]}
                for c in trecho_chunkers.chunk(path, content, settings, scope)
            ]
            for version, settings in settings_of.items()
        }
    except ChunkError as error:
        return Cut(None, None, str(error))
    description = {
        "title": about.title,
        "doc_id": about.doc_id,
        "doc_id_claimed": about.doc_id_claimed,
        "language": about.language,
        "session_id": about.session_id,
        "metadata": about.metadata,
    }
    return Cut(description, chunks)
