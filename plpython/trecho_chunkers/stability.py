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
    for name, edited, at, length in _edits(path, ready):
        after = chunk(path, edited, chosen, scope)
        rows.append(_row(name, path, before, after, edited, at, length))
    return rows


def _edits(path: str, text: str) -> list[tuple[str, str, int, int]]:
    """(name, edited text, offset of the new text, its length)."""
    edits: list[tuple[str, str, int, int]] = []
    body = front_matter.read(text).body_start if is_markdown(path) else 0
    word = _middle_word(text, body)
    if word is not None:
        start, end = word
        mark = "x" if text[start] != "x" else "y"
        same = mark * (end - start)
        longer = same + mark
        edits.append(("word, same length", text[:start] + same + text[end:], start, len(same)))
        edits.append(("word, one letter longer", text[:start] + longer + text[end:], start, len(longer)))
    if text[body:].strip():
        line = _comment(path) + _LINE
        edits.append(("line at the top", f"{text[:body]}{line}\n{text[body:]}", body, len(line)))
        middle = text.rfind("\n", body, body + (len(text) - body) // 2) + 1
        if middle > body:
            edits.append(("line in the middle", f"{text[:middle]}{line}\n{text[middle:]}", middle, len(line)))
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
