"""Speed of the chunkers on one core, beside what cannot be avoided and beside the splitters of others.

    python bench/chunkers.py [FOLDER ...] [--language rust] [--dsn DSN] [--rounds 5] [--limit-mb 6] [--json]

Files are read first and grouped by language; without a folder it cuts generated Markdown in Portuguese. For each
group it measures, file by file in turn, so that a busy machine is busy for all of them:

- `parse alone`: tree-sitter's parser through the same binding on the same bytes (code only);
- `trecho`: the chunker in this process; `trecho in SQL`: trecho.chunk on a warm backend over a table of the same
  files, less the reading of the table (with --dsn, on a database that is migrated); `parse alone in SQL`: the parser
  in that same backend, through PL/Python (where the role may create such a function);
- those of semantic-text-splitter, LangChain, LlamaIndex and chonkie that are installed (bench/peers.txt). Those marked
  `syntax` cut by a parser's tree.

All get the same texts, one after the other, and the same budget of 1,500 characters (ours holds 60 lines besides). All
say where a piece stands, in lines (ours), in characters of the file (semantic-text-splitter, LangChain on code), or in
characters of the section (LangChain on Markdown); LlamaIndex is let off that, and off making its nodes.

Time is CPU time of the thread (of the backend, where /proc shows it); the figure is the sum of each file's best
round, in SQL of each group of files. `over` counts pieces over 6,000 bytes. Another Python measures itself.
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
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "plpython"))

from trecho_chunkers import chunk, languages, parsing
from trecho_chunkers.model import DEFAULT_SETTINGS

Document = tuple[str, str]  # path, text
Splitter = Callable[[str, str], list[str]]  # (path, text) -> contents of the pieces

CHUNK_CHARS = 1500
CAP_BYTES = DEFAULT_SETTINGS.chunk_max_bytes
_WORDS = """a o de que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem
aplicação índice consulta migração função segurança memória versão código transação"""


class Row(NamedTuple):
    """What one contender did with one group of files."""

    name: str
    mb_per_s: float
    chunks: int
    over: int


# --- files -------------------------------------------------------------------------------------------------


def documents(folders: list[Path], limit: int) -> dict[str, list[Document]]:
    """UTF-8 files of the folders by language, as sync would take them; a sample of about `limit` bytes each."""
    files = [file for folder in folders for file in folder.rglob("*")]
    random.Random(20).shuffle(files)
    found: dict[str, list[Document]] = {}
    sizes: dict[str, int] = {}
    for file in files:
        language = languages.language_of(file.name)
        if language is None or not (language == "markdown" or language in languages.GRAMMARS):
            continue
        if file.is_symlink() or not file.is_file():
            continue
        data = file.read_bytes()
        size = sizes.get(language, 0) + len(data)
        if not data or len(data) > DEFAULT_SETTINGS.max_document_bytes or b"\0" in data or size > limit:
            continue
        try:
            found.setdefault(language, []).append((str(file), data.decode()))
        except UnicodeDecodeError:
            continue
        sizes[language] = size
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
            rows = "\n".join(f"SELECT {rng.randint(0, 99)};" for _ in range(rng.randint(2, 20)))
            return f"```sql\n{rows}\n```"
        rows = "\n".join(f"| {rng.choice(words)} | 1 |" for _ in range(rng.randint(2, 12)))
        return f"| a | b |\n|---|---|\n{rows}"

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


# --- contenders --------------------------------------------------------------------------------------------


def ours(path: str, text: str) -> list[str]:
    return [piece.content for piece in chunk(path, text)]


def contenders(language: str) -> Iterator[tuple[str, Splitter]]:
    """Everything that cuts this language here, ours first."""
    if language in languages.GRAMMARS:
        parser = parsing.load(language).parser

        def parse(_path: str, text: str) -> list[str]:
            parser.parse(text.encode())
            return []

        yield "parse alone", parse
    yield "trecho", ours
    for maker in (_semantic, _langchain, _llama_index, _chonkie):
        try:
            yield from maker(language)
        except Exception as error:
            print(f"{maker.__name__[1:]} is not measured: {type(error).__name__}: {error}", file=sys.stderr)


def _semantic(language: str) -> Iterator[tuple[str, Splitter]]:
    module = importlib.import_module("semantic_text_splitter")
    if language == "markdown":
        splitter = module.MarkdownSplitter(CHUNK_CHARS)
    else:
        splitter = module.CodeSplitter(_native(language).language(), CHUNK_CHARS)
    yield (
        "semantic-text-splitter (syntax)",
        lambda _path, text: [piece for _, piece in splitter.chunk_indices(text)],
    )


def _langchain(language: str) -> Iterator[tuple[str, Splitter]]:
    module = importlib.import_module("langchain_text_splitters")
    recursive = module.RecursiveCharacterTextSplitter
    if language == "markdown":
        headers = module.MarkdownHeaderTextSplitter(
            [("#", "h1"), ("##", "h2"), ("###", "h3")], strip_headers=False
        )
        splitter = recursive(chunk_size=CHUNK_CHARS, chunk_overlap=0, add_start_index=True)

        def split(_path: str, text: str) -> list[str]:
            return [piece.page_content for piece in splitter.split_documents(headers.split_text(text))]

        yield "langchain headers + recursive", split
        return
    known = {"rust": "rust", "typescript": "ts", "python": "python", "go": "go", "javascript": "js"}
    if language in known:
        splitter = recursive.from_language(
            known[language], chunk_size=CHUNK_CHARS, chunk_overlap=0, add_start_index=True
        )
        yield (
            "langchain recursive",
            lambda _path, text: [piece.page_content for piece in splitter.create_documents([text])],
        )


def _llama_index(language: str) -> Iterator[tuple[str, Splitter]]:
    module = importlib.import_module("llama_index.core.node_parser")
    document = importlib.import_module("llama_index.core").Document
    if language == "markdown":
        nodes = module.MarkdownNodeParser()
        sentences = module.SentenceSplitter(chunk_size=CHUNK_CHARS, chunk_overlap=0, tokenizer=list)

        def split(_path: str, text: str) -> list[str]:
            found = nodes.get_nodes_from_documents([document(text=text)])
            return [piece for node in found for piece in sentences.split_text(node.get_content())]

        yield "llama-index (syntax)", split
        return
    splitter = module.CodeSplitter(language, max_chars=CHUNK_CHARS, parser=parsing.load(language).parser)
    yield "llama-index (syntax)", lambda _path, text: list(splitter.split_text(text))


def _chonkie(language: str) -> Iterator[tuple[str, Splitter]]:
    module = importlib.import_module("chonkie")
    if language == "markdown":
        splitter = module.RecursiveChunker.from_recipe("markdown")
        splitter.chunk_size = CHUNK_CHARS
    else:
        splitter = module.CodeChunker(tokenizer="character", chunk_size=CHUNK_CHARS, language=language)
    name = "chonkie" if language == "markdown" else "chonkie (syntax)"
    yield name, lambda _path, text: [piece.text for piece in splitter.chunk(text)]


class _Native(NamedTuple):
    language: Callable[[], Any]


def _native(language: str) -> _Native:
    grammar = languages.GRAMMARS[language]
    return _Native(getattr(importlib.import_module(grammar.module), grammar.function))


# --- measuring ---------------------------------------------------------------------------------------------


def _cpu() -> float:
    return time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)


def in_process(language: str, files: list[Document], rounds: int) -> list[Row]:
    """A row for each contender, over the files that it takes; those that it fails on are told."""
    running = dict(contenders(language))
    spent = dict.fromkeys(running, 0.0)
    taken = dict.fromkeys(running, 0)  # bytes
    counts = dict.fromkeys(running, (0, 0))
    failed: dict[str, list[str]] = {name: [] for name in running}
    for path, text in files:
        best = dict.fromkeys(running, float("inf"))
        for number in range(rounds):
            # Forth and back, so that nobody always finds the caches as the same other one left them.
            for name, splitter in list(running.items())[:: 1 if number % 2 else -1]:
                begin = _cpu()
                try:
                    pieces = splitter(path, text)
                except Exception as error:
                    if not number:
                        failed[name].append(f"{path}: {type(error).__name__}: {error}")
                    continue
                best[name] = min(best[name], _cpu() - begin)
                if not number:
                    over = sum(len(piece.encode()) > CAP_BYTES for piece in pieces)
                    counts[name] = (counts[name][0] + len(pieces), counts[name][1] + over)
        for name, seconds in best.items():
            if seconds < float("inf"):
                spent[name] += seconds
                taken[name] += len(text.encode())
    for name, errors in failed.items():
        if errors:
            print(
                f"{name} fails on {len(errors)} of {len(files)} files, such as {errors[0]}", file=sys.stderr
            )
    return [Row(name, taken[name] / 1e6 / spent[name], *counts[name]) for name in running if spent[name]]


# The least that a function in PL/Python does to parse a text.
_PARSE_IN_SQL = """
CREATE FUNCTION pg_temp.parse_alone(content text) RETURNS integer LANGUAGE plpython3u AS $py$
if "parser" not in SD:
    import importlib
    import tree_sitter
    SD["parser"] = tree_sitter.Parser(tree_sitter.Language(importlib.import_module("{module}").{function}()))
