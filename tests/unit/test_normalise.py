"""The normaliser: idempotent, NFC, lines kept, linear."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import original_lines
from nasty import texts
from trecho_chunkers.normalise import _MAY_CHANGE, normalise

MARKS = st.text(st.sampled_from("a\u0301\u0316\u0327\u0f71\u0f72\u0958\u1161\u1100\u11a8e"), max_size=200)


@given(texts() | st.text() | MARKS)
def test_normalise__twice_is_once(text: str) -> None:
    ready = normalise(text)
    assert normalise(ready) == ready


@given(texts() | st.text())
def test_normalise__gives_nfc_and_line_feeds_on_the_same_lines(text: str) -> None:
    ready = normalise(text)
    assert "\r" not in ready and not ready.startswith("\ufeff")
    assert unicodedata.is_normalized("NFC", ready)
    bare = [unicodedata.normalize("NFC", line) for line in original_lines(text.lstrip("\ufeff"))]
    assert ready.split("\n") == bare


def test_characters_that_skip_normalising__are_none_that_nfc_may_change() -> None:
    wrong = []
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if _MAY_CHANGE.match(char) or 0xD800 <= code <= 0xDFFF:
            continue
        follows = any(unicodedata.normalize("NFC", base + char) != base + char for base in "aKαअ가\u1100")
        if unicodedata.combining(char) or not unicodedata.is_normalized("NFC", char) or follows:
            wrong.append(hex(code))
    assert wrong == []


def test_long_runs_of_marks__stay_as_they_are_and_cost_no_sorting() -> None:
    run = "\u0301\u0316" * 100_000
    assert normalise(f"e\u0301 {run} e\u0301") == f"\u00e9 {run} \u00e9"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ufeff\ufeffa", "a"),
        ("a\r\nb\rc\r\r\nd", "a\nb\nc\n\nd"),
        ("e\u0301", "é"),
        ("a\ufeff", "a\ufeff"),
        ("", ""),
    ],
)
def test_normalise__examples(text: str, expected: str) -> None:
    assert normalise(text) == expected
