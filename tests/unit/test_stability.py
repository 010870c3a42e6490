"""`chunk_stability` counts what an edit costs."""

from __future__ import annotations

import random

from trecho_chunkers.stability import chunk_stability

NAMES = ["word, same length", "word, one letter longer", "line at the top", "line in the middle"]


def markdown() -> str:
    rng = random.Random(1)
    words = ["abelha", "bola", "casa", "dado", "elefante"]
    sections = [f"## Seção {n}\n\n" + " ".join(rng.choice(words) for _ in range(60)) for n in range(20)]
    return "# Manual\n\nIntro.\n\n" + "\n\n".join(sections) + "\n"


def test_markdown__each_edit_costs_one_chunk() -> None:
    rows = chunk_stability("a.md", markdown())
    assert [row.edit for row in rows] == NAMES
    assert all((row.hashes_changed, row.really_changed) == (1, 1) for row in rows)
    assert rows[0].chunks == 21 and rows[0].ids_changed == 1


def test_fixed_windows__are_reported_honestly_and_stable_ones_are_better() -> None:
    text = "".join(f"value {number} = {number * 7919 % 10007}\n" for number in range(3000))
    fixed = {row.edit: row for row in chunk_stability("a.unknown", text)}
    stable = {row.edit: row for row in chunk_stability("a.unknown", text, {"stable_windows": True})}
    assert fixed["line at the top"].hashes_changed == fixed["line at the top"].chunks == 60
    assert stable["line at the top"].hashes_changed <= 4
    assert fixed["line at the top"].really_changed == 1


def test_text_without_words__has_only_the_edits_it_has_place_for() -> None:
    assert chunk_stability("a.md", "") == []
    assert [row.edit for row in chunk_stability("a.md", "1 2 3")] == ["line at the top"]
