"""Servers of this checkout as a person drives them, and a look into them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "server.sh"


@dataclass(frozen=True)
class PrivateServer:
    """One further server of this checkout (TRECHO_SERVER), driven through scripts/server.sh as a person would."""

    name: str
    env: dict[str, str] = field(default_factory=dict)

    def run(
        self, *args: str, check: bool = True, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """server.sh ARGS; with `check`, a failure shows what it printed."""
        env = {name: value for name, value in os.environ.items() if name not in ("SERVER", "TRECHO_SERVER")}
        ran = subprocess.run(
            [str(SCRIPT), *args],
            env=env | {"TRECHO_SERVER": self.name} | self.env,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if check:
            assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran

    def start(self) -> str:
        """Bring it up; the DSN."""
        return self.run("start").stdout.splitlines()[-1]

    def status(self) -> dict[str, str]:
        """What `server.sh status` prints, by its first words."""
        lines = self.run("status", check=False).stdout.splitlines()
        return dict(line.split(" ", 1) for line in lines if " " in line)

    @property
    def state(self) -> Path:
        """Where everything of this server lies."""
        return Path(self.status()["state"])

    def data(self) -> Path:
        """Its data directory, also where it lies inside the private root (no mounts allowed)."""
        state, root = self.state, self.status()["root"]
        inner = Path(root.rstrip("/") + str(state / "cluster" / "data"))
        return inner if inner.joinpath("PG_VERSION").exists() else state / "cluster" / "data"

    def pid(self) -> int:
        """Of its postmaster, as the pid file says."""
        return int((self.data() / "postmaster.pid").read_text().split()[0])

    @property
    def dsn_file(self) -> Path:
        """Where the rest of the checkout finds the DSN."""
        return ROOT / ".server" / f"{self.name}.dsn"


def value(dsn: str, query: str) -> object:
    """The one value that a query gives."""
    with psycopg.connect(dsn) as conn:
        row = conn.execute(query).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return row[0]
