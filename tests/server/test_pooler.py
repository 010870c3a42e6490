"""A real pgbouncer between: in transaction mode a pass is refused with advice, in session mode it may be allowed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import _apt_install
from psycopg import conninfo

CLI = Callable[..., Any]


@contextmanager
def pgbouncer(dsn: str, mode: str, folder: Path) -> Iterator[str]:
    """A pooler in front of the server of dsn. Gives the DSN through it."""
    if not shutil.which("pgbouncer"):
        _apt_install("pgbouncer")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    stated = conninfo.conninfo_to_dict(dsn)
    target = conninfo.make_conninfo(
        **{k: v for k, v in stated.items() if k in ("host", "port", "user", "password") and v}
    )
    folder.chmod(0o755)
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = {target}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n"
        f"pool_mode = {mode}\nunix_socket_dir =\nignore_startup_parameters = extra_float_digits,options\n"
    )
    process = subprocess.Popen(["pgbouncer", "-q", "-u", "nobody", str(folder / "pgbouncer.ini")])
    try:
        through = conninfo.make_conninfo(dsn, host="127.0.0.1", port=port)
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(through).close()
                break
            except psycopg.OperationalError:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.05)
        yield through
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.slow
def test_pass_through_a_transaction_pooler__is_refused_with_advice(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# A\n\ntexto\n")
    (tmp_path / "p").mkdir()
    with pgbouncer(dsn, "transaction", tmp_path / "p") as through:
        ran = trecho("sync", str(folder), "--no-embed", dsn=through)
        assert ran.code != 0 and "pooler" in ran.err and "session mode" in ran.err
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT count(*) FROM trecho.passes").fetchone() == (0,)


@pytest.mark.slow
def test_pass_through_a_session_pooler__works_when_it_is_said(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# A\n\ntexto\n")
    (tmp_path / "p").mkdir()
    monkeypatch.setenv("TRECHO_POOLER", "session")
    with pgbouncer(dsn, "session", tmp_path / "p") as through:
        ran = trecho("sync", str(folder), "--no-embed", dsn=through)
        assert ran.code == 0, ran.err
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT outcome FROM trecho.passes").fetchone() == ("published",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "code", "status", "says"),
    [
        ("transaction", 3, "fail", "one is in between, in transaction mode: locks of a session do not hold"),
        ("session", 0, "ok", "one is in between, and sessions keep their backend"),
    ],
)
def test_preflight__tells_the_mode_of_the_pooler(
    trecho: CLI, dsn: str, tmp_path: Path, mode: str, code: int, status: str, says: str
) -> None:
    with pgbouncer(dsn, mode, tmp_path) as through:
        ran = trecho("preflight", "--json", dsn=through)
    (check,) = (c for c in json.loads(ran.out)["checks"] if c["name"] == "pooler")
    assert (ran.code, check["status"], check["message"]) == (code, status, says)
