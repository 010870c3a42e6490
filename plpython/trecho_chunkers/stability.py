"""What an edit costs: chunk a text, edit it, chunk it again, and count what an index would see as new."""

from __future__ import annotations

import re
from typing import NamedTuple

from . import front_matter
from .dispatch import SettingsLike, as_settings, chunk, is_markdown
from .identity import chunk_id, content_hash
from .model import Chunk
from .normalise import normalise

_WORD = re.compile(r"(?<![\w#&/.<-])[^\W\d_]{4,}(?![\w/.:=(\[<-])")
_COMMENTS = {
    "rust": "// ", "typescript": "// ", "tsx": "// ", "javascript": "// ", "go": "// ",
    "python": "# ", "toml": "# ", "yaml": "# ", "sql": "-- ",
}  # fmt: skip
_LINE = "an inserted line"
# In a session: a word between words, which is no key of JSON; and the places where an event may be put in.
_INNER_WORD = re.compile(r"(?<=[^\W\d_] )[^\W\d_]{4,}(?=[ .,;!?][^\W\d_\n]| [^\W\d_])")
_EVENT = f'{{"role": "user", "text": "{_LINE}"}}'
_FIRST_EVENT = re.compile(r'\s*(?:\{\s*"(?s:.*?)"(?:events|messages|turns)"\s*:\s*)?\[(?=\s*[{"])')
_BETWEEN_EVENTS = re.compile(r"\},[ \t]*\n(?=\s*\{)")


class Edit(NamedTuple):
    """One edit and its cost. Counts are of the chunks after the edit."""

    edit: str
    chunks: int
    ids_changed: int  # chunk ids that were not there before; ordinals are part of them
    hashes_changed: int  # content hashes that were not there before: what has to be embedded at most
    really_changed: int  # chunks that hold edited text: no chunker can do with fewer


def chunk_stability(
    path: str, text: str, settings: SettingsLike = None, scope: str | None = None
) -> list[Edit]:
    """Measure four edits: a word replaced by one of its length and of another, a line added on top and inside.

    An edit that the text has no place for is left out. Raises: ChunkError, as `chunk` does.
    """
    chosen = as_settings(settings)
    ready = normalise(text)
    before = chunk(path, ready, chosen, scope)
    rows: list[Edit] = []
    edits = _session_edits(ready) if scope == "session" else _edits(path, ready)
    for name, edited, at, length in edits:
        after = chunk(path, edited, chosen, scope)
        rows.append(_row(name, path, before, after, edited, at, length))
    return rows


def _edits(path: str, text: str) -> list[tuple[str, str, int, int]]:
    """(name, edited text, offset of the new text, its length)."""
    body = front_matter.read(text).body_start if is_markdown(path) else 0
    edits = _word_edits(text, _middle_word(text, body))
    if text[body:].strip():
        line = _comment(path) + _LINE
        edits.append(("line at the top", f"{text[:body]}{line}\n{text[body:]}", body, len(line)))
        middle = text.rfind("\n", body, body + (len(text) - body) // 2) + 1
        if middle > body:
            edits.append(("line in the middle", f"{text[:middle]}{line}\n{text[middle:]}", middle, len(line)))
    return edits


def _word_edits(text: str, word: tuple[int, int] | None) -> list[tuple[str, str, int, int]]:
    if word is None:
        return []
    start, end = word
    same = ("x" if text[start] != "x" else "y") * (end - start)
    longer = same + same[0]
    return [
        ("word, same length", text[:start] + same + text[end:], start, len(same)),
        ("word, one letter longer", text[:start] + longer + text[end:], start, len(longer)),
    ]


def _session_edits(text: str) -> list[tuple[str, str, int, int]]:
    """The edits of a session: the lines put in are events, in the form that the session has."""
    body = front_matter.read(text).body_start
    middle = len(text) // 2
    word = _INNER_WORD.search(text, middle) or _INNER_WORD.search(text, body)
    edits = _word_edits(text, word.span() if word else None)
    first = text.lstrip()[:1]
    whole = _FIRST_EVENT.match(text) if first in ("[", "{") else None
    if whole is not None:
        places = [(whole.end(), f"\n{_EVENT},")]
        between = _BETWEEN_EVENTS.search(text, middle)
        if between is not None:
            places.append((between.end(), f"{_EVENT},\n"))
    else:
        event = f"{_EVENT}\n" if first == "{" else f"user: {_LINE}\n"
        places = [(body, event)] if text[body:].strip() not in ("", "[]", "{}") else []
        inside = text.rfind("\n", body, body + (len(text) - body) // 2) + 1
        if inside > body:
            places.append((inside, event))
    for name, (at, event) in zip(("line at the top", "line in the middle"), places, strict=False):
        edited = text[:at] + event + text[at:]
        edits.append((name, edited, at + event.index(_LINE), len(_LINE)))
    return edits


def _middle_word(text: str, body: int) -> tuple[int, int] | None:
    """The word nearest after the middle that is in no heading; else the first one."""
    middle = body + (len(text) - body) // 2
    for begin in (middle, body):
        for found in _WORD.finditer(text, begin):
            line = text[text.rfind("\n", 0, found.start()) + 1 :][:8].lstrip()
            if not line.startswith(("#", "`", "~", "|", "<", "[")):
                return found.span()
    return None


def _comment(path: str) -> str:
    if is_markdown(path):
        return ""
    from .languages import language_of

    return _COMMENTS.get(language_of(path) or "", "")


def _row(
    name: str, path: str, before: list[Chunk], after: list[Chunk], edited: str, at: int, length: int
) -> Edit:
    ids = {chunk_id(path, item.ordinal, item.content) for item in before}
    hashes = {content_hash(path, item.symbol, item.content) for item in before}
    line = edited.count("\n", 0, at) + 1
    new_text = edited[at : at + length]
    return Edit(
        name,
        len(after),
        sum(chunk_id(path, item.ordinal, item.content) not in ids for item in after),
        len({content_hash(path, item.symbol, item.content) for item in after} - hashes),
        sum(item.start_line <= line <= item.end_line and new_text in item.content for item in after),
    )
