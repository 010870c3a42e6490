"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from datetime import datetime

from trecho.errors import TrechoError


def print_json(data: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(data, ensure_ascii=False, indent=2, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def note(text: str) -> None:
    """A line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def print_error(error: TrechoError) -> None:
    """`error:`, `detail:` and `hint:` lines on stderr."""
    note(f"error: {error}")
    if error.detail:
        note("detail: " + error.detail.strip().replace("\n", "\n        "))
    if error.hint:
        note(f"hint: {error.hint}")
