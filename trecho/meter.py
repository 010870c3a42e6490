"""How far a long command is: a bar where stderr is a terminal, a line every ten seconds where it is not."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from trecho.console import note

if TYPE_CHECKING:
    from tqdm import tqdm

_LINE_EVERY_S = 10.0


class Meter:
    """Progress of one thing that is counted. Use as a context manager; nothing is shown before the first update."""

    def __init__(self, name: str, unit: str) -> None:
        self._name = name
        self._unit = unit
        self._bar: tqdm[None] | None = None
        self._began = self._told = time.monotonic()

    def update(self, done: int, total: int | None) -> None:
        """done of total so far; total may grow, and is None where nobody knows it."""
        if sys.stderr.isatty():
            if self._bar is None:
                from tqdm import tqdm

                self._bar = tqdm(desc=self._name, unit=self._unit, file=sys.stderr, leave=False)
            self._bar.total = total
            self._bar.update(done - self._bar.n)
            return
        now = time.monotonic()
        if now - self._told >= _LINE_EVERY_S:
            self._told = now
            note(progress_line(self._name, self._unit, done, total, now - self._began))

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def progress_line(name: str, unit: str, done: int, total: int | None, seconds: float) -> str:
    """One line for a log: how many, how fast, how long still."""
    line = f"{name}: {done} {unit}s" if total is None else f"{name}: {done} of {total} {unit}s"
    if done and seconds > 0:
        line += f", {done / seconds:.1f}/s"
        if total is not None:
            line += f", {_duration(max(total - done, 0) * seconds / done)} left"
    return line


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
