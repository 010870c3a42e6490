"""Sessions in JSON and as transcripts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import check_slices
from nasty import texts
from trecho_chunkers import Settings, chunk, chunk_session
from trecho_chunkers.describe import describe
from trecho_chunkers.normalise import normalise

SMALL = Settings(section_max_chars=60, section_max_lines=5, chunk_max_bytes=128)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "text": texts(8)},
        optional={"at": st.just("2024-05-01")},
    ),
    max_size=8,
)


def test_json_array__keeps_whole_turns_together_and_says_who_speaks() -> None:
    text = '[\n {"role": "user", "at": "10:00", "text": "oi"},\n {"role": "assistant", "text": "olá"}\n]\n'
    assert [tuple(item) for item in chunk_session(text)] == [
        (1, "turns", "", "turn-1", "", 2, 3, "user (10:00): oi\n\nassistant: olá")
    ]


def test_json_forms__give_the_same_content() -> None:
    events = [{"role": "user", "text": "oi"}, {"role": "assistant", "text": "olá"}]
    array = json.dumps(events)
    wrapped = json.dumps({"session_id": "x", "events": events, "title": "t"})
    lines = "\n".join(json.dumps(event) for event in events)
    contents = {tuple(item.content for item in chunk_session(text)) for text in (array, wrapped, lines)}
    assert contents == {("user: oi\n\nassistant: olá",)}


@pytest.mark.parametrize(
    ("event", "content"),
    [
        ({"role": "user", "content": "oi"}, "user: oi"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            "user: a\nb",
        ),
        ({"type": "user", "message": {"role": "user", "content": "oi"}, "timestamp": "t"}, "user (t): oi"),
        ({"speaker": "Ana", "text": "oi"}, "Ana: oi"),
        ({"text": "oi"}, "oi"),
        ({"role": "tool", "content": [{"type": "image", "url": "u"}]}, 'tool: {"type": "image", "url": "u"}'),
        ({"role": "user", "text": "a\u0000b\ud800c"}, "user: a\ufffdb\ufffdc"),
        ("just text", "just text"),
    ],
)
def test_json_event__is_read_in_its_variants(event: object, content: str) -> None:
    assert [item.content for item in chunk_session(json.dumps([event]))] == [content]


def test_long_turn__is_cut_and_the_speaker_stays_in_context() -> None:
    text = json.dumps([{"role": "user", "text": "palavra " * 30}, {"role": "assistant", "text": "sim"}])
    chunks = chunk_session(text, SMALL)
    assert [item.kind for item in chunks] == ["turn-part"] * (len(chunks) - 1) + ["turns"]
    assert chunks[0].content.startswith("user: palavra") and chunks[0].context == ""
    assert {item.context for item in chunks[1:-1]} == {"user:"}


def test_json_lines__with_a_broken_line_lose_nothing() -> None:
    text = '{"role": "user", "text": "a"}\n{"role": "user", "te\n{"role": "user", "text": "b"}\n'
    chunks = chunk_session(text)
    assert [item.content for item in chunks] == ['user: a\n\n{"role": "user", "te\n\nuser: b']
    assert (chunks[0].start_line, chunks[0].end_line) == (1, 3)


def test_transcript__is_sliced_between_turns() -> None:
    text = "Ana: bom dia, tudo bem por aí?\nsegunda linha\n\nBeto (10:01): tudo certo, e você?\n[10:02] Ana: bem\n"
    chunks = chunk_session(text, SMALL)
    assert [item.content for item in chunks] == [
        "Ana: bom dia, tudo bem por aí?\nsegunda linha",
        "Beto (10:01): tudo certo, e você?\n[10:02] Ana: bem",
    ]
    assert [(item.start_line, item.end_line, item.anchor_path) for item in chunks] == [
        (1, 2, "turn-1"),
        (4, 5, "turn-2"),
    ]


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.booleans())
def test_json_sessions__lose_no_text_and_stay_under_the_cap(
    events: list[dict[str, str]], as_lines: bool
) -> None:
    text = "\n".join(json.dumps(event) for event in events) if as_lines else json.dumps(events, indent=1)
    chunks = chunk_session(text, SMALL)
    joined = "".join("".join(item.content.split()) for item in chunks)
    expected = "".join(normalise(f"{event['role']}{event.get('at', '')}{event['text']}") for event in events)
    squeezed = "".join(expected.split())
    rest = iter(joined)
    assert all(char in rest for char in squeezed), "text lost or out of order"
    assert all(len(item.content.encode()) <= SMALL.chunk_max_bytes for item in chunks)
    assert all(len(item.content) <= SMALL.section_max_chars for item in chunks)
    lines = text.count("\n") + 1
    assert all(1 <= item.start_line <= item.end_line <= lines for item in chunks)


@settings(max_examples=150, deadline=None)
@given(texts(), st.sampled_from([Settings(), SMALL]))
def test_transcripts__are_slices_in_order_under_the_cap_that_lose_nothing(
    text: str, chosen: Settings
) -> None:
    text = text.replace("{", "").replace("[", "")
    chunks = chunk("s.txt", text, chosen, scope="session")
    check_slices(text, chunks, chosen, front_matter=True)
    assert chunks == chunk_session(text, chosen)


@pytest.mark.parametrize("name", ["session_id", "sessionId"])
def test_session_id__with_half_a_character_is_as_good_as_any(name: str) -> None:
    text = json.dumps([{name: "a\ud800", "text": "x"}])
    found = describe("s/a.json", text, "session").session_id
    assert (
        found
        == describe("s/b.json", text, "session").session_id
        != describe("s/a.json", "[]", "session").session_id
    )


def test_session_id__comes_from_the_file_else_its_stem_else_its_path() -> None:
    named = "9b2f0c3e-1111-4222-8333-444455556666"
    own = json.dumps({"session_id": named.upper(), "events": []})
    assert describe("s/a.json", own, "session").session_id == named
    assert (
        describe("s/a.jsonl", json.dumps({"session_id": named, "text": "x"}), "session").session_id == named
    )
    assert describe(f"s/{named}.json", "[]", "session").session_id == named
    by_path = describe("s/a.json", "[]", "session").session_id
    assert by_path == describe("s/a.json", "[{}]", "session").session_id
    assert by_path != describe("s/b.json", "[]", "session").session_id
    assert by_path != describe("s/a.json", "[]", "session", project="p").session_id


def test_session__tells_its_origin() -> None:
    found = describe("s/a.json", "[]", "session")
    assert found.metadata == {"origin": "s/a.json"}
    assert (found.doc_id, found.title, found.language) == (found.session_id, "a", None)
