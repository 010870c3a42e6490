"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import re
import sys
from datetime import datetime

from trecho.errors import TrechoError

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def print_json(data: object) -> None:
    """One JSON document on stdout. JSON is UTF-8: a stdout of another encoding gets escapes instead."""
    text = json.dumps(data, ensure_ascii=False, indent=2, default=_plain)
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("_", "-")
    if encoding not in ("utf-8", "utf8") or not _is_unicode(text):
        text = json.dumps(data, indent=2, default=_plain)
    print(text)


def _is_unicode(text: str) -> bool:
    """False for the halves of characters that Python makes of arguments and file names that are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def forgive_characters() -> None:
    """What the terminal's encoding lacks is shown as an escape and never an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def harmless(text: str) -> str:
    """A text in which what others wrote, such as a server or the name of a file, moves no terminal."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def note(text: str) -> None:
    """A line, made harmless, for the person who waits."""
    print(harmless(text), file=sys.stderr, flush=True)


def print_error(error: TrechoError) -> None:
    """`error:`, `detail:` and `hint:` lines on stderr."""
    note(f"error: {error}")
    if error.detail:
        note("detail: " + error.detail.strip().replace("\n", "\n        "))
    if error.hint:
        note(f"hint: {error.hint}")
