"""trecho search, trecho evidence and trecho trace, as a person or a program calls them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from support import Ran

from trecho import search as search_command
from trecho.errors import ExitCode
from trecho.providers import ProviderDown
from trecho.trace import Trace, compare

Trecho = Callable[..., Ran]


class FakeProvider:
    """Gives every query one vector; counts what it is asked."""

    def __init__(self, angle: float = 0.0) -> None:
        self.asked: list[str] = []
        self.vector = np.zeros(768, dtype=np.float32)
        self.vector[0], self.vector[1] = np.cos(np.radians(angle)), np.sin(np.radians(angle))

    def embed_query(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        return np.stack([self.vector for _ in texts])

    def close(self) -> None:
        """Nothing to give up."""


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    fake = FakeProvider()
    monkeypatch.setattr(search_command, "provider_for", lambda recipe: fake)
    return fake


@pytest.fixture
def library(dsn: str) -> str:
    """DSN of a database with a document of two sections and one of one, at 10 and 40 degrees."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "SELECT trecho.put_document('docs', %s, 'guia/backup.md')",
            (
                "# Guia\n\n## Restauração\n\nA restauração da cópia.\n\n## Plantão\n\n"
                + "Quem atende. " * 150,
            ),
        )
        conn.execute("SELECT trecho.put_document('docs', 'A cópia dos jardins.', 'guia/jardim.md')")
        for path, angle in (("guia/backup.md", 10.0), ("guia/jardim.md", 40.0)):
            vector = FakeProvider(angle).vector.tolist()
            conn.execute(
                "UPDATE trecho.chunks SET embedding = %s::vector WHERE source_path = %s", (str(vector), path)
            )
    return dsn


def test_search__embeds_the_query_and_prints_where_it_found_what(
    trecho: Trecho, library: str, provider: FakeProvider
) -> None:
    ran = trecho("search", "restauracao", dsn=library)
    assert ran.code == ExitCode.DONE, ran.err
    assert provider.asked == ["restauracao"]
    first, excerpt = ran.out.splitlines()[:2]
    assert first.startswith("1. guia/backup.md:")
    assert "Restauração" in first and "chunk 1/" in first and "score 1.000" in first
    assert "**restauração**" in excerpt


def test_search__as_json_gives_every_column(trecho: Trecho, library: str, provider: FakeProvider) -> None:
    ran = trecho("search", "cópia", "--json", "-k", "1", dsn=library)
    found = json.loads(ran.out)
    assert (found["query"], found["mode"], found["index_version"]) == ("cópia", "hybrid", 1)
    (row,) = found["results"]
    assert {"chunk_id", "doc_id", "source_path", "start_line", "content", "excerpt", "semantic_score"} <= set(
        row
    )


def test_search__lexical_needs_no_provider(trecho: Trecho, library: str, provider: FakeProvider) -> None:
    ran = trecho("search", "jardim", "--mode", "lexical", "--json", dsn=library)
    assert [row["source_path"] for row in json.loads(ran.out)["results"]] == ["guia/jardim.md"]
    assert provider.asked == []


