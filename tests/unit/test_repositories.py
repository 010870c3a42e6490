"""Laws of the chunkers over whole folders of real files.

TRECHO_TEST_REPOSITORIES names the folders, separated by colons. Without it they are what a machine with this project
has: the project, the standard library of the running Python, the packages beside it, and /usr/share/doc, up to so many
files of a kind.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from laws import check_slices
from test_markdown_blocks import ORACLE_DIFFERS, headings, oracle_headings
from trecho_chunkers import Settings, chunk, languages
from trecho_chunkers.dispatch import is_markdown
from trecho_chunkers.front_matter import read
from trecho_chunkers.model import DEFAULT_SETTINGS
from trecho_chunkers.normalise import normalise

ROOT = Path(__file__).resolve().parents[2]
TIGHT = Settings(300, 12, 8, 12, 10, 3, False, 700, 524_288, 600_000)
STABLE = Settings(stable_windows=True, timeout_ms=600_000)
# Of what every machine has; folders that are named are read whole.
MOST_OF_A_KIND = 60
SKIPPED = {
    ".git",
    ".hg",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
}


def folders() -> tuple[list[Path], bool]:
    """What to read, and whether somebody named it."""
    named = os.environ.get("TRECHO_TEST_REPOSITORIES", "")
    if named:
        return [Path(folder) for folder in named.split(":") if folder], True
    paths = sysconfig.get_paths()
    found = [ROOT, Path(paths["stdlib"]), Path(paths["purelib"]), Path("/usr/share/doc")]
    return [folder for folder in found if folder.is_dir()], False


def texts(folder: Path, most: int | None) -> Iterator[tuple[str, str, str]]:
    """Kind, path and text of each file that sync would take, in an order that does not depend on the machine."""
    taken: Counter[str] = Counter()
    for place, inner, names in os.walk(folder):
        inner[:] = sorted(
            name for name in inner if name not in SKIPPED and not (Path(place) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            file = Path(place) / name
            kind = languages.language_of(name) or ("markdown" if is_markdown(name) else file.suffix or name)
            if (most is not None and taken[kind] >= most) or file.is_symlink() or not file.is_file():
                continue
            if file.stat().st_size > DEFAULT_SETTINGS.max_document_bytes:
                continue
            data = file.read_bytes()
            try:
                text = data.decode()
            except UnicodeDecodeError:
                continue
            if "\0" not in text:
                taken[kind] += 1
                yield kind, str(file), text


def check_file(path: str, text: str, settings: Settings) -> int:
    """Every law on one file; how many chunks it has."""
    chunks = chunk(path, text, settings)
    markdown = is_markdown(path)
    by_symbol = languages.grammar_of(path) is not None
    check_slices(text, chunks, settings, front_matter=markdown, overlap=not markdown)
    assert chunk(path, text, settings) == chunks, "another time, other chunks"
    ready = normalise(text)
    assert normalise(ready) == ready
    assert chunk(path, ready, settings) == chunks, "line ends or the form of characters matter"
    for piece in chunks:
        assert (piece.symbol == "") <= (not by_symbol or piece.kind.startswith("window")), piece
    return len(chunks)


@pytest.mark.slow
def test_laws__hold_over_whole_repositories() -> None:
    found, named = folders()
    files: Counter[str] = Counter()
    pieces = 0
    for folder in found:
        assert folder.is_dir(), f"{folder} of TRECHO_TEST_REPOSITORIES is no folder"
        for kind, path, text in texts(folder, None if named else MOST_OF_A_KIND):
            for settings in (Settings(timeout_ms=600_000), TIGHT, STABLE):
                try:
                    count = check_file(path, text, settings)
                except AssertionError as error:
                    raise AssertionError(f"{path}, {settings}: {error}") from error
            files[kind] += 1
            pieces += count
    told = ", ".join(f"{count} {kind}" for kind, count in files.most_common(12))
    print(f"{sum(files.values())} files, {pieces} chunks with stable windows: {told}", file=sys.stderr)
    assert sum(files.values()) > 0


@pytest.mark.slow
def test_headings__equal_the_oracles_over_whole_repositories() -> None:
    found, named = folders()
    count = 0
    for folder in found:
        for kind, path, text in texts(folder, None if named else MOST_OF_A_KIND):
            if kind != "markdown":
                continue
            ready = normalise(text)
            body = ready[read(ready).body_start :]
            if not ORACLE_DIFFERS.search(body):
                assert headings(body) == oracle_headings(body), path
                count += 1
    print(f"{count} Markdown files", file=sys.stderr)
    assert count > 0
