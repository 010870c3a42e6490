"""Data of the benchmark: FaQuAD where it lies, and a large corpus made from its sentences."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.load import Passage, Source

ROOT = Path(__file__).resolve().parent.parent
FAQUAD = ROOT.parent / "shared" / "data" / "faquad.json"

_SUFFIXES = """
    ção mento idade ista ável ante ura ência eiro oso ismo agem ado ivo ário ória ez dor tiva logia grafia ções
    mentos idades
""".split()  # noqa: SIM905
_WORD = re.compile(r"\w+|\W+")


@dataclass(frozen=True)
class Questions:
    """Passages and the questions that each of them answers."""

    passages: list[str]
    titles: list[str]
    questions: list[str]
    answers: list[int]  # index of the passage, one per question


def faquad(path: Path = FAQUAD) -> Questions | None:
    """FaQuAD, or None where it does not lie beside the repository."""
    if not path.is_file():
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    return Questions(
        [p["text"] for p in data["passages"]],
        [p["title"] for p in data["passages"]],
        [q["question"] for q in data["questions"]],
        [q["passage"] for q in data["questions"]],
    )


def handbook(folder: Path = ROOT / "examples") -> Questions:
    """The example handbook cut into its paragraphs, in place of FaQuAD where that is absent.

    answers: the first paragraph of the document that answers.
    """
    passages: list[str] = []
    titles: list[str] = []
    first: dict[str, int] = {}
    for path in sorted(folder.rglob("*.md")):
        if path.parent == folder:
            continue
        name = path.relative_to(folder).as_posix()
        parts = [p.strip() for p in path.read_text(encoding="utf-8").split("\n\n") if len(p) > 60]
        if parts:
            first[name] = len(passages)
            passages += parts
            titles += [name] * len(parts)
    lines = (folder / "questions.tsv").read_text(encoding="utf-8").splitlines()[1:]
    asked = [row for row in (line.split("\t") for line in lines) if len(row) > 1 and row[1] in first]
    return Questions(passages, titles, [row[0] for row in asked], [first[row[1]] for row in asked])


class Corpus:
    """Documents that look like Portuguese prose, any number of them, the same for the same seed.

    Sentences are those of the source, mixed within a topic. Rare words give way to invented ones, drawn from a
    vocabulary of 120,000 with Zipf-like frequencies, so that a word of a question is about as rare in 100,000 chunks
    as it is in real ones. The vector of a chunk is a mixture of the vectors of three paragraphs of the topic and one
    other, with a little noise: clusters, as real vectors have.
    """

    def __init__(self, source: Questions, vectors: NDArray[np.float32], seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        self._vectors = vectors
        seen = Counter(w for text in source.passages for w in {t.lower() for t in re.findall(r"\w+", text)})
        topics: dict[str, list[int]] = {}
        for i, title in enumerate(source.titles):
            topics.setdefault(title, []).append(i)
        self._topics = list(topics.values())
        self._sentences = [
            [
                self._template(s, seen)
                for i in members
                for s in re.split(r"(?<=[.!?])\s+", source.passages[i])
                if len(s) > 20
            ]
            for members in self._topics
        ]
        self._words = self._vocabulary([w for w in seen if len(w) > 4 and w.isalpha()], 120_000)
        weights = 1 / (np.arange(len(self._words)) + 50.0)
        self._cumulative = np.cumsum(weights / weights.sum())

    def _vocabulary(self, stems: list[str], size: int) -> list[str]:
        heads = sorted({w[:n] for w in stems for n in (3, 4, 5)})
        middles = sorted({w[2:4] for w in stems} | {""})
        words: dict[str, None] = {}
        while len(words) < size:
            parts = zip(
                self._rng.integers(len(heads), size=size),
                self._rng.integers(len(middles), size=size),
                self._rng.integers(len(_SUFFIXES), size=size),
                strict=True,
            )
            words.update((heads[a] + middles[b] + _SUFFIXES[c], None) for a, b, c in parts)
        chosen = list(words)[:size]
        self._rng.shuffle(chosen)
        return chosen

    @staticmethod
    def _template(sentence: str, seen: Counter[str]) -> tuple[list[str], list[int], NDArray[np.float64]]:
        tokens = _WORD.findall(sentence)
        places, chances = [], []
        for i, token in enumerate(tokens):
            if len(token) > 3 and token.isalpha():
                df = seen[token.lower()]
                places.append(i)
                chances.append(0.95 if df <= 2 else 0.88 if df <= 10 else 0.7 if df <= 50 else 0.3)
        return tokens, places, np.array(chances)

    def _sentence(self, topic: int) -> str:
        sentences = self._sentences[topic]
        tokens, places, chances = sentences[int(self._rng.integers(len(sentences)))]
        if not places:
            return "".join(tokens)
        tokens = tokens.copy()
        draws = self._rng.random(len(places))
        picks = np.searchsorted(self._cumulative, self._rng.random(len(places)))
        for place, draw, chance, pick in zip(places, draws, chances, picks, strict=True):
            if draw < chance:
                # Half of the invented words belong to the topic.
                shift = 0 if draw < chance / 2 else topic * 97
                tokens[place] = self._words[(int(pick) + shift) % len(self._words)]
        return "".join(tokens)

    def _passage(self, topic: int) -> Passage:
        other = int(self._rng.integers(len(self._topics)))
        text = " ".join(
            self._sentence(topic if self._rng.random() < 0.85 else other)
            for _ in range(int(self._rng.integers(3, 9)))
        )
        members = [*self._rng.choice(self._topics[topic], 3), int(self._rng.integers(len(self._vectors)))]
        vector = self._rng.dirichlet([3, 2, 2, 1]) @ self._vectors[members]
        noise = np.zeros_like(vector)
        noise[:384] = self._rng.standard_normal(384) * (0.1 / np.sqrt(384))
        vector = vector + noise
        return Passage(text[:3000], (vector / np.linalg.norm(vector)).astype(np.float32))

    def sources(self, chunks: int) -> Iterator[Source]:
        """Documents with that many chunks in all; 1 in 100 lies under area-00/, area-01/ and so on."""
        made, number = 0, 0
        while made < chunks:
            size = min(int(self._rng.geometric(1 / 8)), 200, chunks - made)
            topic = int(self._rng.integers(len(self._topics)))
            yield Source(
                f"area-{number % 100:02}/{number:06}.md",
                [self._passage(topic) for _ in range(size)],
                title=f"Documento {number}",
            )
            made += size
            number += 1