def test_search__answers_by_words_and_says_so_when_the_provider_is_down(
    trecho: Trecho, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(recipe: Mapping[str, Any]) -> FakeProvider:
        raise ProviderDown("no answer")

    monkeypatch.setattr(search_command, "provider_for", down)
    ran = trecho("search", "jardim", "--json", dsn=library)
    assert (ran.code, json.loads(ran.out)["mode"]) == (ExitCode.DONE, "lexical")
    assert "no answer" in ran.err
    assert trecho("search", "jardim", "--mode", "semantic", dsn=library).code == ProviderDown.exit_code


def test_search__filters_reach_the_database(trecho: Trecho, library: str, provider: FakeProvider) -> None:
    def paths(*options: str) -> list[str]:
        ran = trecho("search", "cópia", "--json", *options, dsn=library)
        assert ran.code == ExitCode.DONE, ran.err
        return [row["source_path"] for row in json.loads(ran.out)["results"]]

    assert set(paths()) == {"guia/backup.md", "guia/jardim.md"}
    assert paths("--path", "guia/j") == ["guia/jardim.md"]
    assert paths("--scope", "adr", "--scope", "code") == []
    assert len(paths("--scope", "docs", "--scope", "adr")) == 2
    assert (
        paths("--language", "Markdown") == paths("--language", "markdown", "--language", "COBOL") == paths()
    )
    assert paths("--language", "klingon") == []
    said = trecho("search", "cópia", "--language", "Klingon", "--language", "MARKDOWN", dsn=library).err
    assert "no document of default/main is in language klingon; there is: markdown" in said
    assert "note" not in trecho("search", "cópia", "--language", "MarkDown", dsn=library).err
    assert paths("--updated-after", "2999-01-01") == []
    assert len(paths("-k", "1")) == 1
    assert paths("-k", "1", "--skip", "1") != paths("-k", "1")
    assert len(paths("--per-document", "5")) > 2
    assert paths("--mode", "lexical", "--branch", "outra") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "x", "-k", "0"),
        ("search", "x", "-k", "1001"),
        ("search", "x", "-k", "99999999999999"),
        ("search", "x", "--skip", "-1"),
        ("search", "x", "--skip", "many"),
        ("search", "x", "--per-document", "0"),
        ("search", "x", "--mode", "both"),
        ("search", "x", "--scope", "everything"),
        ("search", "x", "--session", "no-uuid"),
        ("search", "x", "--updated-after", "when it was ready"),
        ("search", "x", "--updated-after", "2026-13-45"),
        ("search", "a\0b"),
        ("search", "a\udcff"),
        ("search", "x", "--path", "\udcff"),
        ("search", ""),
        ("search", "  \n"),
        ("evidence", "x", "-k", "0"),
        ("evidence", "x", "--max-chars", "10"),
        ("evidence", ""),
    ],
    ids=lambda value: " ".join(value)[:40].encode("ascii", "backslashreplace").decode(),
)
def test_search__a_bad_value_is_an_error_of_usage(
    trecho: Trecho, library: str, provider: FakeProvider, arguments: tuple[str, ...]
) -> None:
    ran = trecho(*arguments, dsn=library)
    assert ran.code == ExitCode.USAGE, ran.err
    assert ran.out == ""
    assert ran.err.startswith("error: ") and "hint:" in ran.err


@pytest.mark.parametrize("query", ["de que", "não", "nao", "!!!", "-cópia", "😀"])
def test_search__a_query_without_searchable_words_says_so(
    trecho: Trecho, library: str, provider: FakeProvider, query: str
) -> None:
    by_words = trecho("--dsn", library, "search", "--mode", "lexical", "--", query)
    assert (by_words.code, by_words.out) == (ExitCode.DONE, "")
    assert "no searchable words" in by_words.err and "nothing found" in by_words.err
    by_both = trecho("--dsn", library, "search", "--", query)
    assert by_both.code == ExitCode.DONE
    assert "no searchable words" in by_both.err and "vector alone" in by_both.err
    assert (
        "no searchable words" not in trecho("--dsn", library, "search", "--mode", "semantic", "--", query).err
    )
    assert "no searchable words" in trecho("--dsn", library, "evidence", "--", query).err


@pytest.mark.parametrize(
    "query", ["cópia", "copia", "de cópia", '"da cópia"', "carregarPedidos", "1.5", "3", "a/b.rs", "-x cópia"]
)
def test_search__a_query_with_words_has_no_such_note(
    trecho: Trecho, library: str, provider: FakeProvider, query: str
) -> None:
    ran = trecho("--json", "--dsn", library, "search", "--", query)
    assert json.loads(ran.out)["has_words"] is True
    assert "no searchable words" not in ran.err


def test_search__before_anything_is_indexed_ends_with_5(
    trecho: Trecho, dsn: str, provider: FakeProvider
) -> None:
    assert trecho("search", "x", dsn=dsn).code == ExitCode.NOT_USABLE
    ran = trecho("search", "x", "--mode", "lexical", dsn=dsn)
    assert (ran.code, ran.out) == (ExitCode.DONE, "")
    assert "nothing found" in ran.err


