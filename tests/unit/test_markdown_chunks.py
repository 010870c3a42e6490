"""Sections, budgets, context and anchors of Markdown chunks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import check_slices
from nasty import texts
from trecho_chunkers import Chunk, Settings, chunk, chunk_markdown
from trecho_chunkers import blocks as blocks_module
from trecho_chunkers.identity import content_hash
from trecho_chunkers.model import Deadline
from trecho_chunkers.normalise import normalise

SMALL = Settings(section_max_chars=80, section_max_lines=6, chunk_max_bytes=128)


def shape(chunks: list[Chunk]) -> list[tuple[str, str, str]]:
    return [(item.kind, item.symbol, item.content) for item in chunks]


def hashes(chunks: list[Chunk]) -> set[bytes]:
    return {content_hash("a.md", item.symbol, item.content) for item in chunks}


@settings(max_examples=200, deadline=None)
@given(texts(), st.sampled_from([Settings(), SMALL, Settings(section_max_chars=16, chunk_max_bytes=64)]))
def test_markdown_chunks__are_slices_in_order_under_the_cap_that_lose_nothing(
    text: str, chosen: Settings
) -> None:
    chunks = chunk_markdown(text, chosen)
    check_slices(text, chunks, chosen, front_matter=True)
    assert chunks == chunk_markdown(text, chosen)
    assert chunks == [*chunk("docs/a.md", text, chosen)]
    for item in chunks:
        assert len(item.content) <= chosen.section_max_chars
        assert item.content.count("\n") < chosen.section_max_lines
        assert len(item.context) < 3000


@settings(max_examples=150, deadline=None)
@given(texts())
def test_markdown_chunks__every_level_2_heading_starts_a_chunk_or_ends_a_bare_title(text: str) -> None:
    ready = normalise(text)
    if ready.startswith("---"):
        ready = "x" + ready
    lines = ready.split("\n")
    starts = {item.start_line for item in chunk_markdown(ready, SMALL)}
    found = blocks_module.scan(ready, 0, Deadline(60_000)).headings
    for before, heading in zip([None, *found], found, strict=False):
        line = ready.count("\n", 0, heading.start) + 1
        bare_title = (
            before is not None and before.level == 1 and not ready[before.end : heading.start].strip()
        )
        if heading.level == 2 and not bare_title and lines[line - 1].strip():
            assert line in starts


def test_sections__split_at_level_2_and_text_before_stands_alone() -> None:
    text = "# T\n\nintro\n\n## A\n\na\n\n### deep\n\nb\n\n## B\n\nc\n"
    assert shape(chunk_markdown(text)) == [
        ("preamble", "T", "# T\n\nintro"),
        ("section", "T > A", "## A\n\na\n\n### deep\n\nb"),
        ("section", "T > B", "## B\n\nc"),
    ]


def test_sections__a_bare_title_belongs_to_what_follows() -> None:
    chunks = chunk_markdown("before\n\n# T\n\n## A\n\na\n\n# U\n\nu\n")
    assert shape(chunks) == [
        ("preamble", "", "before"),
        ("section", "T > A", "# T\n\n## A\n\na"),
        ("preamble", "U", "# U\n\nu"),
    ]


def test_sections__over_the_budget_split_at_deeper_headings_first() -> None:
    text = "## A\n\n### B\n\n" + "b " * 30 + "\n\n### C\n\n" + "c " * 30 + "\n"
    chunks = chunk_markdown(text, SMALL)
    assert [(item.kind, item.symbol, item.anchor_path) for item in chunks] == [
        ("subsection", "A > B", "a/b"),
        ("subsection", "A > C", "a/c"),
    ]
    assert chunks[0].content.startswith("## A\n\n### B\n\nb b")


def test_sections__over_the_line_budget_are_split_too() -> None:
    text = "## A\n" + "- x\n" * 30 + "\n" + "- y\n" * 40
    assert [item.content.count("\n") + 1 for item in chunk_markdown(text)] == [31, 40]


def test_paragraphs__are_packed_up_to_the_budget_and_stay_whole() -> None:
    words = ["um", "dois", "três", "quatro", "cinco", "seis"]
    text = "## A\n\n" + "\n\n".join(f"{word} " * 5 for word in words)
    chunks = chunk_markdown(text, SMALL)
    assert all(item.kind == "part" and item.symbol == "A" for item in chunks)
    for word in words:
        assert sum(f"{word} {word} {word} {word} {word}" in item.content for item in chunks) == 1
    assert chunks[0].context == "" and chunks[1].context == "A"


def test_long_paragraph__is_cut_after_a_sentence_and_the_heading_keeps_text() -> None:
    text = "## A\n\n" + "Esta frase tem sete palavras bem curtas. " * 10
    chunks = chunk_markdown(text, SMALL)
    assert chunks[0].content.startswith("## A\n\nEsta")
    assert all(item.content.endswith(".") for item in chunks)


def test_fence__is_whole_unless_it_alone_is_over_the_budget() -> None:
    fence = "```py\n" + "\n\n".join(["x = 1"] * 2) + "\n```"
    text = f"## A\n\n{'word ' * 12}\n{fence}\n{'word ' * 12}\n"
    assert any(fence in item.content for item in chunk_markdown(text, SMALL))
    long_fence = "```py\n" + "x = 1\n" * 20 + "```"
    pieces = chunk_markdown(f"## A\n\n{long_fence}\n", SMALL)
    assert len(pieces) > 2
    assert pieces[0].content.startswith("## A\n\n```py\nx = 1")
    assert all(item.context == "A\n```py" for item in pieces[1:])
    assert "".join(item.content for item in pieces).count("```py") == 1


def test_table__is_whole_unless_it_alone_is_over_the_budget_and_then_repeats_its_header_in_context() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |"
    text = f"## A\n\n{'word ' * 12}\n\n{table}\n\n{'word ' * 12}\n"
    assert any(table in item.content for item in chunk_markdown(text, SMALL))
    pieces = chunk_markdown("## A\n\n| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 20, SMALL)
    assert len(pieces) > 2
    assert all(item.context == "A\n| a | b |\n|---|---|" for item in pieces[1:])
    assert all(item.content.startswith("| 1 | 2 |") for item in pieces[1:])


def test_anchors__repeat_with_a_number_and_name_section_and_subsection() -> None:
    text = "# T\n\nt\n\n## Olá, Mundo!\n\na\n\n## Olá, Mundo!\n\nb\n\n## Olá, Mundo!\n\nc\n"
    assert [item.anchor_path for item in chunk_markdown(text)] == [
        "t", "olá-mundo", "olá-mundo-1", "olá-mundo-2",
    ]  # fmt: skip


def test_context__says_title_and_headings_that_the_slice_does_not() -> None:
    text = "---\ntitle: Manual\n---\n# T\n\nt\n\n## A\n\n" + "\n\n".join(["w " * 30] * 3)
    chunks = chunk_markdown(text, SMALL)
    assert [item.context for item in chunks] == ["Manual", "Manual > T", "Manual > T > A", "Manual > T > A"]
    assert chunks[0].symbol == "T"


def test_example__is_one_chunk_with_title_and_summary_in_context() -> None:
    text = "---\nkind: example\ntitle: Usar índice\nsummary: Como usar.\n---\n## A\n\na\n\n## B\n\nb\n"
    assert [(item.kind, item.context, item.content, item.start_line) for item in chunk_markdown(text)] == [
        ("example", "Usar índice\nComo usar.", "## A\n\na\n\n## B\n\nb", 6)
    ]


def test_example__over_the_budget_is_split_as_any_document() -> None:
    body = "## A\n\n" + "a " * 30 + "\n\n## B\n\n" + "b " * 30 + "\n"
    plain = chunk_markdown(body, SMALL)
    example = chunk_markdown("---\nkind: example\n---\n" + body, SMALL)
    assert shape(example) == shape(plain)
    assert len(plain) == 2


def test_mdx_and_html__do_not_break_sections() -> None:
    text = (
        "import X from './x'\n\n<Tabs>\n  <Tab label='a'>\n\n## A\n\n```js\n## no\n```\n\n  </Tab>\n</Tabs>\n\n"
        "export const a = {b: 1}\n\n<details>\n<summary>s</summary>\n\n## B {#custom}\n\nb\n\n</details>\n"
    )
    chunks = chunk("a.mdx", text)
    assert [(item.symbol, item.anchor_path) for item in chunks] == [("", ""), ("A", "a"), ("B", "custom")]


def test_lines__are_those_of_the_original_with_crlf_bom_and_front_matter() -> None:
    text = "\ufeff---\r\ntitle: x\r\n---\r\n\r\n# T\r\n\r\ntexto\r\n\r\n## A\r\na\r\n"
    assert [(item.start_line, item.end_line) for item in chunk_markdown(text)] == [(5, 7), (9, 10)]


@pytest.mark.parametrize("text", ["", "\n \t\n", "---\ntitle: x\n---\n", "\ufeff"])
def test_document_without_text__has_no_chunks(text: str) -> None:
    assert chunk_markdown(text) == []


def test_thematic_break_at_the_top__is_no_front_matter_and_loses_nothing() -> None:
    text = "---\nSome text: with a colon later, not a key\n\n---\n\nrest\n"
    check_slices(text, chunk_markdown(text), front_matter=False)


WORDS = st.lists(st.sampled_from(["abelha", "bola", "casa", "dado", "elefante"]), min_size=1, max_size=60)
SECTIONS = st.lists(st.lists(WORDS, min_size=1, max_size=6), min_size=2, max_size=6)


def document(sections: list[list[list[str]]]) -> str:
    parts = ["# Manual\n"]
    for number, paragraphs in enumerate(sections):
        parts.append(f"## Seção {number}\n")
        parts.extend(" ".join(words) + "\n" for words in paragraphs)
    return "\n".join(parts)


@settings(max_examples=150, deadline=None)
@given(SECTIONS, st.data())
def test_stability__a_word_of_the_same_length_changes_only_the_chunk_that_holds_it(
    sections: list[list[list[str]]], data: st.DataObject
) -> None:
    chosen = Settings(section_max_chars=200)
    before = chunk_markdown(document(sections), chosen)
    words = data.draw(st.sampled_from(data.draw(st.sampled_from(sections))))
    at = data.draw(st.integers(0, len(words) - 1))
    words[at] = "x" * len(words[at])
    after = chunk_markdown(document(sections), chosen)
    assert len(after) == len(before)
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 1


@settings(max_examples=150, deadline=None)
@given(SECTIONS, st.data())
def test_stability__any_other_word_changes_only_chunks_of_its_section(
    sections: list[list[list[str]]], data: st.DataObject
) -> None:
    chosen = Settings(section_max_chars=200)
    before = hashes(chunk_markdown(document(sections), chosen))
    number = data.draw(st.integers(0, len(sections) - 1))
    words = data.draw(st.sampled_from(sections[number]))
    words[data.draw(st.integers(0, len(words) - 1))] = "palavra-bem-mais-comprida"
    after = chunk_markdown(document(sections), chosen)
    changed = [item for item in after if content_hash("a.md", item.symbol, item.content) not in before]
    assert changed
    assert {item.symbol for item in changed} == {f"Manual > Seção {number}"}
