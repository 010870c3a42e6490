"""Link reference definitions: how much of a paragraph's start they take (CommonMark 0.31, section 4.7).

A paragraph made of nothing else cannot become a setext heading, so exact heading boundaries need this.
"""

from __future__ import annotations

import re

_LABEL = re.compile(r"\[(?!\s*\])(?:[^\[\]\\]|\\[\s\S]?){1,999}+\]:[ \t]*+\n?[ \t]*+")
_POINTY = re.compile(r"<(?:[^<>\n\\]|\\[^\n])*+>")
_BARE = re.compile(r"(?!<)[^\x00-\x20\x7f]++")
_GAP = re.compile(r"[ \t]*+\n?[ \t]*+")
_TITLE = re.compile(
    r"""(?:"(?:[^"\\]|\\[\s\S])*+"|'(?:[^'\\]|\\[\s\S])*+'|\((?:[^()\\]|\\[\s\S])*+\))[ \t]*+(?:\n|\Z)"""
)
_LINE_REST = re.compile(r"[ \t]*+(?:\n|\Z)")


def definitions_end(paragraph: str) -> int:
    """Offset in `paragraph` after its leading reference definitions; 0 when there are none.

    `paragraph`: its lines joined by LF, each without indentation.
    """
    done = 0
    while done < len(paragraph) and paragraph[done] == "[":
        end = _definition_end(paragraph, done)
        if end < 0:
            break
        done = end
    return done


def _definition_end(text: str, start: int) -> int:
    label = _LABEL.match(text, start)
    if label is None:
        return -1
    target = _POINTY.match(text, label.end())
    if target is None:
        target = _BARE.match(text, label.end())
        if target is None or not _balanced(target.group()):
            return -1
    after = target.end()
    gap = _GAP.match(text, after)
    if gap is not None and gap.end() > after:
        title = _TITLE.match(text, gap.end())
        if title is not None:
            return title.end()
    rest = _LINE_REST.match(text, after)
    return -1 if rest is None else rest.end()


def _balanced(target: str) -> bool:
    """Whether unescaped parentheses pair up."""
    if "(" not in target and ")" not in target:
        return True
    depth = 0
    escaped = False
    for char in target:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth < 0:
                return False
    return depth == 0
