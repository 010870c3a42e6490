"""Hostile texts: work grows no faster than the text, counted in calls and not in seconds."""

from __future__ import annotations

import sys
import tracemalloc
from types import FrameType

import pytest
from trecho_chunkers import Settings, chunk

CHUNKERS = [
    ("a.md", None), ("a.unknown", None), ("s.txt", "session"), ("a.rs", None), ("a.ts", None), ("a.tsx", None),
    ("a.toml", None), ("a.yaml", None), ("a.py", None), ("a.go", None), ("a.sql", None),
]  # fmt: skip
UNITS = [
    "#", "#\n", "# a\n", "=\n", "a\n=\n", "-\n", "- a\n", "  - a\n", "- a\n\n", "`", "``` ", "` `", "`\n", "```\n", "~~~\n",
    ">", "> ", "> - ", ">\n", "{", "{\n", "{a: ", "[", "[a](", "[a]: b\n", "(", "<", "<a", "<div>\n", "<!--", "|", "| a | b |\n",
    "|-|\n", "palavra ", "a", "\n", "\t", "é", "😀", "👩🏽\u200d💻", "e\u0301", "\u3000", "**a", "_a_ ", "1. ", "! [", "&a ", "$a $a ",
    "//", "/* ", "-- ", "->", "x=>", "@a ", "}", "? ", ": ", "a: ", "---\n", '"', "'", 'r"', 'f"{', "${", "<T>", "fn a() {\n", "if a:\n",
    '{"role": "u", "text": "a"}\n', "Ana: oi\n", "\\\n",
]  # fmt: skip
NESTED = {
    "list": "".join(" " * (2 * (i % 20)) + "- a\n" for i in range(2000)),
    "quotes": "".join(">" * (i % 30) + " a\n" for i in range(2000)),
    "keys": "".join(" " * (i % 20) + f"a{i}:\n" for i in range(2000)),
    "ticks": "".join("`" * (i % 40) + "\n" for i in range(2000)),
}
# Small enough that a text of a few kibibytes is cut many times.
TIGHT = Settings(128, 10, 5, 8, 10, 2, False, 128, 524_288, 3_600_000)
SMALL = 2048


def texts(size: int) -> dict[str, str]:
    return {
        **{unit: unit * (size // len(unit.encode())) for unit in UNITS},
        **{name: text[:size] for name, text in NESTED.items()},
    }


def calls_of(path: str, text: str, scope: str | None) -> int:
    """Calls of Python and C functions that chunking takes: the same number every time."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        chunk(path, text, TIGHT, scope)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(("path", "scope"), CHUNKERS)
def test_calls__grow_no_faster_than_the_text(path: str, scope: str | None) -> None:
    chunk(path, "a: b", TIGHT, scope)  # imports what it needs
    for (name, small), large in zip(texts(SMALL).items(), texts(4 * SMALL).values(), strict=True):
        least, most = calls_of(path, small, scope), calls_of(path, large, scope)
        assert most <= 5 * least + 500, (name, least, most)


@pytest.mark.parametrize(("path", "scope"), [("a.md", None), ("a.unknown", None), ("s.txt", "session")])
def test_memory__grows_no_faster_than_the_text(path: str, scope: str | None) -> None:
    def peak(text: str) -> int:
        tracemalloc.start()
        try:
            chunk(path, text, TIGHT, scope)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak("a")
    for (name, small), large in zip(texts(SMALL).items(), texts(4 * SMALL).values(), strict=True):
        assert peak(large) <= 5 * peak(small) + 65_536, name
