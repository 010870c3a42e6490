"""Windows: whole lines with overlap, under the cap; and those whose cut points hold still."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import check_slices
from nasty import texts
from trecho_chunkers import Chunk, Settings, chunk
from trecho_chunkers.identity import content_hash
from trecho_chunkers.model import Deadline
from trecho_chunkers.windows import _bounds_of_short_lines, _line_starts, _sliding_bounds, window_spans

STABLE = Settings(stable_windows=True)
LINES = st.lists(st.sampled_from(["a", "b", "}", "", "x = 1", "é" * 40, "y" * 70]), max_size=120).map(
    "\n".join
)


@settings(max_examples=300, deadline=None)
@given(
    LINES | st.lists(st.text("a ", max_size=90), max_size=60).map("\n".join),
    st.integers(1, 12).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most - 1))),
    st.sampled_from([64, 100, 200, 6000]),
    st.data(),
)
def test_windows__of_short_lines_are_found_without_a_list_of_lines(
    text: str, height: tuple[int, int], cap: int, data: st.DataObject
) -> None:
    chosen = Settings(window_lines=height[0], window_overlap_lines=height[1], chunk_max_bytes=cap)
    start = text.rfind("\n", 0, data.draw(st.integers(0, len(text)))) + 1
    end = data.draw(st.integers(start, len(text)))
    deadline = Deadline(60_000)
    found = _bounds_of_short_lines(text, start, end, chosen, deadline)
    starts = _line_starts(text, start, end)
    slow = [(starts[first], starts[last]) for first, last in _sliding_bounds(text, starts, chosen, deadline)]
    if found is None:
        assert not text[start:end].isascii() or any(len(line) >= cap for line in text[start:end].split("\n"))
    else:
        assert [(begin, finish) for begin, finish, _ in found] == slow


def new_hashes(before: list[Chunk], after: list[Chunk]) -> int:
    known = {content_hash("f", item.symbol, item.content) for item in before}
    return len({content_hash("f", item.symbol, item.content) for item in after} - known)


@settings(max_examples=200, deadline=None)
@given(
    texts() | LINES,
    st.sampled_from(
        [
            Settings(),
            STABLE,
            Settings(window_lines=5, window_overlap_lines=2, chunk_max_bytes=64),
            Settings(window_lines=5, window_overlap_lines=2, chunk_max_bytes=64, stable_windows=True),
            Settings(window_lines=1, window_overlap_lines=0),
            Settings(window_lines=9, window_overlap_lines=8, stable_windows=True),
        ]
    ),
)
def test_windows__are_slices_in_order_under_the_cap_that_lose_nothing(text: str, chosen: Settings) -> None:
    chunks = chunk("file.unknown", text, chosen)
    check_slices(text, chunks, chosen, overlap=True)
    assert chunks == chunk("file.unknown", text, chosen)
    assert all(item.content.count("\n") < chosen.window_lines for item in chunks)


def test_sliding_windows__have_60_lines_and_share_10() -> None:
    chunks = chunk("file.unknown", "".join(f"line {number}\n" for number in range(1, 161)))
    assert [(item.start_line, item.end_line, item.kind) for item in chunks] == [
        (1, 60, "window"),
        (51, 110, "window"),
        (101, 160, "window"),
    ]


def test_one_long_line__is_cut_between_characters_without_parting_marks() -> None:
    text = "👍🏽" * 20_000
    chunks = chunk("file.unknown", text)
    check_slices(text, chunks, overlap=True)
    assert all(len(item.content.encode()) <= 6000 for item in chunks)
    assert all(item.content[0] == "👍" for item in chunks)


def thousands(seed: int, count: int = 10_000) -> list[str]:
    rng = random.Random(seed)
    return [
        rng.choice(["}", "", "return", f"value = {rng.random()}", f"call({rng.randint(0, 99)})"])
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_stable_windows__a_line_at_the_top_changes_at_most_4_hashes(seed: int) -> None:
    lines = thousands(seed)
    before = chunk("f.unknown", "\n".join(lines), STABLE)
    after = chunk("f.unknown", "\n".join(["inserted", *lines]), STABLE)
    assert len(before) > 150
    assert 1 <= new_hashes(before, after) <= 4


@pytest.mark.parametrize("period", [1, 2, 3, 7, 20, 45, 61, 128])
def test_stable_windows__hold_still_on_repeating_lines(period: int) -> None:
    lines = [f"line {number % period}" for number in range(10_000)]
    before = chunk("f.unknown", "\n".join(lines), STABLE)
    after = chunk("f.unknown", "\n".join(["inserted", *lines]), STABLE)
    assert 1 <= new_hashes(before, after) <= 4


@pytest.mark.parametrize("seed", range(6))
def test_stable_windows__an_edit_anywhere_changes_few(seed: int) -> None:
    lines = thousands(seed, 3000)
    before = chunk("f.unknown", "\n".join(lines), STABLE)
    at = random.Random(seed).randrange(len(lines))
    inserted = chunk("f.unknown", "\n".join([*lines[:at], "inserted", *lines[at:]]), STABLE)
    edited = chunk("f.unknown", "\n".join([*lines[:at], "edited", *lines[at + 1 :]]), STABLE)
    assert new_hashes(before, inserted) <= 6
    assert new_hashes(before, edited) <= 6


def test_sliding_windows__a_line_at_the_top_changes_all_and_says_so() -> None:
    lines = [f"line {number}" for number in range(1000)]
    before = chunk("f.unknown", "\n".join(lines))
    assert new_hashes(before, chunk("f.unknown", "\n".join(["x", *lines]))) == len(before)


def test_window_spans__of_a_part_stay_inside_it() -> None:
    text = "head\n" + "".join(f"line {number}\n" for number in range(200)) + "tail\n"
    start, end = text.index("line"), text.index("tail")
    spans = window_spans(text, start, end, Settings(), Deadline(60_000))
    assert spans[0][0] == start and spans[-1][1] == len(text[:end].rstrip())
