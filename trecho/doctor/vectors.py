"""Compare stored vectors with what the provider says of their texts now."""

from __future__ import annotations

from trecho.db import Connection
from trecho.doctor.findings import EXAMPLES, Finding, Report
from trecho.errors import TrechoError

RESAMPLED = "vectors of their text"
# Passages handed to the provider at once.
_SAMPLE_BATCH = 32
# Cosine distance over which it is another text or model; other processors and batch sizes move a vector by about 1e-4.
_FAR = 0.02


def compare_vectors(conn: Connection, project: str | None, count: int, report: Report) -> list[Finding]:
    """Embed passages drawn at random again: what is far from the stored vector is of another text or model."""
    from trecho.providers import TextRejected, provider_for

    rows = conn.execute("SELECT * FROM trecho.sample_vectors(%s, %s)", (count, project)).fetchall()
    if not rows:
        return []
    version = rows[0]["index_version"]
    recipe = conn.execute(
        "SELECT recipe FROM trecho.embedding_recipes() WHERE index_version = %s", (version,)
    ).fetchone()
    if recipe is None:
        return []
    names = {row["chunk_key"]: row["chunk_id"] for row in rows}
    far: dict[int, float] = {}
    try:
        provider = provider_for(recipe["recipe"])
        try:
            for first in range(0, len(rows), _SAMPLE_BATCH):
                batch = rows[first : first + _SAMPLE_BATCH]
                made = provider.embed_passages([row["text"] for row in batch])
                good = [
                    (row["chunk_key"], vector)
                    for row, vector in zip(batch, made, strict=True)
                    if not isinstance(vector, TextRejected)
                ]
                distances = conn.execute(
                    "SELECT * FROM trecho.vector_distances(%s, %s, %s)",
                    (version, [key for key, _ in good], [str(vector.tolist()) for _, vector in good]),
                ).fetchall()
                far |= {row["chunk_key"]: row["distance"] for row in distances if row["distance"] > _FAR}
        finally:
            provider.close()
    except TrechoError as error:  # the provider is down, or cannot be used from here
        return [Finding(RESAMPLED, "skipped", f"version {version}", None, str(error), "")]
    if not far:
        return []
    report.wrong_vectors[version] = sorted(far)
    worst = sorted(far, key=lambda key: -far[key])[:EXAMPLES]
    return [
        Finding(
            RESAMPLED,
            "damage",
            f"version {version}, {len(rows)} passages tried",
            len(far),
            "; ".join(f"{names[key]} (distance {far[key]:.3f})" for key in worst),
            "forget the vectors; a worker (trecho embed) makes them again",
        )
    ]
