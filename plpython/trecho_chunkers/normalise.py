"""The normaliser: byte order marks off, line ends to LF, Unicode to NFC. Idempotent, and linear in time.

Lines stay where they are: line n of the result is line n of the original, where a line ends with LF, CRLF
or CR.
"""

from __future__ import annotations

import re
import unicodedata

# Any character outside these ranges may combine with a neighbour or be changed by NFC. Most text holds none,
# and one fast search proves it (a test compares the ranges with Python's own Unicode data).
_CHANGING = (
    "[^\x00-\u02ff\u0370-\u0373\u0375-\u037d\u037f-\u0386\u0388-\u0482\u048a-\u0590\u1e00-\u1eff"
    "\u2002-\u20cf\u20f1-\u2125\u2127-\u2129\u212c-\u2328\u232b-\u2adb\u2add-\u2cee"
    "\u3000-\u3029\u3030-\u3098\u309b-\ua66e\uac00-\ud7a3\ue000-\uf8ff\ufe00-\ufe1f\ufe30-\uffff"
    "\U0001f000-\U0001faff\U00020000-\U0002f7ff]"
)
_MAY_CHANGE = re.compile(_CHANGING)
_ASCII = bytes(range(128))
# Sorting a run of combining marks costs the square of its length; no language comes near this one.
_LONGEST_MARK_RUN = 64
_LONG_RUN = re.compile(f"{_CHANGING}{{{_LONGEST_MARK_RUN + 1}}}")


def normalise(text: str) -> str:
    """Return `text` without leading byte order marks, with LF line ends, in NFC.

    A run of more than 64 combining marks (noise, or an attack on the sorting inside NFC) is left as it is.
    """
    text = text.lstrip("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii() or not _may_change(text):
        return text
    runs = _long_mark_runs(text) if _LONG_RUN.search(text) else None
    if runs is None:
        return unicodedata.normalize("NFC", text)
    parts: list[str] = []
    done = 0
    for run in runs.finditer(text):
        parts.append(unicodedata.normalize("NFC", text[done : run.start()]))
        parts.append(run.group())
        done = run.end()
    parts.append(unicodedata.normalize("NFC", text[done:]))
    return "".join(parts)


def _may_change(text: str) -> bool:
    """Whether `text` holds a character that NFC may change; Latin-1 has none."""
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        # Only what is over U+007F is of interest: a search through that takes a tenth of the time.
        beyond = text.encode("utf-8", "surrogatepass").translate(None, _ASCII)
        return _MAY_CHANGE.search(beyond.decode("utf-8", "surrogatepass")) is not None
    return False


def _long_mark_runs(text: str) -> re.Pattern[str] | None:
    """A pattern for runs of marks that are too long to sort, or None where `text` has none."""
    marks = {char for char in set(_MAY_CHANGE.findall(text)) if _is_mark(char)}
    if not marks:
        return None
    pattern = re.compile(f"[{''.join(map(re.escape, sorted(marks)))}]{{{_LONGEST_MARK_RUN + 1},}}")
    return pattern if pattern.search(text) else None


def _is_mark(char: str) -> bool:
    return unicodedata.combining(unicodedata.normalize("NFD", char)[0]) != 0
