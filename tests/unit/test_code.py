"""Code by symbol: what is cut, what it is called, and that nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trecho_chunkers
from trecho_chunkers import code, languages, parsing
from trecho_chunkers.model import Chunk, ChunkError, Deadline, Settings
from trecho_chunkers.normalise import normalise

SMALL = Settings(container_max_lines=3)


def cut(path: str, text: str, settings: Settings | None = None) -> list[Chunk]:
    return code.chunk_code(path, textwrap.dedent(text), settings or Settings(), Deadline(60_000))


def outline(path: str, text: str, settings: Settings | None = None) -> list[tuple[str, str, int, int]]:
    return [(c.kind, c.symbol, c.start_line, c.end_line) for c in cut(path, text, settings)]


# --- what each language names ------------------------------------------------------------------------------

RUST = """\
//! A crate.
use std::fmt;

const LIMIT: usize = 3; // how many

/// A point.
#[derive(Debug)]
pub struct Point<T> {
    x: T,
}

impl<T> Point<T> {
    /// Makes one.
    #[inline]
    pub fn new(x: T) -> Self {
        Point { x }
    }

    fn get(&self) -> &T { &self.x }
}

impl fmt::Display for Point<u8> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.x)
    }
}

mod a {
    pub mod b {
        pub fn f() {}

        pub fn g() {}
    }
}

trait Shape {
    type Unit;

    fn area(&self) -> f64;
}
"""


def test_rust__small_containers_stay_whole_with_docs_and_attributes() -> None:
    assert outline("src/lib.rs", RUST) == [
        ("window", "", 1, 2),
        ("constant", "LIMIT", 4, 4),
        ("struct", "Point", 6, 10),
        ("impl", "Point", 12, 20),
        ("impl", "<Point as fmt::Display>", 22, 26),
        ("module", "a", 28, 34),
        ("trait", "Shape", 36, 40),
    ]


def test_rust__large_containers_are_split_into_qualified_members() -> None:
    assert outline("src/lib.rs", RUST, SMALL) == [
        ("window", "", 1, 2),
        ("constant", "LIMIT", 4, 4),
        ("struct", "Point", 6, 10),
        ("impl", "Point", 12, 12),
        ("function", "Point::new", 13, 17),
        ("function", "Point::get", 19, 20),
        ("impl", "<Point as fmt::Display>", 22, 22),
        ("function", "<Point as fmt::Display>::fmt", 23, 26),
        ("module", "a", 28, 28),
        ("module", "a::b", 29, 29),
        ("function", "a::b::f", 30, 30),
        ("function", "a::b::g", 32, 34),
        ("trait", "Shape", 36, 36),
        ("type", "Shape::Unit", 37, 37),
        ("function", "Shape::area", 39, 40),
    ]


def test_rust__a_member_says_its_container_in_context_and_its_place_in_the_anchor() -> None:
    chunk = next(c for c in cut("src/lib.rs", RUST, SMALL) if c.symbol == "Point::new")
    assert chunk.context == "rust\nimpl<T> Point<T>"
    assert chunk.anchor_path == "point/new"
    assert chunk.content == textwrap.indent(
        "/// Makes one.\n#[inline]\npub fn new(x: T) -> Self {\n    Point { x }\n}", "    "
    )


def test_context__never_holds_the_path() -> None:
    # A renamed file must give the same texts, so that no vector is paid for again.
    ours = [(c.context, c.content, c.symbol) for c in cut("src/lib.rs", RUST, SMALL)]
    assert ours == [(c.context, c.content, c.symbol) for c in cut("old/other.rs", RUST, SMALL)]


TYPESCRIPT = """\
import { x } from "y";

/** Adds. */
export function add(a: number, b: number) {
  return a + b;
}

export const twice = (n: number) => n * 2;

@Component({ tag: "a" })
export class Widget<T> extends Base {
  @Input() size = 1;

  /** Draws. */
  @Log()
  async draw(): Promise<void> {
    await this.paint();
  }

  get width() { return this.size; }
}

export namespace Shapes {
  export interface Box { w: number }
  export function area(b: Box) { return b.w; }
}

