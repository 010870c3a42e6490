"""What a document says of itself: title, stable id, language, session and metadata."""

from __future__ import annotations

import re
from typing import NamedTuple

from . import blocks, front_matter
from .dispatch import is_markdown
from .front_matter import Json, scalar_text
from .identity import file_stem, session_id_of
from .markdown import plain_heading
from .model import DEFAULT_SETTINGS, Deadline
from .normalise import normalise

_TITLE_MAX_CHARS = 300
_ADR_NUMBER = re.compile(r"(?:adr[-_ ]?)?0*([0-9]{1,6})(?=[-_. ]|$)", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Description(NamedTuple):
    """A document's own account of itself; a pure function of path, text, scope and project."""

    title: str  # front matter, else the first level-1 heading, else the file's stem
    doc_id: str  # front matter `id`, else the ADR number, else the session, else the path
    doc_id_claimed: bool  # whether the front matter gave it: two equal claims in a branch are an error
    language: str | None  # of code and Markdown; None when unknown
    session_id: str | None  # of sessions only
    metadata: dict[str, Json]  # the front matter; for sessions also `origin`, the path


def describe(path: str, text: str, scope: str, project: str = "default") -> Description:
    """Describe one document.

    Args: path: as stored, with forward slashes. text: as decoded. scope: docs, adr, session or code.
        project: takes part in the id of a session that names none.
    Raises: ChunkError (TR008) when the time runs out. A front matter that cannot be read raises nothing.
    """
    ready = normalise(text)
    session_id: str | None = None
    title = ""
    if scope == "session":
        from .session import read_events

        events = read_events(ready, Deadline(DEFAULT_SETTINGS.timeout_ms))
        metadata = dict(events.metadata)
        session_id = session_id_of(project, path, events.session_id)
        metadata["origin"] = path
    elif scope != "code" and (is_markdown(path) or scope == "adr"):
        matter = front_matter.read(ready)
        metadata = matter.metadata
        if not scalar_text(metadata.get("title")):
            deadline = Deadline(DEFAULT_SETTINGS.timeout_ms)
            titles = blocks.scan(ready, matter.body_start, deadline, title_only=True).headings
            title = plain_heading(titles[-1].title) if titles and titles[-1].level == 1 else ""
    else:
        metadata = {}
    title = scalar_text(metadata.get("title")) or title or file_stem(path)
    claimed = scalar_text(metadata.get("id"))
    language = None if scope == "session" else _language(path)
    doc_id = claimed or (adr_id(path) if scope == "adr" else None) or session_id or path
    return Description(title[:_TITLE_MAX_CHARS], doc_id, bool(claimed), language, session_id, metadata)


def adr_id(path: str) -> str | None:
    """`adr-0079` for `0079-usar-pgvector.md`, `adr-0079.md` or `ADR-79.md`; None for a name without number.

    A date at the start of a name (`2024-05-01-x.md`) is no number.
    """
    stem = file_stem(path)
    if _DATE.match(stem):
        return None
    found = _ADR_NUMBER.match(stem)
    return f"adr-{int(found.group(1)):04d}" if found else None


def _language(path: str) -> str | None:
    if is_markdown(path):
        return "markdown"
    from .languages import language_of

    return language_of(path)
