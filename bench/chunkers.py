"""Speed of the chunkers in this process, one core: MB/s of UTF-8, CPU time, best of several rounds.

    python bench/chunkers.py [FOLDER ...] [--suffix .md --suffix .rs] [--rounds 5] [--json]

Without a folder it cuts generated Markdown in Portuguese. Beside our chunker stand those of others that are
installed and respect syntax (semantic-text-splitter, LangChain, LlamaIndex); none of them is needed. Rounds are
interleaved, so that a busy machine is busy for all of them. Figures go to stdout, one line each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "plpython"))

from trecho_chunkers import ChunkError, chunk
from trecho_chunkers.dispatch import is_markdown

Document = tuple[str, str]  # path, text
Splitter = Callable[[str, str], int]  # (path, text) -> number of chunks

MAX_BYTES = 524_288
CHUNK_CHARS = 1500
_WORDS = """a o de que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem
aplicação índice consulta migração função segurança memória versão código transação"""


def documents(folders: list[Path], suffixes: tuple[str, ...]) -> list[Document]:
    """UTF-8 files of the folders whose names end so, 512 KiB at most."""
    found: list[Document] = []
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.suffix in suffixes and file.is_file() and file.stat().st_size <= MAX_BYTES:
                try:
                    text = file.read_bytes().decode()
                except UnicodeDecodeError:
                    continue
                if "\0" not in text:
                    found.append((str(file.relative_to(folder)), text))
    return found


def generated(size: int = 2_000_000) -> list[Document]:
    """Markdown in Portuguese: headings, paragraphs, lists, tables, fences, about `size` characters."""
    rng = random.Random(20)
    words = [*_WORDS.split()]

    def sentence() -> str:
        return " ".join(rng.choice(words) for _ in range(rng.randint(6, 18))).capitalize() + "."

    def block() -> str:
        kind = rng.random()
        if kind < 0.6:
            return " ".join(sentence() for _ in range(rng.randint(1, 6)))
        if kind < 0.8:
            return "\n".join(f"- {sentence()}" for _ in range(rng.randint(2, 8)))
        if kind < 0.9:
            return (
                "```sql\n"
                + "\n".join(f"SELECT {rng.randint(0, 99)};" for _ in range(rng.randint(2, 20)))
                + "\n```"
            )
        return "| a | b |\n|---|---|\n" + "\n".join(
            f"| {rng.choice(words)} | 1 |" for _ in range(rng.randint(2, 12))
        )

    found: list[Document] = []
    total = 0
    while total < size:
        parts = [f"# {sentence()}"]
        for _ in range(rng.randint(2, 12)):
            parts.append(f"{rng.choice(['##', '##', '###'])} {sentence()}")
            parts.extend(block() for _ in range(rng.randint(1, 6)))
        text = "\n\n".join(parts) + "\n"
        found.append((f"doc-{len(found)}.md", text))
        total += len(text)
    return found


def ours(path: str, text: str) -> int:
    return len(chunk(path, text))


def peers(markdown: bool) -> Iterator[tuple[str, Splitter]]:
    """Markdown splitters of others that are installed."""
    if not markdown:
        return
    try:
        splitter = importlib.import_module("semantic_text_splitter").MarkdownSplitter(CHUNK_CHARS)
        yield "semantic-text-splitter", lambda _path, text: len(splitter.chunks(text))
    except ImportError:
        pass
    try:
        module = importlib.import_module("langchain_text_splitters")
        headers = module.MarkdownHeaderTextSplitter(
            [("#", "h1"), ("##", "h2"), ("###", "h3")], strip_headers=False
        )
        recursive = module.RecursiveCharacterTextSplitter(chunk_size=CHUNK_CHARS, chunk_overlap=0)
        yield "langchain", lambda _path, text: len(recursive.split_documents(headers.split_text(text)))
    except ImportError:
        pass
    try:
        parser = importlib.import_module("llama_index.core.node_parser").MarkdownNodeParser()
        document = importlib.import_module("llama_index.core").Document
        yield "llama-index", lambda _path, text: len(parser.get_nodes_from_documents([document(text=text)]))
    except ImportError:
        pass


def run(splitter: Splitter, found: list[Document]) -> tuple[float, int]:
    """Seconds of CPU and chunks of one round."""
    begin = time.process_time()
    chunks = 0
    for path, text in found:
        try:
            chunks += splitter(path, text)
        except ChunkError as error:
            print(f"skipped {path}: {error}", file=sys.stderr)
    return time.process_time() - begin, chunks


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument(
        "--suffix", action="append", help="of the files to read (default .md, .markdown, .mdx)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    suffixes = tuple(options.suffix or (".md", ".markdown", ".mdx"))
    found = documents(options.folders, suffixes) if options.folders else generated()
    if not found:
        parser.error(f"no files with {', '.join(suffixes)}")
    size = sum(len(text.encode()) for _, text in found)
    splitters = [("trecho", ours), *peers(all(is_markdown(path) for path, _ in found))]
    best: dict[str, tuple[float, int]] = {}
    for _ in range(options.rounds):
        for name, splitter in splitters:
            best[name] = min(best.get(name, (float("inf"), 0)), run(splitter, found))
    print(f"{len(found)} files, {size / 1e6:.2f} MB, Python {sys.version.split()[0]}", file=sys.stderr)
    for name, (seconds, chunks) in best.items():
        figures = {"chunker": name, "mb_per_s": round(size / 1e6 / seconds, 2), "chunks": chunks}
        print(
            json.dumps(figures)
            if options.json
            else f"{name:24}{figures['mb_per_s']:8} MB/s {chunks:8} chunks"
        )


if __name__ == "__main__":
    main()