def test_search_explain__shows_the_parts(trecho: Trecho, library: str, provider: FakeProvider) -> None:
    ran = trecho("search", "cópia", "--explain", dsn=library)
    words = [line.split()[0] for line in ran.out.splitlines() if line and not line.startswith(" ")]
    assert words == ["total", "filter", "query", "words", "vectors", "fusion"]
    parts = json.loads(trecho("search", "cópia", "--explain", "--json", dsn=library).out)["parts"]
    assert [part["part"] for part in parts] == words


def test_evidence__prints_blocks_within_the_budget(
    trecho: Trecho, library: str, provider: FakeProvider
) -> None:
    ran = trecho("evidence", "cópia", "--max-chars", "400", dsn=library)
    assert ran.code == ExitCode.DONE, ran.err
    assert ran.out.startswith("doc_id: ") and len(ran.out) <= 401
    assert json.loads(trecho("evidence", "cópia", "--json", dsn=library).out)["evidence"].startswith(
        "doc_id: "
    )


def test_trace__a_search_is_recorded_shown_and_compared(
    trecho: Trecho, library: str, provider: FakeProvider, tmp_path: Path
) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    assert trecho("search", "cópia", "--trace", str(before), dsn=library).code == ExitCode.DONE
    record = json.loads(before.read_text(encoding="utf-8"))
    assert (record["query"], record["mode"], record["index_version"]) == ("cópia", "hybrid", 1)
    assert [row["rank"] for row in record["results"]] == [1, 2]
    assert all("content" not in row for row in record["results"])

    ran = trecho("trace", "show", str(before))
    assert ran.code == ExitCode.DONE
    assert all(row["chunk_id"] in ran.out for row in record["results"])
    assert "rank   score   words meaning  chunk" in ran.out.splitlines()
    assert "same passages, same order" in trecho("trace", "diff", str(before), str(before)).out

    with psycopg.connect(library, autocommit=True) as conn:
        conn.execute("SELECT trecho.remove_document('docs', 'guia/jardim.md')")
    trecho("search", "cópia", "--trace", str(after), dsn=library)
    difference = json.loads(trecho("trace", "diff", str(before), str(after), "--json").out)
    assert [row["doc_id"] for row in difference["left"]] == ["guia/jardim.md"]
    assert difference["entered"] == []


def test_trace_diff__tells_entered_left_replaced_and_moved_apart() -> None:
    def trace(*ids: str) -> Trace:
        rows = [
            {"rank": i, "chunk_id": name, "doc_id": name.split(":")[0], "score": 1 / i}
            for i, name in enumerate(ids, start=1)
        ]
        return Trace("q", "hybrid", {}, "now", 1, "label", rows)

    difference = compare(trace("a:1", "b:1", "c:1", "d:1"), trace("b:1", "a:1", "c:1", "d:2", "e:1"))
    assert [row["chunk_id"] for row in difference.entered] == ["e:1"]
    assert difference.left == []
    assert [step["chunk_ids"] for step in difference.replaced] == [("d:1", "d:2")]
    assert [(step["doc_id"], step["ranks"]) for step in difference.moved] == [("b", (2, 1)), ("a", (1, 2))]
    assert difference.unmoved == 1
    assert not difference.same


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"trace": 1}', '{"trace": 2, "results": []}', "\udcff"])
def test_trace__what_is_not_a_trace_is_refused(trecho: Trecho, tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    ran = trecho("trace", "show", str(path))
    assert ran.code == ExitCode.USAGE
    assert "hint:" in ran.err
    assert trecho("trace", "show", str(tmp_path / "absent.json")).code == ExitCode.USAGE


def test_trace__takes_one_file_to_show_and_two_to_compare(trecho: Trecho, tmp_path: Path) -> None:
    assert trecho("trace", "show", "a", "b").code == ExitCode.USAGE
    assert trecho("trace", "diff", "a").code == ExitCode.USAGE
    assert trecho("trace", "both", "a").code == ExitCode.USAGE
