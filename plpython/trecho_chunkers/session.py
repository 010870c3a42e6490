"""Sessions: JSON events or a plain transcript, cut between turns.

JSON comes as an array of events, as an object that holds one (`events`, `messages` or `turns`), or as lines. An
event is rendered as `role (at): text`; the chunks of JSON are cut from that rendering, since the text inside JSON
strings is escaped, and their lines are those of the events in the file. The chunks of a transcript are slices
of it. Whole turns stay together up to the section budget; a longer turn is cut, and who speaks goes to `context`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

from . import front_matter
from .cuts import Budget, Span, cut_lines, trim
from .front_matter import Json
from .model import Chunk, Deadline, Lines, Settings
from .normalise import normalise

_LISTS = ("events", "messages", "turns")
_TEXTS = ("text", "content", "message", "body")
_ROLES = ("role", "speaker", "author", "sender", "from", "name", "type")
_TIMES = ("at", "timestamp", "time", "created_at", "ts", "date")
_SPEAKER_MAX_CHARS = 100

_DECODER = json.JSONDecoder()
_encode = json.JSONEncoder(ensure_ascii=False).encode
_new = tuple.__new__  # a NamedTuple without the call in between

_SPACE = re.compile(r"[ \t\n\r]*+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_TURN = re.compile(
    r"^(?:\[[^\]\n]{1,40}\][ \t]*|[0-9][0-9T:./-]{3,30}[ \t]+(?:-[ \t]+)?|#{1,6}[ \t]+)?"
    r"(?:\*\*)?(?P<speaker>[^\W\d_][\w.'-]{0,29}(?:[ ][\w.'-]{1,20}){0,2}(?:[ ]\([^()\n]{1,40}\))?)(?:\*\*)?:(?:\*\*)?"
    r"(?=[ \t\n]|\Z)",
    re.MULTILINE,
)


class Turn(NamedTuple):
    """One event: a slice of the rendered text, and the lines of the file that it came from."""

    start: int
    end: int
    speaker: str  # `role (at):`, may be empty
    first_line: int
    last_line: int


class Events(NamedTuple):
    """A session as read. `text` is what is cut: the rendered events, or the transcript itself."""

    text: str
    turns: list[Turn]
    is_json: bool
    session_id: Json  # the file's own field, if any
    metadata: dict[str, Json]


def chunk_events(text: str, settings: Settings, deadline: Deadline) -> list[Chunk]:
    """Cut a normalised session text into chunks of whole turns."""
    events = read_events(text, deadline)
    budget = Budget(settings.section_max_chars, settings.section_max_lines, settings.chunk_max_bytes)
    lines = Lines(events.text)
    chunks: list[Chunk] = []

    def emit(span: Span, kind: str, turn: int, last_turn: int, context: str) -> None:
        if events.is_json:
            first, last = events.turns[turn].first_line, events.turns[last_turn].last_line
        else:
            first, last = lines.at(span[0]), lines.at(span[1])
        content = events.text[span[0] : span[1]]
        chunks.append(Chunk(len(chunks) + 1, kind, "", f"turn-{turn + 1}", context, first, last, content))

    open_span: Span | None = None
    open_turn = 0
    for index, turn in enumerate(events.turns):
        deadline.check()
        span = trim(events.text, turn.start, turn.end)
        if span is None:
            continue
        if open_span is not None and budget.fits(events.text, open_span[0], span[1]):
            open_span = (open_span[0], span[1])
            continue
        if open_span is not None:
            emit(open_span, "turns", open_turn, index - 1, "")
            open_span = None
        if budget.fits(events.text, *span):
            open_span, open_turn = span, index
            continue
        first = True
        for piece in cut_lines(events.text, *span, budget, deadline):
            trimmed = trim(events.text, *piece)
            if trimmed is not None:
                emit(trimmed, "turn-part", index, index, "" if first else turn.speaker)
                first = False
    if open_span is not None:
        emit(open_span, "turns", open_turn, len(events.turns) - 1, "")
    return chunks


def read_events(text: str, deadline: Deadline) -> Events:
    """Read a normalised session text in whichever form it comes. Text in no known form is a transcript."""
    first = text.lstrip()[:1]
    if first in ("[", "{"):
        found = _json_events(text, deadline)
        if found is not None:
            return found
    return _transcript(text)


# --- JSON --------------------------------------------------------------------------------------------------


class _Event(NamedTuple):
    value: Any
    start: int
    end: int


def _json_events(text: str, deadline: Deadline) -> Events | None:
    """Events of a JSON session, or None when `text` is not JSON after all."""
    fields: dict[str, Any] = {}
    try:
        found = list(_whole(text, fields))
    except (ValueError, RecursionError):
        fields = {}
        found = _json_lines(text)
        if not any(isinstance(event.value, dict) for event in found):
            return None
    session_id = _session_field(fields)
    parts: list[str] = []
    turns: list[Turn] = []
    at = done = 0
    line = 1  # that `done` is on
    for index, (value, start, end) in enumerate(found):
        if not index & 255:
            deadline.check()
        if session_id is None and isinstance(value, dict):
            session_id = _session_field(value)
        speaker, body = _rendered(value)
        rendered = normalise(_NOT_TEXT.sub("\ufffd", f"{speaker} {body}" if speaker else body))
        first = line + text.count("\n", done, start)
        done, line = end, first + text.count("\n", start, end)
        turns.append(_new(Turn, (at, at + len(rendered), speaker[:_SPEAKER_MAX_CHARS], first, line)))
        parts.append(rendered)
        at += len(rendered) + 2
    metadata: dict[str, Json] = {}
    if isinstance(fields.get("title"), str):
        metadata["title"] = _NOT_TEXT.sub("\ufffd", fields["title"])
    return Events("\n\n".join(parts), turns, True, session_id, metadata)


def _whole(text: str, fields: dict[str, Any]) -> Iterator[_Event]:
    """Events of a file that is one JSON array or object; `fields` gets the object's other fields.

    Raises: ValueError when it is neither.
    """
    decoder = _DECODER
    at = _after_space(text, 0)
    if text[at] == "[":
        at = yield from _elements(text, at, decoder)
    else:
        start = at
        listed = False
        at = _after_space(text, at + 1)
        while text[at : at + 1] != "}":
            key, at = decoder.raw_decode(text, at)
            at = _after_space(text, at)
            if not isinstance(key, str) or text[at : at + 1] != ":":
                raise ValueError("not a JSON object")
            at = _after_space(text, at + 1)
            if key in _LISTS and text[at : at + 1] == "[" and not listed:
                listed = True
                at = yield from _elements(text, at, decoder)
            else:
                fields[key], at = decoder.raw_decode(text, at)
            at = _after_space(text, at)
            if text[at : at + 1] == ",":
                at = _after_space(text, at + 1)
            elif text[at : at + 1] != "}":
                raise ValueError("not a JSON object")
        at += 1
        if not listed:
            yield _Event(dict(fields), start, at)
    if _after_space(text, at) != len(text):
        raise ValueError("text after the JSON value")


def _elements(text: str, at: int, decoder: json.JSONDecoder) -> Generator[_Event, None, int]:
    """The elements of the array at offset `at`; the generator's value is the offset after it."""
    at = _after_space(text, at + 1)
    while text[at : at + 1] != "]":
        value, end = decoder.raw_decode(text, at)
        yield _Event(value, at, end)
        at = _after_space(text, end)
        if text[at : at + 1] == ",":
            at = _after_space(text, at + 1)
        elif text[at : at + 1] != "]":
            raise ValueError("not a JSON array")
    return at + 1


