"""Progress of a pass: a bar for each phase on a terminal, a line now and then in a log."""

from __future__ import annotations

from trecho.meter import Meter
from trecho.reconcile import Progress


class TerminalProgress(Progress):
    """One meter per phase of a pass."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._name = ""
        self._meter: Meter | None = None

    def stage(self, done: int) -> None:
        self._show("reading", "file", done, None)

    def plan(self, done: int, total: int) -> None:
        self._show("chunking", "document", done, total)

    def embed(self, done: int, total: int) -> None:
        self._show("embedding", "text", done, total)

    def phase(self, name: str) -> None:
        self._show(name, "step", 0, None)

    def close(self) -> None:
        """Take the last bar away."""
        if self._meter is not None:
            self._meter.close()
            self._meter = None

    def _show(self, name: str, unit: str, done: int, total: int | None) -> None:
        if self._meter is None or name != self._name:
            self.close()
            self._name = name
            self._meter = Meter(f"{self._label}: {name}", unit)
        self._meter.update(done, total)
