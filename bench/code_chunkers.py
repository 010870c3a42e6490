"""How fast code is cut, beside what the parser alone takes on the same files, in the same run.

    python bench/code_chunkers.py DIRECTORY [--language rust] [--rounds 5]

Files are read and normalised first. Rounds of the two alternate, file by file, in CPU time of this process;
the figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "plpython"))

from trecho_chunkers import code, languages, parsing
from trecho_chunkers.model import Deadline, Settings
from trecho_chunkers.normalise import normalise

SETTINGS = Settings()


def read(directory: Path) -> dict[str, list[tuple[str, str]]]:
    """Texts by language: (path, normalised text) of what the chunker takes."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(directory.rglob("*")):
        language = languages.language_of(path.name)
        if language not in languages.GRAMMARS or not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        if len(data) > SETTINGS.max_document_bytes or b"\0" in data:
            continue
        try:
            text = normalise(data.decode())
        except UnicodeDecodeError:
            continue
        found.setdefault(language, []).append((str(path), text))
    return found


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(language: str, files: list[tuple[str, str]], rounds: int) -> None:
    parser = parsing.load(language).parser
    size = sum(len(text.encode()) for _, text in files)
    encoded = [text.encode() for _, text in files]
    parse_times: list[float] = []
    chunk_times: list[float] = []
    kinds: Counter[str] = Counter()
    files_with: Counter[str] = Counter()
    for number in range(rounds + 1):  # the first warms up and counts
        parse_time = chunk_time = 0.0
        for (path, text), data in zip(files, encoded, strict=True):
            parse_time += seconds(lambda data=data: parser.parse(data))
            start = time.process_time()
            chunks = code.chunk_code(path, text, SETTINGS, Deadline(10_000))
            chunk_time += time.process_time() - start
            if number == 0:
                kinds.update(chunk.kind for chunk in chunks)
                files_with.update({chunk.kind for chunk in chunks})
        if number:
            parse_times.append(parse_time)
            chunk_times.append(chunk_time)
    parse, chunk = statistics.median(parse_times), statistics.median(chunk_times)
    ratio = statistics.median(p / c for p, c in zip(parse_times, chunk_times, strict=True))
    print(
        f"{language:12} {len(files):6} files {size / 1e6:7.2f} MB   parse alone {size / 1e6 / parse:6.2f} MB/s"
        f"   chunk_code {size / 1e6 / chunk:6.2f} MB/s   ratio {ratio:.3f}   {sum(kinds.values())} chunks"
    )
    unparsed = {kind: count for kind, count in files_with.items() if kind.startswith("window:")}
    print(f"{'':12} kinds {dict(kinds.most_common(12))}   files not parsed {unparsed}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--language", choices=sorted(languages.GRAMMARS), help="only this one")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    for language, files in sorted(read(given.directory).items()):
        if given.language in (None, language):
            measure(language, files, given.rounds)


if __name__ == "__main__":
    main()
