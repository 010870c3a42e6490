"""How many requests are under way at once: fewer when the server struggles, more again when it does well."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Pace:
    """Additive increase, halving on trouble, and a common pause. Thread-safe."""

    def __init__(self, most: int, stopping: threading.Event) -> None:
        self._most = float(most)
        self._limit = float(most)
        self._running = 0
        self._held_until = 0.0
        self._changed = threading.Condition()
        self._stopping = stopping

    @property
    def limit(self) -> int:
        """Requests allowed at once now."""
        return max(1, int(self._limit))

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait until a request may start, and count it until the end of the block."""
        with self._changed:
            while not self._stopping.is_set():
                pause = self._held_until - time.monotonic()
                if pause <= 0 and self._running < self.limit:
                    break
                self._changed.wait(min(pause, 0.2) if pause > 0 else 0.2)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    def went_well(self) -> None:
        """A request succeeded: allow a little more."""
        with self._changed:
            self._limit = min(self._most, self._limit + 1 / self._limit)

    def went_badly(self) -> None:
        """A request failed for a moment: allow half."""
        with self._changed:
            self._limit = max(1.0, self._limit / 2)

    def hold(self, seconds: float) -> None:
        """Start no request for so long."""
        with self._changed:
            self._held_until = max(self._held_until, time.monotonic() + seconds)