export default class {
  run() {}
}

type Id = string;
enum Colour { Red, Green }
"""


def test_typescript__declarations_keep_export_comment_and_decorators() -> None:
    assert outline("a.ts", TYPESCRIPT) == [
        ("window", "", 1, 1),
        ("function", "add", 3, 6),
        ("variable", "twice", 8, 8),
        ("class", "Widget", 10, 21),
        ("namespace", "Shapes", 23, 26),
        ("class", "default", 28, 30),
        ("type", "Id", 32, 32),
        ("enum", "Colour", 33, 33),
    ]


def test_typescript__a_large_class_and_namespace_are_split() -> None:
    assert outline("a.ts", TYPESCRIPT, SMALL)[3:10] == [
        ("class", "Widget", 10, 11),
        ("property", "Widget.size", 12, 12),
        ("method", "Widget.draw", 14, 18),
        ("method", "Widget.width", 20, 21),
        ("namespace", "Shapes", 23, 23),
        ("interface", "Shapes.Box", 24, 24),
        ("function", "Shapes.area", 25, 26),
    ]


@pytest.mark.parametrize("path", ["a.tsx", "a.jsx", "a.js", "a.mjs"])
def test_jsx__is_read_by_the_tsx_grammar(path: str) -> None:
    text = "export function App() {\n  return <div className='a'>{1}</div>;\n}\n\nclass B { m() {} }\n"
    assert outline(path, text) == [("function", "App", 1, 3), ("class", "B", 5, 5)]


def test_toml__tables_and_arrays_of_tables_take_the_comments_above_them() -> None:
    text = """\
    # The package.
    [package]
    name = "a"

    # First.
    [[bin]]
    name = "x"
    # Second.
    [[bin]]
    name = "y"

    [target."cfg(unix)".dependencies]
    b = "1"
    """
    assert outline("Cargo.toml", text) == [
        ("table", "package", 1, 3),
        ("table-array", "bin", 5, 7),
        ("table-array", "bin", 8, 10),
        ("table", 'target."cfg(unix)".dependencies', 12, 13),
    ]
    assert [c.anchor_path for c in cut("Cargo.toml", text)] == [
        "package",
        "bin",
        "bin-1",
        "target-cfgunix-dependencies",
    ]


def test_yaml__one_document_is_cut_at_its_top_level_keys() -> None:
    text = """\
    # The name.
    name: ci
    on: [push]
    jobs:
      build:
        runs-on: linux
      # Tests.
      test:
        runs-on: linux
    """
    assert outline(".github/workflows/ci.yml", text) == [
        ("key", "name", 1, 2),
        ("key", "on", 3, 3),
        ("key", "jobs", 4, 9),
    ]
    assert outline(".github/workflows/ci.yml", text, SMALL)[2:] == [
        ("key", "jobs.build", 4, 6),
        ("key", "jobs.test", 7, 9),
    ]


MANIFESTS = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  labels:
    name: not-this
  name: web # here
spec:
  replicas: 2
---
# For the web.
apiVersion: v1
kind: Service
metadata: {name: "web"}
---
plain: 1
"""


def test_yaml__kubernetes_objects_are_named_by_kind_and_name() -> None:
    assert outline("k8s.yaml", MANIFESTS, Settings(container_max_lines=8)) == [
        ("document", "Deployment/web", 1, 8),
        ("document", "Service/web", 9, 13),
        ("document", "doc3", 14, 15),
    ]


def test_yaml__large_kubernetes_objects_are_cut_at_their_keys() -> None:
    found = outline("k8s.yaml", MANIFESTS, Settings(container_max_lines=6))
    assert [symbol for _, symbol, _, _ in found] == [
        "Deployment/web.apiVersion",
        "Deployment/web.kind",
        "Deployment/web.metadata",
        "Deployment/web.spec",
        "Service/web",
        "doc3",
    ]


