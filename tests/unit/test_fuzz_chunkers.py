"""Generated inputs across all chunkers: no crash, no hang, no lost text.

TRECHO_FUZZ_INPUTS sets how many (2,000 when not set), TRECHO_FUZZ_SEED where to start.
"""

from __future__ import annotations

import os
import random

from laws import check_slices
from nasty import FRAGMENTS
from trecho_chunkers import Settings, chunk
from trecho_chunkers.dispatch import is_markdown

PATHS = [
    ("a.md", None), ("a.md", None), ("a.md", None), ("a.mdx", None), ("a.unknown", None), ("a.unknown", None),
    ("s.txt", "session"), ("a.rs", None), ("a.ts", None), ("a.tsx", None), ("a.toml", None), ("a.yaml", None),
    ("a.py", None), ("a.go", None), ("a.sql", None), ("a.jsonl", "session"),
]  # fmt: skip
SETTINGS = [
    Settings(),
    Settings(section_max_chars=60, section_max_lines=5, chunk_max_bytes=64),
    Settings(section_max_chars=200, chunk_max_bytes=300, container_max_lines=3, symbol_max_lines=4),
    Settings(window_lines=4, window_overlap_lines=1, chunk_max_bytes=96),
    Settings(window_lines=8, window_overlap_lines=3, chunk_max_bytes=128, stable_windows=True),
]


def generated(rng: random.Random) -> str:
    parts = [rng.choice(FRAGMENTS) for _ in range(rng.randint(0, rng.choice([4, 12, 40])))]
    if rng.random() < 0.2:
        parts.append(
            chr(rng.choice([rng.randint(1, 0x2FF), rng.randint(0x300, 0xD7FF), rng.randint(0xE000, 0x1FFFF)]))
        )
        rng.shuffle(parts)
    return "".join(parts) * rng.choice([1, 1, 1, 2, 7])


def test_generated_inputs__break_no_law() -> None:
    count = int(os.environ.get("TRECHO_FUZZ_INPUTS", "2000"))
    rng = random.Random(int(os.environ.get("TRECHO_FUZZ_SEED", "1")))
    for number in range(count):
        text = generated(rng)
        path, scope = rng.choice(PATHS)
        settings = rng.choice(SETTINGS)._replace(timeout_ms=3_600_000)  # a starved machine is no defect
        try:
            chunks = chunk(path, text, settings, scope)
            if scope != "session" or ("{" not in text and "[" not in text):
                check_slices(
                    text,
                    chunks,
                    settings,
                    front_matter=is_markdown(path) or scope == "session",
                    overlap=not is_markdown(path) and scope != "session",
                )
        except Exception as error:
            raise AssertionError(
                f"input {number}: chunk({path!r}, {text!r}, {settings}, {scope!r})"
            ) from error
