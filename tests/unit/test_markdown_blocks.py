"""Heading boundaries are CommonMark's; markdown-it-py is the oracle."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from laws import check_slices
from markdown_it import MarkdownIt
from nasty import texts
from trecho_chunkers import blocks, chunk_markdown
from trecho_chunkers.front_matter import read
from trecho_chunkers.model import Deadline
from trecho_chunkers.normalise import normalise

# The oracle's own limit on nesting is lifted: it is not CommonMark's.
ORACLE = MarkdownIt("commonmark", {"maxNesting": 10_000})
# The oracle reads `[a]:` and an underline below it as a definition, and ends the paragraph at a definition, so
# that HTML or a list may follow where they could not interrupt one. We follow cmark.
ORACLE_DIFFERS = re.compile(r"\]:[ \t]*\n|\]:[^\n]*\n[ \t]*(?:[<>*+-]|[0-9])")


def headings(text: str) -> list[tuple[int, int]]:
    """(0-based line, level) of each top-level heading."""
    found = blocks.scan(text, 0, Deadline(60_000)).headings
    return [(text.count("\n", 0, heading.start), heading.level) for heading in found]


def oracle_headings(text: str) -> list[tuple[int, int]]:
    tokens = [token for token in ORACLE.parse(text) if token.type == "heading_open" and token.level == 0]
    return [(token.map[0], int(token.tag[1])) for token in tokens if token.map]


@settings(max_examples=600, deadline=None)
@given(texts())
def test_headings__equal_the_oracles_on_generated_text(text: str) -> None:
    ready = normalise(text)
    assume(not ORACLE_DIFFERS.search(ready))
    assert headings(ready) == oracle_headings(ready)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# a\n## b\n", [(0, 1), (1, 2)]),
        ("a\n===\nb\nc\n---\n", [(0, 1), (2, 2)]),
        ("```\n# no\n```\n# yes", [(3, 1)]),
        ("~~~\n```\n# no\n~~~~\n# yes", [(4, 1)]),
        ("````\n```\n# no\n", []),
        ("- ```\n  # no\n# yes: a fence in an item ends with it", [(2, 1)]),
        ("> ```\n> # no\n# yes: a fence in a quote ends with it", [(2, 1)]),
        ("    # code\n", []),
        ("a\n    # not code, not a heading\n", []),
        ("\t# code\n", []),
        ("<div>\n# no\n\n# yes\n", [(3, 1)]),
        ("<!-- \n\n# no\n\n-->\n# yes", [(5, 1)]),
        ("<pre>\n\n# no\n</pre>\n# yes", [(4, 1)]),
        ("<?php\n# no\n?>\n# yes", [(3, 1)]),
        ("<!DOCTYPE\n# no\n>\n# yes", [(3, 1)]),
        ("<![CDATA[\n# no\n]]>\n# yes", [(3, 1)]),
        ("<my-tag a='b'>\n# no\n\n# yes", [(3, 1)]),
        ("text\n<my-tag>\n# yes: kind 7 cannot interrupt a paragraph", [(2, 1)]),
        ("> # no\n- # no\n1. # no\n", []),
        ("> a\nb\n===\n", []),
        ("> a\n---\n", []),
        ("- a\nb\n---\n", []),
        ("- a\n\nb\n---\n", [(2, 2)]),
        ("-\n\n  a\n---\n", [(2, 2)]),
        ("a\n14. b\n---\n", [(0, 2)]),
        ("a\n1. b\n---\n", []),
        ("[a]: /u\n===\n", []),
        ("[a]: /u\nb\n===\n", [(1, 1)]),
        ("[a]: /u 'b\nc'\nd\n===\n", [(2, 1)]),
        ("[a]: (\nb\n===\n", [(0, 1)]),
        ("***\na\n---\n", [(1, 2)]),
        ("#\n##\n#hash\n####### seven\n", [(0, 1), (1, 2)]),
    ],
)
def test_headings__follow_commonmark_where_it_is_hard(text: str, expected: list[tuple[int, int]]) -> None:
    assert headings(text) == expected


@pytest.mark.parametrize(
    ("line", "title"),
    [("# a #", "a"), ("## a#", "a#"), ("#", ""), ("### ###", ""), ("# a \\# #  ", "a \\#"), ("#\ta\t", "a")],
)
def test_atx_title__drops_the_closing_sequence_only(line: str, title: str) -> None:
    assert [heading.title for heading in blocks.scan(line, 0, Deadline(60_000)).headings] == [title]


def test_fences__are_found_wherever_they_are_nested() -> None:
    text = "```\na\n```\n- b\n  ~~~\n  c\n  ~~~\n> ```\n> d\n\ne\n"
    found = [text[start:end] for start, end in blocks.scan(text, 0, Deadline(60_000)).fences]
    assert found == ["```\na\n```", "  ~~~\n  c\n  ~~~", "> ```\n> d"]


def test_headings__equal_the_oracles_in_every_markdown_file_of_this_repository() -> None:
    root = Path(__file__).resolve().parents[2]
    folders = [root, *(root / name for name in ("docs", "examples", "migrations", "sql"))]
    files = [file for folder in folders for file in folder.glob("*.md" if folder == root else "**/*.md")]
    assert files
    for file in files:
        ready = normalise(file.read_text(encoding="utf-8"))
        body = ready[read(ready).body_start :]
        assert headings(body) == oracle_headings(body), file
        check_slices(ready, chunk_markdown(ready), front_matter=True)