def test_python_go_sql__are_one_entry_and_one_query_each() -> None:
    python = "# About f.\n@cached\ndef f():\n    pass\n\nclass A(B):\n    x = 1\n\n    def m(self):\n        pass\n"
    assert outline("a.py", python, SMALL) == [
        ("function", "f", 1, 4),
        ("class", "A", 6, 7),
        ("function", "A.m", 9, 10),
    ]
    go = "package p\n\n// Start starts.\nfunc (s *Server[T]) Start() {}\n\ntype A struct{}\n\nfunc f() {}\n"
    assert outline("a.go", go) == [
        ("window", "", 1, 1),
        ("method", "Server.Start", 3, 4),
        ("type", "A", 6, 6),
        ("function", "f", 8, 8),
    ]
    sql = "-- People.\nCREATE TABLE app.people (id int);\n\nCREATE VIEW v AS SELECT 1;\n"
    assert outline("a.sql", sql) == [("table", "app.people", 1, 2), ("view", "v", 4, 4)]


# --- sizes and boundaries ----------------------------------------------------------------------------------


def lines(count: int, indent: str = "    ") -> str:
    return "".join(f"{indent}let v{number} = {number};\n" for number in range(count))


def test_size__a_container_of_60_lines_stays_whole_and_one_of_61_is_split() -> None:
    body = "    fn a() {\n" + lines(28, " " * 8) + "    }\n    fn b() {\n" + lines(26, " " * 8) + "    }\n"
    assert outline("a.rs", f"impl A {{\n{body}}}\n") == [("impl", "A", 1, 60)]
    assert outline("a.rs", f"impl A {{\n\n{body}}}\n") == [
        ("impl", "A", 1, 1),
        ("function", "A::a", 3, 32),
        ("function", "A::b", 33, 61),
    ]


def test_size__a_symbol_of_120_lines_stays_whole_and_one_of_121_becomes_windows() -> None:
    assert outline("a.rs", "fn a() {\n" + lines(118) + "}\n") == [("function", "a", 1, 120)]
    chunks = cut("a.rs", "fn a() {\n" + lines(119) + "}\n")
    assert [(c.kind, c.symbol, c.start_line, c.end_line) for c in chunks] == [
        ("window", "", 1, 60),
        ("window", "", 51, 110),
        ("window", "", 101, 121),
    ]
    assert {c.context for c in chunks} == {"rust\nfunction a"}
    assert [c.anchor_path for c in chunks] == ["a", "a-1", "a-2"]


def test_size__a_short_symbol_over_the_byte_cap_is_cut_below_it() -> None:
    text = f'fn a() {{\n    let s = "{"é" * 5000}";\n}}\n'
    chunks = cut("a.rs", text)
    assert len(chunks) > 1
    assert max(len(c.content.encode()) for c in chunks) <= 6000
    assert "".join(c.content for c in chunks).count("é") == 5000


def test_boundary__symbols_on_one_line_are_parted_and_braces_are_not_left_alone() -> None:
    assert [
        c.content
        for c in cut("a.rs", "fn a() {} fn b() {} // both\nmod m {\n fn c() {}\n fn d() {}\n}\n", SMALL)
    ] == [
        "fn a() {}",
        "fn b() {} // both",
        "mod m {",
        " fn c() {}",
        " fn d() {}\n}",
    ]


def test_boundary__a_comment_apart_or_at_the_end_of_a_line_belongs_to_no_later_symbol() -> None:
    text = "const A: u8 = 1; // one\nfn f() {}\n\n// apart\n\nfn g() {}\n"
    assert [c.content for c in cut("a.rs", text)] == [
        "const A: u8 = 1; // one",
        "fn f() {}",
        "// apart",
        "fn g() {}",
    ]


def test_offsets__are_right_after_accents_and_emoji() -> None:
    text = "// é 😀 日本\nfn ação() {} // 😀\n\n/// ñ\nfn β() {}\n"
    assert [(c.symbol, c.content, c.start_line) for c in cut("a.rs", text)] == [
        ("ação", "// é 😀 日本\nfn ação() {} // 😀", 1),
        ("β", "/// ñ\nfn β() {}", 4),
    ]


# --- what cannot be cut by symbol --------------------------------------------------------------------------


