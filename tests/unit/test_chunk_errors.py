"""What chunkers refuse, with which SQL state and which hint; and that nothing is refused late."""

from __future__ import annotations

from typing import Any

import pytest
from trecho_chunkers import ChunkError, Settings, chunk, chunk_session

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"chunk_max_byte": 1}, "unknown chunk setting 'chunk_max_byte'"),
        ({"chunk_max_bytes": 63}, "from 64"),
        ({"chunk_max_bytes": "6000"}, "whole number"),
        ({"chunk_max_bytes": True}, "whole number"),
        ({"chunk_max_bytes": 99.5}, "whole number"),
        ({"stable_windows": 1}, "true or false"),
        ({"window_lines": 10}, "window_overlap_lines must be less than window_lines"),
        ({"timeout_ms": 0}, "from 1"),
        ([1], "must be an object"),
    ],
)
def test_settings__wrong_ones_raise_22023_with_a_hint(settings: Any, part: str) -> None:
    with pytest.raises(ChunkError, match=part) as caught:
        chunk("a.md", "x", settings)
    assert caught.value.sqlstate == "22023"
    assert caught.value.hint.endswith(".")


def test_settings__left_out_or_null_keep_their_default() -> None:
    assert Settings.from_json({"chunk_max_bytes": None, "section_max_chars": 900.0}) == Settings(
        section_max_chars=900
    )
    assert Settings.from_json(None) == Settings()


@pytest.mark.parametrize("path", ["a.md", "a.unknown", "a.rs"])
@pytest.mark.parametrize(
    ("text", "part", "hint"),
    [
        ("a\0b", "NUL character at offset 1", "exclude the file"),
        ("é" * 262_145, "text of 524290 bytes is over max_document_bytes", "raise the setting"),
        ("x" * 200_000 + "\ud800", "not valid Unicode at offset 200000", "UTF-8"),
    ],
)
def test_text__that_cannot_be_chunked_raises_tr008_with_a_hint(
    path: str, text: str, part: str, hint: str
) -> None:
    with pytest.raises(ChunkError, match=part) as caught:
        chunk(path, text)
    assert caught.value.sqlstate == "TR008"
    assert hint in caught.value.hint


def test_text__of_exactly_the_limit_is_taken() -> None:
    assert chunk("a.unknown", "x\n" * 262_144)


@pytest.mark.parametrize(
    ("path", "scope", "text"),
    [
        ("a.md", None, "# a\n\n" * 100_000),
        ("a.md", None, "- a\n" * 120_000),
        ("a.unknown", None, "a\n" * 250_000),
        ("a.json", "session", '[{"role": "u", "text": "' + "a " * 240_000 + '"}]'),
    ],
)
def test_timeout__raises_tr008_that_says_what_to_raise(path: str, scope: str | None, text: str) -> None:
    with pytest.raises(ChunkError, match="longer than 1 ms") as caught:
        chunk(path, text, {"timeout_ms": 1}, scope)
    assert caught.value.sqlstate == "TR008"
    assert "timeout_ms" in caught.value.hint


def test_session__refuses_nul_too() -> None:
    with pytest.raises(ChunkError, match="NUL"):
        chunk_session("user: \0")
