"""Chunkers of trecho: pure functions from (path, text, settings) to passages.

They need the standard library, and tree_sitter with its grammars for code.
"""

from .dispatch import chunk, chunk_markdown, chunk_session
from .model import Chunk, ChunkError, Settings
from .version import CHUNKER_VERSION

__all__ = [
    "CHUNKER_VERSION",
    "Chunk",
    "ChunkError",
    "Settings",
    "chunk",
    "chunk_markdown",
    "chunk_session",
]
