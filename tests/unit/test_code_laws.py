"""Laws of the code chunker on generated text: cover, order, bound, lines, repeatable."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trecho_chunkers import code, parsing
from trecho_chunkers.model import Deadline, Settings
from trecho_chunkers.normalise import normalise

PATHS = ["a.rs", "a.ts", "a.tsx", "a.js", "a.toml", "a.yaml", "a.py", "a.go", "a.sql"]

# Pieces that make up declarations, containers, comments, and what breaks them.
PIECES = [
    "fn f() {\n    x();\n}\n",
    "impl<T> A<T> for B {\n",
    "mod m {\n",
    "/// doc é\n",
    "#[attr]\n",
    "pub struct S { a: u8 }\n",
    "class C extends D {\n",
    "  m(): void { y(); }\n",
    "export const k = () => 1;\n",
    "export default {\n",
    "@dec\n",
    "namespace N {\n",
    "/* block\n comment */\n",
    "# comment\n",
    "-- comment\n",
    "[table.sub]\n",
    "[[array]]\n",
    "key: value\n",
    "  nested:\n    - 1\n",
    "---\n",
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\n",
    "def f(a):\n    return a\n",
    "class A:\n    def m(self):\n        pass\n",
    "func (s *S) M() {}\n",
    "CREATE TABLE a.b (c int);\n",
    "$$ body $$",
    "}\n",
    "}",
    "{",
    "(",
    "\n",
    "\n\n",
    "    ",
    "\t",
    '"',
    "'",
    "`",
    "😀",
    "\u3000",
    "\u00a0",
    "e\u0301",
    "x" * 300,
    "y = 1\n" * 30,
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=25).map("".join),
)
SETTINGS = st.builds(
    Settings,
    container_max_lines=st.sampled_from([1, 2, 5, 60]),
    symbol_max_lines=st.sampled_from([1, 3, 8, 120]),
    window_lines=st.sampled_from([2, 7, 60]),
    window_overlap_lines=st.sampled_from([0, 1]),
    chunk_max_bytes=st.sampled_from([64, 200, 6000]),
    stable_windows=st.booleans(),
    section_max_chars=st.just(1500),
    section_max_lines=st.just(60),
    max_document_bytes=st.just(524_288),
    timeout_ms=st.just(60_000),
)


def check_laws(path: str, raw: str, chosen: Settings) -> None:
    text = normalise(raw.replace("\0", ""))
    chunks = code.chunk_code(path, text, chosen, Deadline(60_000))
    assert chunks == code.chunk_code(path, text, chosen, Deadline(60_000))
    line_starts = [0]
    for line in text.split("\n"):
        line_starts.append(line_starts[-1] + len(line) + 1)
    covered = bytearray(len(text))
    start, end = -1, 0
    for number, chunk in enumerate(chunks, 1):
        assert chunk.ordinal == number
        assert chunk.content.strip()
        assert len(chunk.content.encode()) <= chosen.chunk_max_bytes
        assert chunk.end_line - chunk.start_line == chunk.content.count("\n")
        assert (chunk.symbol == "") == chunk.kind.startswith("window"), chunk
        assert len(chunk.symbol) <= 400
        assert len(chunk.context) <= 1200
        # The content stands on its line, after the piece before it or beginning later than that one did.
        low, high = line_starts[chunk.start_line - 1 : chunk.start_line + 1]
        blank = len(text) - len(text[end:].lstrip())
        places = [
            end,
            blank,
            text.rfind("\n", 0, blank) + 1,
            low,
            text.find(chunk.content, max(low, start + 1)),
        ]
        start = next(
            (at for at in places if low <= at < high and at > start and text.startswith(chunk.content, at)),
            -1,
        )
        assert start >= 0, chunk
        end = start + len(chunk.content)
        covered[start:end] = b"\1" * len(chunk.content)
    lost = [(at, text[at]) for at in range(len(text)) if not covered[at] and not text[at].isspace()]
    assert lost == []


@given(st.sampled_from(PATHS), TEXTS, SETTINGS)
@settings(max_examples=400, deadline=None)
def test_laws__hold_on_generated_text(path: str, raw: str, chosen: Settings) -> None:
    check_laws(path, raw, chosen)


@given(st.text(max_size=200), SETTINGS)
@settings(max_examples=100, deadline=None)
def test_laws__hold_on_any_text_as_yaml(raw: str, chosen: Settings) -> None:
    check_laws("a.yaml", raw, chosen)


@pytest.mark.slow
@given(st.sampled_from(PATHS), TEXTS, SETTINGS)
@settings(max_examples=5000, deadline=None)
def test_laws__hold_on_much_generated_text(path: str, raw: str, chosen: Settings) -> None:
    check_laws(path, raw, chosen)


RUST = [
    "// um\n",
    "/// dois\n",
    "//! três\n",
    "    // quatro\n",
    "/* cinco */\n",
    "/*\n// seis */\n",
    "/*!\n// sete */\n",
    "#[attr]\n",
    "#[attr] // oito\n",
    "fn f() {}\n",
    "fn f() {} // nove\n",
    "struct S;\n\n",
    "use a::b; // dez\n",
    'm!(r"\n// onze");\n',
    'm! {\n"\n// doze"\n}\n',
    "impl A {\n    // treze\n    /// catorze\n    fn m() {}\n    const C: u8 = 1;\n}\n",
    "\n",
    " \n",
    "\u3000",
]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(RUST), max_size=25).map("".join),
    st.sampled_from([Settings(), Settings(container_max_lines=2)]),
)
def test_rust__comments_found_in_the_bytes_are_those_of_the_query(text: str, chosen: Settings) -> None:
    """What a text with errors takes from the tree, any other text takes from its lines."""
    loaded = parsing.load("rust")
    data, deadline = text.encode(), Deadline(60_000)
    tree = parsing.parse(loaded, data, deadline)
    assert tree is not None
    cut = [
        code._Cutter(loaded, data, text, chosen, deadline, with_query).cut(tree.root_node)
        for with_query in (False, True)
    ]
    assert tree.root_node.has_error or cut[0] == cut[1]
