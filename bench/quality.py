"""Quality of search: does the document that answers a question come first?"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from bench.corpus import Questions
from bench.vectors import VectorCache

K = 10
_AND_RRF = """
WITH words AS (
    SELECT c.chunk_key, row_number() OVER (ORDER BY ts_rank_cd(c.search_vector, q) DESC) AS place
      FROM trecho.chunks AS c, websearch_to_tsquery('portuguese', %(query)s) AS q
     WHERE c.search_vector @@ q ORDER BY place LIMIT 40
), vectors AS (
    SELECT c.chunk_key, row_number() OVER (ORDER BY c.embedding <=> %(vector)s) AS place
      FROM trecho.chunks AS c ORDER BY place LIMIT 40
)
SELECT d.source_path
  FROM (SELECT chunk_key, sum(1.0 / (60 + place)) AS score
          FROM (TABLE words UNION ALL TABLE vectors) AS lists GROUP BY chunk_key) AS f
  JOIN trecho.placements AS p USING (chunk_key) JOIN trecho.documents AS d USING (document_id)
 ORDER BY f.score DESC LIMIT 40
"""
_AND_WORDS = """
SELECT d.source_path FROM trecho.chunks AS c CROSS JOIN websearch_to_tsquery('portuguese', %(query)s) AS q
  JOIN trecho.placements AS p USING (chunk_key) JOIN trecho.documents AS d USING (document_id)
 WHERE c.search_vector @@ q ORDER BY ts_rank_cd(c.search_vector, q) DESC LIMIT 40
"""
_OURS = (
    "SELECT source_path FROM trecho.search(%(query)s, {vector}, 1, k => 10, mode => '{mode}') ORDER BY rank"
)


@dataclass(frozen=True)
class Score:
    """mrr, hit: at 10, 0 to 1, higher is better.

    gain: mean paired difference of the reciprocal rank to the usual recipe; error: its standard error (n questions).
    """

    name: str
    n: int
    mrr: float
    hit: float
    gain: float
    error: float


def strip_accents(text: str) -> str:
    """The text as many people type it."""
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


def put_all(conn: psycopg.Connection[Any], documents: Sequence[tuple[str, str]], cache: VectorCache) -> None:
    """Put documents (path, text) through the public function and give every chunk its vector."""
    for path, text in documents:
        scope = "adr" if path.startswith("decisoes/") else "docs"
        conn.execute("SELECT trecho.put_document(%s::trecho.chunk_scope, %s, %s)", (scope, text, path))
    rows = conn.execute(
        "SELECT chunk_key, trecho.embedding_text(1, context, content) FROM trecho.chunks ORDER BY 1"
    ).fetchall()
    vectors = cache.passages([text for _, text in rows])
    with conn.cursor() as cursor:
        cursor.executemany(
            "UPDATE trecho.chunks SET embedding = %s WHERE chunk_key = %s",
            [(vector, key) for vector, (key, _) in zip(vectors, rows, strict=True)],
        )
    conn.execute("SELECT trecho.refresh_lexeme_stats()")


def faquad_documents(source: Questions) -> list[tuple[str, str]]:
    """Each paragraph a document."""
    return [(f"faquad/{i:04}.md", text) for i, text in enumerate(source.passages)]


def example_questions(folder: Path) -> list[tuple[str, str]]:
    """Questions of examples/questions.tsv with the path that answers each."""
    lines = (folder / "questions.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in lines if line.strip()]
    return [(row[0], row[1]) for row in rows if len(row) > 1 and row[1]]


def measure(
    conn: psycopg.Connection[Any], questions: Sequence[str], answers: Sequence[str], cache: VectorCache
) -> list[Score]:
    """MRR@10 and hit@10 of our modes beside the usual recipe. answers: path of the right document, one per question."""
    vectors = cache.queries(questions)
    bare = [strip_accents(question) for question in questions]
    bare_vectors = cache.queries(bare)

    def ours(mode: str) -> str:
        return _OURS.format(mode=mode, vector="NULL" if mode == "lexical" else "%(vector)s")

    runs: list[tuple[str, str, Sequence[str], NDArray[np.float32]]] = [
        ("usual recipe (AND, ts_rank_cd, RRF 60)", _AND_RRF, questions, vectors),
        ("usual words (AND, ts_rank_cd)", _AND_WORDS, questions, vectors),
        ("words", ours("lexical"), questions, vectors),
        ("words, no accents typed", ours("lexical"), bare, vectors),
        ("vectors", ours("semantic"), questions, vectors),
        ("hybrid", ours("hybrid"), questions, vectors),
        ("hybrid, no accents typed", ours("hybrid"), bare, bare_vectors),
    ]
    scores, usual = [], np.zeros(len(questions))
    for name, statement, texts, query_vectors in runs:
        reciprocal = np.array(
            [
                _reciprocal(conn, statement, text, vector, answer)
                for text, vector, answer in zip(texts, query_vectors, answers, strict=True)
            ]
        )
        if not scores:
            usual = reciprocal
        difference = reciprocal - usual
        scores.append(
            Score(
                name,
                len(questions),
                float(reciprocal.mean()),
                float((reciprocal > 0).mean()),
                float(difference.mean()),
                float(difference.std() / np.sqrt(len(questions))),
            )
        )
    return scores


def _reciprocal(
    conn: psycopg.Connection[Any], statement: str, query: str, vector: NDArray[np.float32], answer: str
) -> float:
    rows = conn.execute(statement.encode(), {"query": query, "vector": vector}).fetchall()
    paths = list(dict.fromkeys(path for (path,) in rows))[:K]
    return 1 / (paths.index(answer) + 1) if answer in paths else 0.0


def as_rows(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(score) for score in scores]
