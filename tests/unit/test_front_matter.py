"""Front matter: PyYAML is the oracle of its structure; nothing is lost and nothing raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nasty import texts
from trecho_chunkers.front_matter import UNREAD, _fields, _Reader, read, resolve_plain
from trecho_chunkers.normalise import normalise


def oracle(block: str) -> Any:
    """PyYAML's structure with our scalars: it resolves plain ones by YAML 1.1, where `no` is false."""
    node = yaml.compose(block, Loader=yaml.SafeLoader)
    return {} if node is None else _value(node)


def _value(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {key.value: _value(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_value(item) for item in node.value]
    return resolve_plain(node.value) if node.style is None else node.value


SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(-1e6, 1e6)
    | st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"], include_characters="\n\t", exclude_characters="\u2028\u2029\ufeff"), max_size=40)
    | st.sampled_from(["no", "0079", "1.0", "2024-01-01", "a: b", "# x", "- y", "it's", '"q"', "~", "", "x #y", " l"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), inner, max_size=4)
    ),
    max_leaves=12,
)
MAPPINGS = st.dictionaries(st.from_regex(r"[a-z_]{1,10}", fullmatch=True), VALUES, min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(MAPPINGS, st.sampled_from([None, True, False]), st.integers(20, 100), st.booleans())
def test_read__equals_the_oracle_on_what_it_writes(
    mapping: dict[str, Any], flow: bool | None, width: int, unicode: bool
) -> None:
    block = normalise(yaml.safe_dump(mapping, default_flow_style=flow, width=width, allow_unicode=unicode))
    if block.startswith("{"):
        block = f"root: {block}"
    assume("? " not in block and "&id" not in block)
    matter = read(f"---\n{block}---\nrest")
    assert UNREAD not in matter.metadata, matter.metadata[UNREAD]
    assert matter.metadata == oracle(block)
    json.dumps(matter.metadata, allow_nan=False)


PIECES = [
    "a:", "b: ", "c: 1\n", "- ", "- x\n", "  ", "    ", "\n", "\n", "\n\n", "x", "'q'", '"r"', "|", ">", "|-", ">+", "[", "]",
    "{", "}", ", ", ": ", "#", " # c", "&a ", "*a", "!t ", "? ", "@", "`", "%", "\t", "---", "...", "'", '"', "\\", "é", "~", "0x1",
]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_read__never_raises_and_is_right_where_it_claims_to_have_read(rest: str) -> None:
    block = f"title: x\n{rest}\n"
    matter = read(f"---\n{block}---\n")
    assert matter.body_start > 0
    json.dumps(matter.metadata, allow_nan=False).encode()
    if UNREAD in matter.metadata or "\n---" in block or "\n..." in block or "\t" in block:
        return
    try:
        expected = oracle(block)
    except yaml.YAMLError:
        return
    assert matter.metadata == expected


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("a: 1\nb: -2.5\nc: true\nd: null\ne: ~\nf:\ng: yes\nh: 0079\ni: 1e3\n",
         {"a": 1, "b": -2.5, "c": True, "d": None, "e": None, "f": None, "g": "yes", "h": "0079", "i": 1000.0}),
        ("a: 2024-01-31\nb: 99999999999999999999\nc: 1e999\nd: .inf\ne: 0x1f\nf: 1_000\n",
         {"a": "2024-01-31", "b": "99999999999999999999", "c": "1e999", "d": ".inf", "e": "0x1f", "f": "1_000"}),
        ("a: 'it''s'\nb: \"x\\ty\\u00e9\\x41\"\nc: \"dois\n  três\n\n  quatro\"\n",
         {"a": "it's", "b": "x\tyéA", "c": "dois três\nquatro"}),
        ("a: [x, 'y, z', [1, 2], {k: v}]\nb: {c: 1, \"d\": [e],\n  f: g}\nc: [\n  a, # um\n  b,\n]\n",
         {"a": ["x", "y, z", [1, 2], {"k": "v"}], "b": {"c": 1, "d": ["e"], "f": "g"}, "c": ["a", "b"]}),
        ("a:\n- x\n- y: 1\n  z: 2\n-\n  - 3\nb:\n  - w\n", {"a": ["x", {"y": 1, "z": 2}, [3]], "b": ["w"]}),
        ("a:\n  b:\n    c: d\n  e: f\n", {"a": {"b": {"c": "d"}, "e": "f"}}),
        ("a: |\n  x\n   y\n\n  z\nb: >-\n  um\n  dois\n\n  três\nc: |+\n  x\n\n", {"a": "x\n y\n\nz\n", "b": "um dois\ntrês", "c": "x\n\n"}),
        ("# comentário\na: b # fim\nc: http://x/#y\nd: a:b\n", {"a": "b", "c": "http://x/#y", "d": "a:b"}),
        ("a: um\n  dois\n  três\nb: c\n", {"a": "um dois três", "b": "c"}),
    ],
)  # fmt: skip
def test_read__covers_its_subset(block: str, expected: dict[str, Any]) -> None:
    assert read(f"---\n{block}---\n").metadata == expected


