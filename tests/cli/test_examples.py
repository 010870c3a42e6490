"""The example handbook, with the real model: the questions people ask find the document that answers them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable

import pytest
from support import ROOT, Ran

EXAMPLES = ROOT / "examples"


def questions() -> list[dict[str, str]]:
    with (EXAMPLES / "questions.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def found(trecho: Callable[..., Ran], dsn: str, question: str, *args: str) -> list[str]:
    """Paths of the documents found, best first."""
    ran = trecho("search", question, "-k", "5", "--project", "default", "--json", *args, dsn=dsn)
    assert ran.code == 0, ran.err
    return [r["source_path"] or r["metadata"]["origin"] for r in json.loads(ran.out)["results"]]


def test_questions__name_files_that_exist() -> None:
    asked = questions()
    assert len(asked) == 40
    assert [q["doc"] for q in asked if not (EXAMPLES / q["doc"]).is_file()] == []


def test_words_alone__find_most_answers(trecho: Callable[..., Ran], dsn: str) -> None:
    assert trecho("sync", "--config", str(EXAMPLES / "trecho.toml"), "--no-embed", dsn=dsn).code == 0
    missed = [
        q["question"]
        for q in questions()
        if q["doc"] not in found(trecho, dsn, q["question"], "--mode", "lexical")
    ]
    assert len(missed) <= 4, missed


@pytest.mark.slow
def test_hybrid__finds_the_answer_among_five_for_38_of_40_questions(
    trecho: Callable[..., Ran], dsn: str
) -> None:
    ran = trecho("sync", "--config", str(EXAMPLES / "trecho.toml"), "--json", dsn=dsn)
    assert ran.code == 0, ran.err
    assert sum(o["embedded"] for o in json.loads(ran.out)) > 200
    missed = [q["question"] for q in questions() if q["doc"] not in found(trecho, dsn, q["question"])]
    assert len(missed) <= 2, missed
    again = trecho("sync", "--config", str(EXAMPLES / "trecho.toml"), "--json", dsn=dsn)
    assert sum(o["embedded"] + o["provider_calls"] for o in json.loads(again.out)) == 0
    status = trecho("status", "--check", dsn=dsn)
    assert status.code == 0, status.out
