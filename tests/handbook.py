"""A generated handbook: any number of Markdown files in Portuguese, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

_SUBJECTS = [
    "o backup",
    "a réplica",
    "o índice",
    "a migração",
    "o plantão",
    "a restauração",
    "o arquivo de WAL",
    "a consulta",
    "o vetor",
    "a tabela",
]
_VERBS = [
    "exige",
    "atrasa",
    "substitui",
    "verifica",
    "consome",
    "libera",
    "bloqueia",
    "registra",
    "antecipa",
    "depende de",
]
_OBJECTS = [
    "espaço em disco",
    "uma janela de manutenção",
    "o espaço de trabalho",
    "duas aprovações",
    "memória compartilhada",
    "o servidor de ensaio",
    "uma conexão dedicada",
    "a lista de pendências",
    "o relatório semanal",
    "a chave do cofre",
]
_TAILS = [
    "durante a noite",
    "antes do deploy",
    "quando falta espaço",
    "na segunda-feira",
    "sem aviso",
    "a cada hora",
    "por sete dias",
    "em produção",
]


def handbook(count: int, sections: int = 3, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Pairs of relative path and text; every text differs, each section fits one chunk."""
    source = random.Random(seed)

    def sentence() -> str:
        return f"{source.choice(_SUBJECTS)} {source.choice(_VERBS)} {source.choice(_OBJECTS)} {source.choice(_TAILS)}."

    for number in range(count):
        parts = [f"# Página {number}\n\nResumo da página {number}.\n"]
        for section in range(1, sections + 1):
            body = " ".join(sentence().capitalize() for _ in range(source.randint(4, 9)))
            parts.append(f"\n## Parte {section} de {number}\n\n{body}\n")
        yield f"{number // 100:02}/{number:05}.md", "".join(parts)


def write_handbook(folder: Path, count: int, sections: int = 3, seed: int = 1) -> None:
    """Write it below folder."""
    for name, text in handbook(count, sections, seed):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
