"""Progress bars of long commands; nothing where stderr is not a terminal."""

from __future__ import annotations

import sys

from tqdm import tqdm

from trecho.reconcile import Progress


class TerminalProgress(Progress):
    """One bar per phase of a pass."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._name = ""
        self._bar: tqdm[None] | None = None

    def stage(self, done: int) -> None:
        self._show("reading", done, None)

    def plan(self, done: int, total: int) -> None:
        self._show("chunking", done, total)

    def embed(self, done: int, total: int) -> None:
        self._show("embedding", done, total)

    def phase(self, name: str) -> None:
        self._show(name, 0, None)

    def close(self) -> None:
        """Take the last bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show(self, name: str, done: int, total: int | None) -> None:
        if self._bar is None or name != self._name:
            self.close()
            self._name = name
            self._bar = tqdm(
                desc=f"{self._label}: {name}", total=total, leave=False, file=sys.stderr, disable=None
            )
        self._bar.total = total
        self._bar.update(done - self._bar.n)
