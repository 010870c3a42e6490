"""What every provider promises, and how a vector is checked and brought to 768 numbers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from trecho.errors import ExitCode, TrechoError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector: TypeAlias = NDArray[np.float32]
    VectorArray: TypeAlias = NDArray[np.float32]
else:
    Vector = VectorArray = Any

# Numbers of every stored vector, whatever the model gives.
DIMENSIONS = 768
# Embedded when a version is first embedded and again before each run: when its vector moves, the model has changed.
PROBE_TEXT = "O trecho guarda passagens de documentos e as encontra de novo."
# A vector shorter than this is zero for us; its direction would be noise.
_MIN_NORM = 1e-6


class ProviderConfigError(TrechoError):
    """The embedding provider cannot be used as configured."""

    exit_code = ExitCode.USAGE


class ProviderDown(TrechoError):
    """The embedding provider does not answer."""

    exit_code = ExitCode.NOT_CURRENT


class ModelMoved(TrechoError):
    """The embedding server gives other vectors than when the version began."""

    exit_code = ExitCode.REFUSED


class TextRejected(Exception):
    """One text cannot be embedded, while others can.

    permanent: the provider refused the text itself, so that trying again is useless.
    """

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        super().__init__(reason)
        self.permanent = permanent


Outcome: TypeAlias = "Vector | TextRejected"


class Provider(Protocol):
    """Safe to use from several threads."""

    name: str
    leaves_process: bool  # texts must pass the secret gate first
    concurrency: int  # requests worth having under way at once
    batch_texts: int  # most texts of one request
    batch_bytes: int  # most bytes of UTF-8 of one request; a longer text goes alone
    calls: int  # requests made so far
    stopping: threading.Event  # set it to end waits between attempts: the call raises ProviderDown

    def embed_passages(self, texts: Sequence[str]) -> list[Outcome]:
        """Embed texts that carry their passage prefix, in one request (more when one has to be isolated).

        Returns: for each text, in order, its vector, (768,) float32, finite and not zero, or why it has none.
        Raises: ProviderDown, ModelMoved, ProviderConfigError: then none of them has one.
        """

    def embed_query(self, texts: Sequence[str]) -> VectorArray:
        """Embed queries; their prefix is put on here. Returns: (n, 768) float32.

        Raises: TextRejected, ProviderDown, ModelMoved, ProviderConfigError.
        """

    def probe(self) -> Vector:
        """Embed PROBE_TEXT as a passage, and forget that the provider was down. Raises: as embed_passages."""

    def close(self) -> None:
        """Give up connections; the provider may not be used after it."""


def recipe_dim(recipe: Mapping[str, Any]) -> int:
    """Numbers per text that the recipe says the model gives."""
    dim = recipe.get("dim")
    if not isinstance(dim, int) or dim < 1:
        raise ProviderConfigError(
            f"the recipe has dim {dim!r}",
            hint="Set dim, the numbers the model gives per text, with trecho.configure.",
        )
    return dim


def fit(vectors: VectorArray, dim: int) -> list[Outcome]:
    """Check vectors as a model gave them and bring them to 768 numbers.

    vectors: (n, dim) of any float type. Fewer than 768 are followed by zeros (cosine is unchanged); of more, the first
    768 are kept and brought to length 1.
    """
    import numpy as np

    fitted = np.zeros((len(vectors), DIMENSIONS), dtype=np.float32)
    kept = min(dim, DIMENSIONS)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows float32 is found below
        fitted[:, :kept] = vectors[:, :kept]
        finite = np.logical_and(np.isfinite(vectors).all(axis=1), np.isfinite(fitted).all(axis=1)).tolist()
        norms = np.linalg.norm(fitted.astype(np.float64), axis=1)
    outcomes: list[Outcome] = []
    for index, row in enumerate(fitted):
        if not finite[index]:
            outcomes.append(TextRejected("its vector holds NaN or infinity"))
        elif norms[index] < _MIN_NORM:
            outcomes.append(TextRejected("its vector is zero"))
        else:
            outcomes.append(row / np.float32(norms[index]) if dim > DIMENSIONS else row)
    return outcomes


def fit_all(vectors: VectorArray, dim: int) -> VectorArray:
    """`fit` where every vector must be good. Raises: TextRejected."""
    outcomes = fit(vectors, dim)
    for outcome in outcomes:
        if isinstance(outcome, TextRejected):
            raise outcome
    return stack([outcome for outcome in outcomes if not isinstance(outcome, TextRejected)])


def stack(vectors: Sequence[Vector]) -> VectorArray:
    """Vectors of 768 numbers as one array, (n, 768) float32."""
    import numpy as np

    return np.stack(vectors) if vectors else np.zeros((0, DIMENSIONS), dtype=np.float32)
