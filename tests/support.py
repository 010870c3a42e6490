"""What tests share besides fixtures."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.rows import DictRow, dict_row
from pytest_postgresql.janitor import DatabaseJanitor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "plpython"))

Connection = psycopg.Connection[DictRow]


@dataclass(frozen=True)
class Server:
    """A server that tests may make databases on, as a superuser."""

    dsn: str

    def connect(self, dbname: str | None = None, **options: Any) -> Connection:
        """A connection with rows by name."""
        dsn = conninfo.make_conninfo(self.dsn, **({"dbname": dbname} if dbname else {}))
        return psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, **options)

    def janitor(self, dbname: str, **options: Any) -> DatabaseJanitor:
        """Makes a database and drops it again, with whoever is still connected."""
        stated = conninfo.conninfo_to_dict(self.dsn)
        return DatabaseJanitor(
            user=str(stated.get("user") or "postgres"),
            password=stated.get("password"),
            host=str(stated.get("host") or ""),
            port=int(stated.get("port") or 5432),
            dbname=dbname,
            **options,
        )


@dataclass(frozen=True)
class Ran:
    """What a command gave."""

    code: int
    out: str
    err: str


def as_role(dsn: str, role: str) -> str:
    """The DSN with another user, who has the same password."""
    return conninfo.make_conninfo(dsn, user=role)
