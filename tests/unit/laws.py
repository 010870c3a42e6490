"""Laws that every chunker keeps, checked on a text and its chunks."""

from __future__ import annotations

from trecho_chunkers.front_matter import read
from trecho_chunkers.model import DEFAULT_SETTINGS, Chunk, Settings
from trecho_chunkers.normalise import normalise


def original_lines(text: str) -> list[str]:
    """Lines of a text as it was read, in which a line ends with LF, CRLF or CR."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def check_slices(
    text: str,
    chunks: list[Chunk],
    settings: Settings = DEFAULT_SETTINGS,
    *,
    front_matter: bool = False,
    overlap: bool = False,
) -> None:
    """Chunks are non-blank slices in order under the cap, lose no non-blank character and know their lines."""
    ready = normalise(text)
    lines = ready.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    begin = read(ready).body_start if front_matter else 0
    covered = bytearray(len(ready))
    after = begin  # where the chunk before ends
    line_before = 0
    for ordinal, chunk in enumerate(chunks, 1):
        assert chunk.ordinal == ordinal
        assert chunk.content.strip(), "a chunk of blanks"
        assert len(chunk.content.encode()) <= settings.chunk_max_bytes
        line = starts[chunk.start_line - 1]
        if overlap and chunk.start_line > line_before and ready.startswith(chunk.content, line):
            at = line
        else:
            at = ready.find(chunk.content, max(after, line))
        assert at >= 0, f"chunk {ordinal} is no slice at its place"
        assert starts[chunk.start_line - 1] <= at < starts[chunk.start_line], "wrong start_line"
        assert chunk.end_line == chunk.start_line + chunk.content.count("\n"), "wrong end_line"
        covered[at : at + len(chunk.content)] = b"\1" * len(chunk.content)
        after = at + len(chunk.content)
        assert chunk.start_line >= line_before, "out of order"
        line_before = chunk.start_line
    lost = [
        ready[at : at + 20] for at in range(begin, len(ready)) if not covered[at] and not ready[at].isspace()
    ]
    assert not lost, f"lost text: {lost[:3]}"
    assert len(lines) == len(original_lines(text)), "normalising moved lines"
