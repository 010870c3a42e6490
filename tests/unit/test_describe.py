"""Titles, ids, anchors and hashes."""

from __future__ import annotations

import hashlib

import pytest
from trecho_chunkers.describe import adr_id, describe
from trecho_chunkers.identity import Slugs, anchor, chunk_id, content_hash, slug


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("docs/adr/0079-usar-pgvector.md", "adr-0079"),
        ("adr-0079.md", "adr-0079"),
        ("ADR-79.md", "adr-0079"),
        ("adr_79_x.md", "adr-0079"),
        ("ADR 7 x.md", "adr-0007"),
        ("79.md", "adr-0079"),
        ("12345-x.md", "adr-12345"),
        ("2024-05-01-decisao.md", None),
        ("usar-pgvector.md", None),
        ("adr-template.md", None),
        ("0079x.md", None),
    ],
)
def test_adr_id__comes_from_the_file_name(path: str, expected: str | None) -> None:
    assert adr_id(path) == expected


def test_describe__prefers_what_the_front_matter_says() -> None:
    found = describe("docs/adr/0007-x.md", "---\nid: minha-id\ntitle: Um  título\n---\n# Outro\n", "adr")
    assert found[:4] == ("Um título", "minha-id", True, "markdown")
    assert found.metadata == {"id": "minha-id", "title": "Um  título"}


def test_describe__without_front_matter_uses_heading_number_and_path() -> None:
    assert describe("a/0007-x.md", "intro\n\n## no\n\n# `Usar` [pg](u)\n", "adr")[:3] == (
        "Usar pg",
        "adr-0007",
        False,
    )
    assert describe("a/0007-x.md", "no heading", "docs")[:3] == ("0007-x", "a/0007-x.md", False)
    assert describe("a/x.zzz", "# not Markdown", "code") == ("x", "a/x.zzz", False, None, None, {})


def test_describe__a_broken_front_matter_raises_nothing() -> None:
    found = describe("a.md", "---\ntitle: [x\n---\ntext", "docs")
    assert found.title == "a"
    assert list(found.metadata) == ["_unread"]


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("Hello, World!", "hello-world"),
        ("Ação & reação", "ação--reação"),
        ("snake_case-x", "snake_case-x"),
        ("हिन्दी", "हिन्दी"),
        ("🚀", ""),
    ],
)
def test_slug__is_as_github_makes_it(heading: str, expected: str) -> None:
    assert slug(heading) == expected


def test_slugs__of_one_document_never_repeat() -> None:
    slugs = Slugs()
    assert [slugs.unique(heading) for heading in ["a", "a", "a-1", "A", "a-1"]] == [
        "a",
        "a-1",
        "a-1-1",
        "a-2",
        "a-1-2",
    ]


def test_identity__is_as_documented() -> None:
    assert content_hash("a.md", "T > A", "é") == hashlib.sha256(b"a.md\0T > A\0\xc3\xa9").digest()
    assert chunk_id("adr-0079", 3, "é") == "adr-0079:3:" + hashlib.sha1(b"\xc3\xa9").hexdigest()[:10]
    assert anchor("adr-0079", "contexto/forças") == "adr-0079#contexto/forças"
    assert anchor("a.md", "") == "a.md"
