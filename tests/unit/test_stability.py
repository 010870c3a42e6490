"""What an edit costs: the laws of each chunker, and `chunk_stability`, which counts it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trecho_chunkers import Chunk, Settings, chunk
from trecho_chunkers.identity import content_hash
from trecho_chunkers.stability import chunk_stability

from trecho.cli import main

NAMES = ["word, same length", "word, one letter longer", "line at the top", "line in the middle"]


def markdown() -> str:
    rng = random.Random(1)
    words = ["abelha", "bola", "casa", "dado", "elefante"]
    sections = [f"## Seção {n}\n\n" + " ".join(rng.choice(words) for _ in range(60)) for n in range(20)]
    return "# Manual\n\nIntro.\n\n" + "\n\n".join(sections) + "\n"


def test_markdown__each_edit_costs_one_chunk() -> None:
    rows = chunk_stability("a.md", markdown())
    assert [row.edit for row in rows] == NAMES
    assert all((row.hashes_changed, row.really_changed) == (1, 1) for row in rows)
    assert rows[0].chunks == 21 and rows[0].ids_changed == 1


def test_fixed_windows__are_reported_honestly_and_stable_ones_are_better() -> None:
    text = "".join(f"value {number} = {number * 7919 % 10007}\n" for number in range(3000))
    fixed = {row.edit: row for row in chunk_stability("a.unknown", text)}
    stable = {row.edit: row for row in chunk_stability("a.unknown", text, {"stable_windows": True})}
    assert fixed["line at the top"].hashes_changed == fixed["line at the top"].chunks == 60
    assert stable["line at the top"].hashes_changed <= 4
    assert fixed["line at the top"].really_changed == 1


def test_text_without_words__has_only_the_edits_it_has_place_for() -> None:
    assert chunk_stability("a.md", "") == []
    assert [row.edit for row in chunk_stability("a.md", "1 2 3")] == ["line at the top"]


# --- every chunker -----------------------------------------------------------------------------------------

RUST = "".join(
    f"/// Does {n}.\npub fn f{n}(x: u8) -> u8 {{\n    let value = x + {n};\n    value\n}}\n\n"
    for n in range(30)
)
PYTHON = "".join(f"def f{n}(x):\n    value = x + {n}\n    return value\n\n\n" for n in range(30))
YAML = "".join(f"key{n}:\n  nested: value{n}\n  other: words here\n" for n in range(30))
TURNS = [("Ana" if n % 2 else "Rui", f"a palavra número {n} dita aqui por alguém " * 20) for n in range(20)]
TRANSCRIPT = "".join(f"{who}: {said}\n\n" for who, said in TURNS)
EVENTS = [{"role": who, "text": said} for who, said in TURNS]
SESSIONS = {
    "transcript": TRANSCRIPT,
    "transcript with times": "".join(
        f"[10:0{n % 9}] {who}: {said}\n\n" for n, (who, said) in enumerate(TURNS)
    ),
    "JSON lines": "".join(json.dumps(event) + "\n" for event in EVENTS),
    "JSON array": "[" + ",\n".join(map(json.dumps, EVENTS)) + "]",
    "JSON object": json.dumps({"title": "x", "tags": ["a"], "messages": EVENTS}, indent=1).replace(
        "},\n  {", "},\n{"
    ),
}


@pytest.mark.parametrize(
    ("path", "text", "scope"),
    [
        ("a.md", markdown(), None),
        ("a.rs", RUST, None),
        ("a.ts", RUST.replace("pub fn", "function").replace("/// ", "// ").replace(": u8", ": number").replace(" -> u8", ""), "code"),
        ("a.py", PYTHON, None),
        ("a.yaml", YAML, None),
        *[(name, text, "session") for name, text in SESSIONS.items()],
    ],
)  # fmt: skip
def test_every_chunker__pays_for_little_more_than_what_an_edit_touches(
    path: str, text: str, scope: str | None
) -> None:
    rows = chunk_stability(path, text, None, scope)
    assert [row.edit for row in rows] == NAMES
    for row in rows:
        assert row.chunks > 15
        assert 1 <= row.really_changed <= row.hashes_changed <= 2, row


def test_sessions__that_hold_no_event_have_no_place_for_one() -> None:
    assert chunk_stability("a.json", "[]", None, "session") == []
    assert chunk_stability("a.json", "  ", None, "session") == []


# --- laws of edits -----------------------------------------------------------------------------------------

WORD = st.text("abcdefgh", min_size=3, max_size=9)
BODIES = st.lists(st.lists(WORD, min_size=1, max_size=12), min_size=2, max_size=12)


def rust(bodies: list[list[str]]) -> str:
    """Functions whose names say their number; bodies of one word a line."""
    return "\n".join(
        f"fn f{n}() {{\n" + "".join(f'    say("{word}");\n' for word in body) + "}\n"
        for n, body in enumerate(bodies)
    )


def yaml(bodies: list[list[str]]) -> str:
    return "".join(f"f{n}:\n" + "".join(f"  - {word}\n" for word in body) for n, body in enumerate(bodies))


def session(bodies: list[list[str]]) -> str:
    return "".join(f"Ana: {' '.join(body)}.\n\n" for body in bodies)


def plain(bodies: list[list[str]]) -> str:
    return "".join(" ".join(body) + "\n" for body in bodies)


def changed(before: list[Chunk], after: list[Chunk]) -> list[Chunk]:
    known = {content_hash("f", item.symbol, item.content) for item in before}
    return [item for item in after if content_hash("f", item.symbol, item.content) not in known]


SMALL = Settings(section_max_chars=60, window_lines=6, window_overlap_lines=2, symbol_max_lines=8)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(
        [
            ("a.rs", None, rust),
            ("a.yaml", None, yaml),
            ("s.txt", "session", session),
            ("a.unknown", None, plain),
        ]
    ),
    BODIES,
    st.data(),
)
def test_a_word_of_the_same_length__changes_only_the_chunks_that_hold_it(chunker, bodies, data) -> None:
    path, scope, render = chunker
    before = chunk(path, render(bodies), SMALL, scope)
    body = data.draw(st.sampled_from(bodies))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = "Z" * len(body[at])
    after = chunk(path, render(bodies), SMALL, scope)
    assert len(after) == len(before)
    assert [(item.start_line, item.end_line) for item in after] == [
        (item.start_line, item.end_line) for item in before
    ]
    holding = [item for item in after if "ZZZ" in item.content]
    assert holding and changed(before, after) == holding


@settings(max_examples=120, deadline=None)
@given(st.sampled_from([("a.rs", rust), ("a.yaml", yaml)]), BODIES, st.data())
def test_any_other_word__changes_only_chunks_of_its_symbol(chunker, bodies, data) -> None:
    path, render = chunker
    before = chunk(path, render(bodies), SMALL)
    number = data.draw(st.integers(0, len(bodies) - 1))
    at = data.draw(st.integers(0, len(bodies[number]) - 1))
    bodies[number][at] = "umapalavramuitomaiscompridadoqueaoutra"
    for item in changed(before, chunk(path, render(bodies), SMALL)):
        assert item.symbol.partition(".")[0] == f"f{number}" or f" f{number}" in item.context


@settings(max_examples=60, deadline=None)
@given(st.lists(WORD, min_size=60, max_size=400), st.data())
def test_any_other_word__in_text_without_structure_changes_few_windows(words, data) -> None:
    at = data.draw(st.integers(0, len(words) - 1))
    edited = [*words[:at], "umapalavramuitomaiscomprida", *words[at + 1 :]]
    fixed = Settings(window_lines=6, window_overlap_lines=2)
    for chosen, most in ((fixed, 2), (fixed._replace(stable_windows=True), 6)):
        before = chunk("a.unknown", "\n".join(words), chosen)
        assert len(changed(before, chunk("a.unknown", "\n".join(edited), chosen))) <= most


# --- the command -------------------------------------------------------------------------------------------


def test_command__prints_a_row_for_each_edit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.md"
    file.write_text(markdown(), encoding="utf-8")
    assert main(["stability", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(file)
    assert lines[1].split("  ")[1:2] == ["edit"]
    assert [line.split() for line in lines[2:]] == [
        [*row.edit.split(), *map(str, row[1:])] for row in chunk_stability(str(file), markdown())
    ]


def test_command__answers_in_json_with_settings_and_scope(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows, session_file = tmp_path / "a.unknown", tmp_path / "s.json"
    text = "".join(f"value {number} = {number * 7919 % 10007}\n" for number in range(1000))
    windows.write_text(text, encoding="utf-8")
    session_file.write_text(SESSIONS["JSON array"], encoding="utf-8")
    assert (
        main(["stability", "--json", "--stable-windows", "--settings", '{"window_lines": 40}', str(windows)])
        == 0
    )
    (found,) = json.loads(capsys.readouterr().out)
    expected = chunk_stability(str(windows), text, {"window_lines": 40, "stable_windows": True})
    assert found == {"file": str(windows), "edits": [row._asdict() for row in expected]}
    assert main(["stability", "--json", "--scope", "session", str(session_file)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [edit["edit"] for edit in found["edits"]] == NAMES


@pytest.mark.parametrize(
    ("data", "arguments", "code", "message"),
    [
        (None, [], 2, "cannot read"),
        (b"a", ["--settings", "{"], 2, "not JSON"),
        (b"a", ["--settings", "[]"], 2, "not a JSON object"),
        (b"a", ["--settings", '{"x": 1}'], 2, "unknown chunk setting 'x'"),
        (b"a\xff", [], 7, "is not UTF-8 (byte 1)"),
        (b"a\0", [], 7, "NUL character at offset 1"),
        (b"x\n" * 400_000, [], 7, "over max_document_bytes"),
    ],
)
def test_command__says_what_it_cannot_do(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    data: bytes | None,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    file = tmp_path / "a.unknown"
    if data is not None:
        file.write_bytes(data)
    assert main(["stability", *arguments, str(file)]) == code
    shown = capsys.readouterr().err
    assert message in shown and "hint: " in shown