def test_read__keeps_what_it_cannot_read_and_goes_on() -> None:
    matter = read("---\nid: x\nbad: &anchor\n  y: 1\nworse: [a\n---\ntext")
    assert matter.metadata["id"] == "x"
    assert matter.metadata[UNREAD] == [
        {"line": 3, "text": "bad: &anchor\n  y: 1", "error": "'&' is outside the subset"},
        {"line": 5, "text": "worse: [a", "error": "a bracket is not closed"},
    ]


@pytest.mark.parametrize("escape", ["\\0", "\\x00", "\\ud800", "\\U00110000", "\\q"])
def test_read__characters_that_no_text_may_hold_are_not_read(escape: str) -> None:
    assert list(read(f'---\na: "{escape}"\n---\n').metadata) == [UNREAD]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---",
        "---\n",
        "---\na: b\n",
        "text\n---\na: b\n---\n",
        " ---\na: b\n---\n",
        "---\n# T\n\nplain text\n---\n",
        "----\na: b\n---\n",
    ],
)
def test_read__is_absent_where_it_does_not_open_close_and_begin_with_a_key(text: str) -> None:
    assert read(text) == ({}, 0)


@pytest.mark.parametrize("close", ["---", "...", "---  "])
def test_body__starts_after_the_closing_line(close: str) -> None:
    text = f"---\na: b\n{close}\nbody"
    assert text[read(text).body_start :] == "body"


@settings(max_examples=300, deadline=None)
@given(texts())
def test_read__never_raises_on_any_text(text: str) -> None:
    ready = normalise(f"---\na: {text}")
    matter = read(ready)
    assert 0 <= matter.body_start <= len(ready)
    json.dumps(matter.metadata, allow_nan=False).encode()


FIELD_PARTS = [
    "a",
    "title",
    "ms.x",
    "é",
    ": ",
    ":",
    " ",
    '"',
    "#",
    " #",
    "1",
    "1.5",
    "true",
    "~",
    "-",
    "[",
    "\\",
    "\t",
    "\n",
]


@settings(max_examples=500)
@given(st.lists(st.sampled_from([*FIELD_PARTS, "\nkey: ", '\nk: "x"']), max_size=12).map("".join))
def test_fields_of_one_line__are_read_as_the_whole_reader_reads_them(text: str) -> None:
    block = f"k: v{text}\n"
    fields = _fields(block)
    if fields is not None:
        assert json.dumps(fields) == json.dumps(_Reader(block).document())


def test_fields_of_one_line__need_no_reader() -> None:
    block = 'title: Um título\nms.date: 05/06/2017\nid: "58"\nn: 12\nurl: https://a.b/c#d\n'
    assert _fields(block) == {
        "title": "Um título",
        "ms.date": "05/06/2017",
        "id": "58",
        "n": 12,
        "url": "https://a.b/c#d",
    }
    assert _fields("a: b: c\n") is None and _fields("a: [b]\n") is None