def _json_lines(text: str) -> list[_Event]:
    """One event a line; a line that is no JSON is an event of plain text, so that nothing is lost."""
    events: list[_Event] = []
    decode = _DECODER.decode
    at = 0
    for line in text.split("\n"):
        end = at + len(line)
        opening = line.lstrip()[:1]
        if opening:
            value: Any = line
            if opening in '[{"':
                try:
                    value = decode(line)
                except (ValueError, RecursionError):
                    value = line
            events.append(_new(_Event, (value, at, end)))
        at = end + 1
    return events


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _session_field(fields: dict[str, Any]) -> Json:
    value = fields.get("session_id", fields.get("sessionId"))
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rendered(event: Any) -> tuple[str, str]:
    """Who speaks, as `role (at):`, and the text."""
    if not isinstance(event, dict):
        return "", _text_of(event)
    if not event:
        return "", "{}"
    inner = event.get("message")
    source = inner if isinstance(inner, dict) else event
    role = _first_scalar(source, _ROLES)
    moment = _first_scalar(event, _TIMES)
    if source is not event:
        role = role or _first_scalar(event, _ROLES)
        moment = moment or _first_scalar(source, _TIMES)
    for key in _TEXTS:
        if source.get(key) is not None:
            body = _text_of(source[key])
            break
    else:
        body = _dumped(event)
    speaker = role
    if moment:
        speaker = f"{role} ({moment})" if role else f"({moment})"
    return (f"{speaker}:" if speaker else ""), body


def _first_scalar(event: dict[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        value = event.get(key)
        if value is None:
            continue
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value).strip():
            return " ".join(str(value).split())
    return ""


def _text_of(value: Any) -> str:
    """A text, a list of texts or of `{type: text, text}` parts; anything else as JSON, so nothing is lost."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join([_text_of(part) for part in value])
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    return _dumped(value)


def _dumped(value: Any) -> str:
    return _encode(value)


# --- transcripts -------------------------------------------------------------------------------------------


def _transcript(text: str) -> Events:
    """Turns that start with `speaker: text` lines; a text without any is cut at its paragraphs."""
    matter = front_matter.read(text)
    found = list(_TURN.finditer(text, matter.body_start))
    if found:
        starts = [turn.start() for turn in found]
        names = [turn.group("speaker") + ":" for turn in found]
    else:
        starts = [gap.end() for gap in re.finditer(r"\n(?:[ \t]*+\n)++", text)]
        starts = [start for start in starts if start > matter.body_start]
        names = ["" for _ in starts]
    if not starts or starts[0] > matter.body_start:
        starts.insert(0, matter.body_start)
        names.insert(0, "")
    ends = [*starts[1:], len(text)]
    turns = [
        Turn(start, end, name[:_SPEAKER_MAX_CHARS], 0, 0)
        for start, end, name in zip(starts, ends, names, strict=True)
    ]
    return Events(text, turns, False, matter.metadata.get("session_id"), dict(matter.metadata))
