"""A sync that something dies under: run by test_crash.py in a process of its own.

Arguments: DSN, folder, event (name of a progress event, a number after it), delay in seconds, victim (client, session,
backend or server), pid of the postmaster.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psycopg

from trecho.config import folder_source
from trecho.reconcile import Options, Progress, Target, run_pass
from trecho.sources import read_folder
from trecho.sync import embedder


class Death(Progress):
    """Kills the victim at the event, or a moment after it while the pass goes on."""

    def __init__(self, dsn: str, event: str, delay_s: float, victim: str, postmaster: int) -> None:
        self.dsn, self.event, self.delay_s, self.victim, self.postmaster = (
            dsn,
            event,
            delay_s,
            victim,
            postmaster,
        )
        self.counts: dict[str, int] = {}

    def stage(self, done: int) -> None:
        self._tell("stage")

    def plan(self, done: int, total: int) -> None:
        self._tell("plan")

    def embed(self, done: int, total: int) -> None:
        self._tell("embed")

    def phase(self, name: str) -> None:
        self._tell(name)

    def _tell(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        if f"{name} {self.counts[name]}" == self.event:
            if self.delay_s:
                threading.Thread(target=self._strike, daemon=True).start()
            else:
                self._strike()

    def _strike(self) -> None:
        time.sleep(self.delay_s)
        if self.victim == "client":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.victim == "server":
            os.kill(self.postmaster, signal.SIGKILL)
        else:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                row = conn.execute("SELECT backend_pid FROM trecho.pass_holder()").fetchone()
                if row and self.victim == "backend":
                    os.kill(row[0], signal.SIGKILL)  # the postmaster ends every session then, and recovers
                elif row:
                    conn.execute("SELECT pg_terminate_backend(%s, 5000)", (row[0],))


def main() -> None:
    dsn, folder, event, delay, victim, postmaster = sys.argv[1:]
    source = folder_source(Path(folder), "docs", "livro")
    death = Death(dsn, event, float(delay), victim, int(postmaster))
    outcome = run_pass(
        dsn,
        Target("default", "main", "livro", "docs"),
        read_folder(source, 1 << 19),
        Options(embed=embedder(dsn)),
        death,
    )
    print(outcome.state)


if __name__ == "__main__":
    main()