def test_fallback__text_that_does_not_parse_becomes_windows_that_say_so() -> None:
    assert outline("a.rs", "}}} this is ((( not rust\n") == [(code.PARSE_ERROR, "", 1, 1)]


def test_fallback__one_error_does_not_cost_the_other_symbols() -> None:
    text = RUST + "\n@@@ what\n"
    assert "Point" in {c.symbol for c in cut("a.rs", text)}


def test_fallback__a_language_without_grammar_becomes_windows() -> None:
    assert outline("a.c", "int main() {}\n") == [("window", "", 1, 1)]
    assert outline("LICENSE", "free\n") == [("window", "", 1, 1)]


@pytest.mark.parametrize("path", ["a.rs", "a.ts", "a.tsx", "a.toml", "a.yaml", "a.py", "a.go", "a.sql"])
@pytest.mark.parametrize(
    "pattern", ["(", "[", "{", "()", "[[", "{[", "- ", "a.", "#", "`", '"', "😀", "a: ", "\n"]
)
def test_hostile__half_a_megabyte_of_one_thing_is_cut_and_covered(path: str, pattern: str) -> None:
    text = (pattern * 524_288)[: 524_288 // len(pattern.encode())]
    if pattern == "\n":
        assert cut(path, text) == []
        return
    chunks = cut(path, text)
    covered = sum(len("".join(c.content.split())) for c in chunks)
    assert covered >= len("".join(text.split()))


@pytest.mark.parametrize(
    "text",
    [
        "".join(" " * level + "a:\n" for level in range(600)),
        "- " * 1000 + "a",
        "? " * 400 + "a",
        "".join(" " * (49 * step) + "- " * 24 + "a\n" for step in range(12)),
        "\n".join(" " * level + "- a:" for level in range(0, 800, 2)),
    ],
)
def test_hostile__yaml_indented_too_deep_never_reaches_the_parser(text: str) -> None:
    # The YAML scanner writes past its state at 254 levels and kills the process: unbounded, this test dies.
    assert {c.kind for c in cut("a.yaml", text)} == {code.PARSE_LIMIT}


def test_hostile__deep_brackets_never_reach_the_parser() -> None:
    deep = "(" * 401 + ")" * 401
    assert not parsing.may_parse(deep.encode(), "rust", languages.GRAMMARS["rust"])
    assert not parsing.may_parse(b"}" * 1000 + deep.encode(), "rust", languages.GRAMMARS["rust"])
    assert parsing.may_parse(b"({[]})" * 100_000, "rust", languages.GRAMMARS["rust"])
    assert parsing.may_parse(b"(" * 400 + b")" * 400, "rust", languages.GRAMMARS["rust"])


@pytest.mark.parametrize("path", ["a.go", "a.ts", "a.tsx", "a.js", "a.sql"])
def test_hostile__comments_that_nothing_closes_stop_the_parse(path: str) -> None:
    # Each is read to the end of the text: without the bound, this takes longer than the deadline.
    for unit in ("/* ", "/*\n", "x /* y\n"):
        assert {c.kind for c in cut(path, unit * (500_000 // len(unit)))} == {code.PARSE_LIMIT}
    router = "".join(f'  route("/api/{number}/*");\n' for number in range(200))
    assert {c.kind for c in cut(path, router)} != {code.PARSE_LIMIT}


@pytest.mark.parametrize(("path", "unit"), [("a.rs", 'r#"'), ("a.py", "\\\n"), ("a.rs", "def a():pass\n")])
def test_hostile__what_a_scanner_reads_again_and_again_stops_the_parse(path: str, unit: str) -> None:
    # Without the bound the first two take longer than the deadline.
    text = unit * (500_000 // len(unit))
    assert {c.kind for c in cut(path, text)} == {code.PARSE_LIMIT}


@pytest.mark.parametrize("blank", ["\u3000", "\u2028", "\u00a0", "\u1680", "\u205f"])
def test_hostile__blanks_that_are_none_to_the_grammar_stop_the_parse(blank: str) -> None:
    # SQL's scanner passes over all of them from each one: hours for half a mebibyte, and gigabytes of text read again.
    blanks = blank * (500_000 // len(blank.encode()))
    for text in (blanks, f"{blanks}a"):
        assert [c.content.strip() for c in cut("a.sql", text)] == ["a"] * text.count("a")


def test_deadline__is_checked_while_parsing() -> None:
    expired = Deadline(0)
    loaded = parsing.load("rust")
    with loaded.lock, pytest.raises(ChunkError) as caught:
        parsing.parse(loaded, b"fn a() { b(c, d); }\n" * 2000, expired)
    assert caught.value.sqlstate == "TR008"


def test_deadline__a_stopped_parse_leaves_nothing_in_the_parser() -> None:
    before = cut("a.rs", RUST)
    test_deadline__is_checked_while_parsing()
    assert cut("a.rs", RUST) == before


def test_work__the_parser_is_stopped_by_a_count_of_its_own_steps() -> None:
    loaded = parsing.load("rust")
    with loaded.lock:
        assert parsing.parse(loaded, b'"' * 2_000, Deadline(3_600_000)) is not None
        assert parsing.parse(loaded, b'"' * 20_000, Deadline(3_600_000)) is None


def test_interrupt__during_a_parse_waits_for_its_end_and_then_is_raised() -> None:
    # In a process of its own: an exception inside the parser's callback would crash it.
    program = """
import os, signal, threading
from trecho_chunkers import parsing
from trecho_chunkers.model import Deadline
loaded = parsing.load("rust")
inside = threading.Event()
class Interrupting(Deadline):
    def expired(self):
        if not inside.is_set():
            inside.set()
            os.kill(os.getpid(), signal.SIGINT)
        return super().expired()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell begins with it ignored
handler = signal.getsignal(signal.SIGINT)
try:
    parsing.parse(loaded, b"fn a() { b(c, d); }\\n" * 5000, Interrupting(60_000))
except KeyboardInterrupt:
    assert inside.is_set() and signal.getsignal(signal.SIGINT) is handler
    print("interrupted")
"""
    source = str(Path(code.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_grammar__missing_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = languages.GRAMMARS["rust"]._replace(module="tree_sitter_not_there")
    monkeypatch.setitem(languages.GRAMMARS, "rust", entry)
    monkeypatch.setattr(parsing, "_loaded", {})
    with pytest.raises(ChunkError) as caught:
        cut("a.rs", "fn a() {}\n")
    assert caught.value.sqlstate == "58P01"
    assert "tree-sitter-rust" in caught.value.hint
    assert "tree-sitter-rust" in str(parsing.grammar_problem("rust"))


@pytest.mark.parametrize("language", sorted(languages.GRAMMARS))
def test_grammar__every_one_loads_and_parses(language: str) -> None:
    assert parsing.grammar_problem(language) is None


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("a/b.rs", "rust"),
        ("A.TS", "typescript"),
        ("a.d.mts", "typescript"),
        ("a.tsx", "tsx"),
        ("a.jsx", "javascript"),
        ("Cargo.toml", "toml"),
        ("a.yml", "yaml"),
        ("dir\\a.py", "python"),
        ("Dockerfile", "dockerfile"),
        ("README.md", "markdown"),
        (".rs", None),
        ("LICENSE", None),
        ("a.rs/b", None),
        ("", None),
    ],
)
def test_language_of__goes_by_the_file_name(path: str, language: str | None) -> None:
    assert languages.language_of(path) == language


def test_lines__are_those_of_the_original_with_crlf() -> None:
    chunks = cut("a.rs", normalise("\ufeffuse a;\r\n\r\nfn f() {\r\n}\r\n"))
    assert [(c.symbol, c.start_line, c.end_line) for c in chunks] == [("", 1, 1), ("f", 3, 4)]


@pytest.mark.parametrize("blank", ["\u00a0", "\u2003", "\u3000", "\u0085"])
def test_yaml__a_document_of_blanks_alone_is_no_chunk(blank: str) -> None:
    text = f"\n{blank}\n---\na: 1\n{blank}\n---\n{blank}\n"
    assert all(c.content.strip() for c in trecho_chunkers.chunk("a.yaml", text))