SD["parser"].parse(content.encode())
return 1
$py$
"""
_GROUPS = 24


def in_sql(dsn: str, language: str, files: list[Document], rounds: int) -> list[Row]:
    """trecho.chunk over a table of the files, on a warm backend; the time of reading the table is taken off."""
    psycopg = importlib.import_module("psycopg")
    work = {
        "reading": "SELECT sum(length(content)), 0 FROM files WHERE part = %s",
        "trecho in SQL": "SELECT sum(length(c.content)), count(*)"
        " FROM files AS f, trecho.chunk(f.path, f.content) AS c WHERE f.part = %s",
    }
    with psycopg.connect(dsn, autocommit=True) as conn:
        clock = _backend_clock(conn.info.backend_pid)
        conn.execute("CREATE TEMP TABLE files (path text, content text, part integer)")
        with conn.cursor() as cursor, cursor.copy("COPY files FROM STDIN") as copy:
            for number, file in enumerate(files):
                copy.write_row((*file, number * _GROUPS // len(files)))
        conn.execute("ANALYZE files")
        grammar = languages.GRAMMARS.get(language)
        if grammar is not None:
            try:
                conn.execute(_PARSE_IN_SQL.format(module=grammar.module, function=grammar.function))
                parse = "SELECT sum(pg_temp.parse_alone(content)), 0 FROM files WHERE part = %s"
                work = {"parse alone in SQL": parse, **work}
            except psycopg.Error as error:
                print(f"the parser alone is not measured in SQL: {error}", file=sys.stderr)
        best = {(name, part): float("inf") for name in work for part in range(_GROUPS)}
        count = 0
        for number in range(rounds + 1):
            # Part by part, so that a machine whose speed changes is as fast for all of them.
            for part in range(_GROUPS):
                for name, query in list(work.items())[:: 1 if number % 2 else -1]:
                    begin = clock()
                    found = conn.execute(query, (part,)).fetchone()
                    if number:  # the first one warms up
                        best[name, part] = min(best[name, part], clock() - begin)
                    else:
                        count += found[1]
    size = sum(len(text.encode()) for _, text in files)
    spent = {name: sum(best[name, part] for part in range(_GROUPS)) for name in work}
    reading = spent.pop("reading")
    return [
        Row(name, size / 1e6 / (seconds - reading), count if name == "trecho in SQL" else 0, 0)
        for name, seconds in spent.items()
    ]


def _backend_clock(pid: int) -> Callable[[], float]:
    """CPU seconds of the backend; the clock on the wall where /proc does not show it."""
    file = Path(f"/proc/{pid}/schedstat")
    try:
        if b"postgres" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            raise OSError("another process has this number here")
        file.read_text()
    except OSError:
        print("the backend's CPU time is not to be seen from here: wall time", file=sys.stderr)
        return time.perf_counter
    return lambda: int(file.read_text().split()[0]) / 1e9


def show(language: str, files: list[Document], rows: list[Row], as_json: bool) -> None:
    size = sum(len(text.encode()) for _, text in files)
    speeds = {row.name: row.mb_per_s for row in rows}
    head = {"language": language, "files": len(files), "mb": round(size / 1e6, 2)}
    head["python"] = sys.version.split()[0]
    if not as_json:
        print(f"\n{language}: {len(files)} files, {size / 1e6:.2f} MB, Python {head['python']}")
    for row in rows:
        floor = speeds.get("parse alone in SQL" if "in SQL" in row.name else "parse alone")
        share = None if floor is None else round(row.mb_per_s / floor, 3)
        if as_json:
            figures = {"of_parse_alone": share, **row._asdict(), "mb_per_s": round(row.mb_per_s, 2)}
            print(json.dumps({**head, **figures}))
        else:
            of = "" if share is None else f"  {share:5.2f} of parse alone"
            print(f"  {row.name:34}{row.mb_per_s:8.2f} MB/s {row.chunks:8} pieces {row.over:5} over{of}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    known = sorted({"markdown", *languages.GRAMMARS})
    parser.add_argument("--language", action="append", choices=known, help="only this one; may be repeated")
    parser.add_argument("--dsn", help="a migrated database, to measure trecho.chunk too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit-mb", type=float, default=6, help="of each language (default: 6)")
    parser.add_argument("--json", action="store_true", help="one JSON document a line")
    options = parser.parse_args()
    if options.folders:
        found = documents(options.folders, int(options.limit_mb * 1e6))
    else:
        found = {"markdown": generated()}
    if not found:
        parser.error("no files in a language that is cut by syntax")
    for language, files in sorted(found.items()):
        if options.language and language not in options.language:
            continue
        rows = in_process(language, files, options.rounds)
        if options.dsn:
            at = 1 + (rows[0].name == "parse alone")
            rows[at:at] = in_sql(options.dsn, language, files, options.rounds)
        show(language, files, rows, options.json)


if __name__ == "__main__":
    main()
