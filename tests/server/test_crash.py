"""Something dies at every step of a pass: what was published keeps serving, the next pass ends, nothing is paid twice."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from misbehaving_server import MisbehavingServer
from psycopg.rows import DictRow, dict_row
from servers import ROOT, PrivateServer

CLI = Callable[..., Any]
DOCUMENTS = 120
EVENTS = (
    "stage 60",
    "plan 1",
    "plan 2",
    "plan 3",
    "embed 1",
    "embed 2",
    "indexes 1",
    "publish 1",
    "statistics 1",
)
DELAYS_S = (0.0, 0.004, 0.02)
VICTIMS = ("client", "session", "backend", "client", "server")


def write(folder: Path, generation: int) -> None:
    """Every document says its generation; a third of the passages change with it."""
    folder.mkdir(exist_ok=True)
    for number in range(DOCUMENTS):
        text = f"# Livro {number}\n\n## Um\n\ngeração{generation} do capítulo {number}.\n\n## Dois\n\nIgual em {number}.\n"
        (folder / f"{number:03}.md").write_text(text)


def rows(dsn: str, query: str) -> list[dict[str, Any]]:
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row) as conn:
        return conn.execute(query.encode()).fetchall()


def what_a_reader_sees(dsn: str) -> tuple[set[str], int]:
    """The generations in the published passages, and how many documents a search for them finds, of one snapshot.

    One snapshot, because the session of a client that was killed goes on until it notices, and may publish between two.
    """
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        passages = conn.execute(
            "SELECT c.content FROM trecho.placements AS p JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key"
        ).fetchall()
        seen = {word for r in passages for word in r["content"].split() if word.startswith("geração")}
        found = conn.execute(
            "SELECT rank FROM trecho.search(%s, mode => 'lexical', k => %s)", (" ".join(seen), DOCUMENTS)
        ).fetchall()
        return seen, len(found)


def back_up(dsn: str, server: PrivateServer) -> None:
    """Wait until the server answers again, starting it where the postmaster is gone."""
    deadline = time.monotonic() + 60
    while True:
        try:
            rows(dsn, "SELECT 1 AS one")
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            server.start()
            time.sleep(0.05)


def finish(trecho: CLI, dsn: str, folder: Path) -> None:
    """The next sync ends; a backend that has not noticed yet that its client is gone may keep the lock for a moment."""
    for _ in range(600):
        ran = trecho("sync", str(folder), "--set", "livro", "--json", dsn=dsn)
        told = json.loads(ran.out)
        if isinstance(told, dict) and told["code"] == "connection_failed":
            continue  # a machine with much to do lets even a connection wait
        assert ran.code == 0, ran.err
        if told[0]["state"] == "published":
            return
        time.sleep(0.05)
    raise AssertionError("the lock of a dead pass remains")


@pytest.mark.slow
def test_death_at_any_step__leaves_one_generation_and_a_next_pass_that_pays_nothing_twice(
    trecho: CLI, make_server: Callable[..., PrivateServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    dsn = server.start()
    folder = tmp_path / "livro"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plpython")])}
    assert trecho("migrate", dsn=dsn).code == 0
    rows(dsn, "SELECT 1")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute('SELECT trecho.configure(\'{"provider": "openai", "model_id": "teste", "dim": 768}\')')
    points = [(event, delay) for event in EVENTS for delay in DELAYS_S]
    schedule = [
        (*point, victim) for point, victim in zip(points * 3, itertools.cycle(VICTIMS), strict=False)
    ][:60]
    with MisbehavingServer(dim=768) as provider:
        monkeypatch.setenv("TRECHO_EMBEDDING_URL", provider.url)
        monkeypatch.setenv("TRECHO_EMBEDDING_KEY", "chave")
        environment |= {"TRECHO_EMBEDDING_URL": provider.url, "TRECHO_EMBEDDING_KEY": "chave"}
        write(folder, 0)
        finish(trecho, dsn, folder)
        assert what_a_reader_sees(dsn) == ({"geração0"}, DOCUMENTS)
        died = 0
        for number, (event, delay, victim) in enumerate(schedule, 1):
            write(folder, number)
            done = subprocess.run(
                [
                    sys.executable,
                    str(Path(__file__).with_name("crash_driver.py")),
                    dsn,
                    str(folder),
                    event,
                    str(delay),
                    victim,
                    str(server.pid()),
                ],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            died += done.returncode != 0
            back_up(dsn, server)
            where = (number, event, delay, victim, done.stderr[-400:])
            seen = what_a_reader_sees(dsn)
            assert seen in [({f"geração{n}"}, DOCUMENTS) for n in (number - 1, number)], (seen, where)
            paid = {
                bytes(r["text_hash"])
                for r in rows(
                    dsn,
                    "SELECT text_hash FROM trecho.chunks WHERE embedding IS NOT NULL UNION SELECT text_hash FROM trecho.staged_embeddings",
                )
            }
            sent = dict(provider.texts)
            finish(trecho, dsn, folder)
            again = {
                t
                for t, n in provider.texts.items()
                if n > sent.get(t, 0) and hashlib.sha256(t.encode()).digest() in paid
            }
            assert again == set(), where
            assert what_a_reader_sees(dsn) == ({f"geração{number}"}, DOCUMENTS), where
        assert died >= 40, died
    assert rows(dsn, "SELECT count(*) AS n FROM trecho.passes WHERE outcome = 'running'") == [{"n": 0}]
    assert rows(dsn, "SELECT count(*) AS n FROM trecho.chunks AS c WHERE embedding IS NULL") == [{"n": 0}]
    assert rows(dsn, "SELECT count(*) AS n FROM trecho.staged_embeddings") == [{"n": 0}]
