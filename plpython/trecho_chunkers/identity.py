"""Names that last: content hashes, chunk ids, anchors, slugs, session ids."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import uuid

# uuid5(NAMESPACE_URL, "trecho:session"), written out so that it can never change.
_SESSION_NAMESPACE = uuid.UUID("9dad3492-a99d-5255-961f-9712e51cbd1e")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\Z")
_SLUG_DROP_ASCII = re.compile(r"[^a-z0-9_\- ]+")
_SLUG_DROP = re.compile(r"[^\w\- ]")
_SLUG_MAX_CHARS = 200


def content_hash(source: str, symbol: str, text: str) -> bytes:
    """sha256(source \\0 symbol \\0 text), 32 bytes. `source` is the path, or the session id as text."""
    return hashlib.sha256(f"{source}\0{symbol}\0{text}".encode()).digest()


def chunk_id(doc_id: str, ordinal: int, text: str) -> str:
    """`doc_id:ordinal:sha1(text)[:10]`, readable in traces."""
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return f"{doc_id}:{ordinal}:{digest[:10]}"


def anchor(doc_id: str, anchor_path: str) -> str:
    """`doc_id#heading-slug[/sub-slug]`, or the bare `doc_id` where there is no heading."""
    return f"{doc_id}#{anchor_path}" if anchor_path else doc_id


def slug(heading: str) -> str:
    """The slug of a heading as GitHub makes it: lower case, punctuation dropped, blanks to hyphens."""
    lowered = heading[:_SLUG_MAX_CHARS].strip().lower().replace("\t", " ")
    if lowered.replace(" ", "").isalnum():  # nothing to drop
        return lowered.replace(" ", "-")
    if lowered.isascii():
        return _SLUG_DROP_ASCII.sub("", lowered).replace(" ", "-")
    for char in set(_SLUG_DROP.findall(lowered)):
        if unicodedata.category(char) not in ("Mn", "Mc"):  # vowel signs of Indic scripts, accents of others
            lowered = lowered.replace(char, "")
    return lowered.replace(" ", "-")


class Slugs:
    """Slugs of one document: the second `x` becomes `x-1`, the third `x-2`."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def unique(self, heading: str) -> str:
        """The slug of `heading`, unlike every one given before. Work is constant on average."""
        seen = self._seen
        base = slug(heading) if heading else ""
        count = seen.get(base, -1) + 1
        seen[base] = count
        if not count:
            return base
        while (candidate := f"{base}-{count}") in seen:
            count += 1
        seen[base] = count
        seen[candidate] = 0
        return candidate


def file_stem(path: str) -> str:
    """The file name without folders and without its last extension."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    stem, dot, _ = name.rpartition(".")
    return stem if dot and stem else name


def as_uuid(value: object) -> str | None:
    """`value` as a lower-case UUID with hyphens, or None."""
    if isinstance(value, str) and _UUID.match(value.strip()):
        return value.strip().lower()
    return None


def session_id_of(project: str, path: str, declared: object = None) -> str:
    """The id of the session in file `path`, as a UUID in text.

    The file's own `session_id` (a value that is no UUID is hashed with the project), else a UUID file
    stem, else uuid5(project, path).
    """
    if isinstance(declared, (str, int)) and not isinstance(declared, bool) and str(declared).strip():
        named = str(declared).strip()
        return as_uuid(named) or str(uuid.uuid5(_SESSION_NAMESPACE, f"{project}\0session_id\0{named}"))
    return as_uuid(file_stem(path)) or str(uuid.uuid5(_SESSION_NAMESPACE, f"{project}\0{path}"))
