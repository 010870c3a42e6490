"""Embedding providers: a recipe in, vectors of 768 numbers out. Nothing heavy is imported before a provider is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trecho.providers.base import (
    DIMENSIONS,
    ModelMoved,
    Outcome,
    Provider,
    ProviderConfigError,
    ProviderDown,
    TextRejected,
    Vector,
    VectorArray,
)

__all__ = [
    "DIMENSIONS",
    "ModelMoved",
    "Outcome",
    "Provider",
    "ProviderConfigError",
    "ProviderDown",
    "TextRejected",
    "Vector",
    "VectorArray",
    "provider_for",
]


def provider_for(recipe: Mapping[str, Any]) -> Provider:
    """The provider of a recipe (trecho.query_recipe, trecho.embedding_recipes, or what trecho.configure was given).

    Keys: provider, model_id, dim, query_prefix, passage_prefix; a passage is handed over with its prefix on.
    Raises: ProviderConfigError when the recipe, the URL or the key cannot be used. No request is made here.
    """
    name = recipe.get("provider")
    if name == "local":
        from trecho.providers.local import LocalProvider

        return LocalProvider(recipe)
    from trecho.providers.presets import PRESETS

    if name in PRESETS:
        from trecho.providers.http import HttpProvider

        return HttpProvider(recipe)
    raise ProviderConfigError(
        f"unknown embedding provider {name!r}",
        hint=f"Known are local, {', '.join(PRESETS)}; set one with trecho.configure or in trecho.toml.",
    )
