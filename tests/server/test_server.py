"""make server: it comes up from any state, keeps what it must, and leaves others alone."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo
from servers import ROOT, PrivateServer, value


def test_without_a_server__dsn_and_exec_fail_and_say_what_to_run(private_server: PrivateServer) -> None:
    for command in (["dsn"], ["exec", "psql"]):
        ran = private_server.run(*command, check=False)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith("error: ") and "hint: Run make server." in ran.stderr


def test_unknown_command_or_kind_or_name_is_refused(make_server: Callable[..., PrivateServer]) -> None:
    assert make_server().run("restart", check=False).returncode == 2
    assert "error: SERVER is 'podman'" in make_server(SERVER="podman").run("start", check=False).stderr
    assert "error: TRECHO_SERVER is '../x'" in PrivateServer("../x").run("start", check=False).stderr


@pytest.mark.slow
def test_start__prints_the_dsn_last_and_starts_nothing_the_second_time(private_server: PrivateServer) -> None:
    dsn = private_server.start()
    pid = private_server.pid()
    again = private_server.run("start")
    assert (again.stdout, private_server.pid()) == (f"{dsn}\n", pid)
    assert private_server.run("dsn").stdout == f"{dsn}\n"
    assert private_server.dsn_file.read_text() == f"{dsn}\n"
    assert value(dsn, "SELECT current_database()") == "trecho"
    assert value(dsn, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is True


@pytest.mark.slow
def test_the_server_can_do_what_the_product_needs(private_server: PrivateServer) -> None:
    with psycopg.connect(private_server.start(), autocommit=True) as conn:
        assert conn.info.server_version >= 170000
        for extension in ("vector", "plpython3u", "unaccent"):
            conn.execute(f"CREATE EXTENSION {extension}".encode())
        assert conn.execute(
            "SELECT lower('AÇÃO É ÓTIMA'), upper('ação'), 'AÇÃO' ILIKE 'ação', to_tsvector('portuguese', 'AÇÕES')"
            " = to_tsvector('portuguese', 'ações'), current_setting('server_encoding')"
        ).fetchone() == ("ação é ótima", "AÇÃO", True, True, "UTF8")
        conn.execute(
            "CREATE FUNCTION grammar_version(name text) RETURNS text LANGUAGE plpython3u AS"
            " 'import importlib.metadata; return importlib.metadata.version(name)'"
        )
        locked = dict(
            re.findall(r"^(tree-sitter[a-z-]*)==(\S+)", lock("requirements-server.lock"), re.MULTILINE)
        )
        found = {
            name: row[0]
            for name in locked
            if (row := conn.execute("SELECT grammar_version(%s)", [name]).fetchone()) is not None
        }
        assert found == locked
        # A parallel build of an index shares this much memory through /dev/shm.
        shared = os.statvfs("/dev/shm")
        work_mem = conn.execute("SELECT pg_size_bytes(current_setting('maintenance_work_mem'))").fetchone()
        assert work_mem is not None and work_mem[0] <= shared.f_blocks * shared.f_frsize


@pytest.mark.slow
def test_killed_server__comes_back_with_what_was_committed(private_server: PrivateServer) -> None:
    dsn = private_server.start()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    os.kill(private_server.pid(), signal.SIGKILL)
    assert private_server.start() == dsn
    assert value(dsn, "SELECT count(*) FROM kept") == 1000


@pytest.mark.slow
def test_pid_file_that_names_a_living_stranger__is_not_believed(
    make_server: Callable[..., PrivateServer],
) -> None:
    stranger, server = make_server(), make_server()
    stranger_dsn, dsn = stranger.start(), server.start()
    pid_file = server.data() / "postmaster.pid"
    left = pid_file.read_text()
    os.kill(server.pid(), signal.SIGKILL)
    # After a reboot the old number may be that of another server under the same user, which PostgreSQL refuses.
    pid_file.write_text(left.replace(left.split("\n", 1)[0], str(stranger.pid()), 1))
    assert server.start() == dsn
    assert value(dsn, "SELECT 1") == 1
    assert value(stranger_dsn, "SELECT 1") == 1


@pytest.mark.slow
def test_cluster_that_was_left_half_made__is_made_again(private_server: PrivateServer) -> None:
    private_server.start()
    private_server.run("stop")
    data = private_server.data()
    data.rename(data.with_name("data.new"))
    assert value(private_server.start(), "SELECT current_database()") == "trecho"
    assert not data.with_name("data.new").exists()


@pytest.mark.slow
def test_port_that_somebody_took_meanwhile__another_is_chosen_and_remembered(
    private_server: PrivateServer,
) -> None:
    dsn = private_server.start()
    private_server.run("stop")
    assert not private_server.dsn_file.exists()
    taken = int(str(conninfo.conninfo_to_dict(dsn)["port"]))
    with socket.create_server(("127.0.0.1", taken)):
        moved = private_server.start()
    assert moved != dsn
    assert value(moved, "SELECT 1") == 1
    private_server.run("stop")
    assert private_server.start() == moved


@pytest.mark.slow
def test_started_at_the_same_moment__servers_do_not_collide(
    make_server: Callable[..., PrivateServer],
) -> None:
    servers = [make_server() for _ in range(3)]
    starts = [*servers, *servers]  # each twice: the second caller waits and finds it running
    found: dict[int, str] = {}

    def start(number: int) -> None:
        found[number] = starts[number].start()

    threads = [threading.Thread(target=start, args=[number]) for number in range(len(starts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(3)] == [found[number + 3] for number in range(3)]
    assert len(set(found.values())) == 3
    assert (
        len({value(dsn, "SELECT system_identifier FROM pg_control_system()") for dsn in found.values()}) == 3
    )


@pytest.mark.slow
def test_clean__wipes_this_server_and_no_other(make_server: Callable[..., PrivateServer]) -> None:
    kept, wiped = make_server(), make_server()
    kept_dsn = kept.start()
    with psycopg.connect(wiped.start()) as conn:
        conn.execute("CREATE TABLE gone ()")
    state = wiped.state
    wiped.run("clean")
    assert not state.exists()
    assert not wiped.dsn_file.exists()
    assert value(kept_dsn, "SELECT 1") == 1
    assert value(wiped.start(), "SELECT to_regclass('gone') IS NULL") is True


@pytest.mark.slow
def test_clean_all__refuses_while_another_server_runs_from_what_it_would_remove(
    make_server: Callable[..., PrivateServer],
) -> None:
    running, leaving = make_server(), make_server()
    dsn = running.start()
    root = running.status()["root"]
    refused = leaving.run("clean-all", check=False)
    assert refused.returncode == 1
    assert "runs from the shared files" in refused.stderr
    assert Path(root).is_dir()
    assert value(dsn, "SELECT 1") == 1


@pytest.mark.slow
def test_nobody_gets_in_without_the_password_or_from_elsewhere(private_server: PrivateServer) -> None:
    dsn = private_server.start()
    for password in ("", "postgres"):
        with pytest.raises(psycopg.OperationalError, match=r"password"):
            psycopg.connect(conninfo.make_conninfo(dsn, password=password))
    assert stat.S_IMODE(private_server.dsn_file.stat().st_mode) == 0o600
    assert value(dsn, "SHOW listen_addresses") == "127.0.0.1"
    assert value(dsn, "SHOW unix_socket_directories") == ""
    # The password stands in no file that others can read, and on no command line.
    password = str(conninfo.conninfo_to_dict(dsn)["password"])
    state = private_server.state
    readable = [path for path in state.iterdir() if path.is_file() and path.stat().st_mode & 0o077]
    assert readable
    assert not [path for path in readable if password in path.read_text()]
    assert password not in Path(f"/proc/{private_server.pid()}/cmdline").read_text()
    assert password.encode() not in Path(f"/proc/{private_server.pid()}/environ").read_bytes()
    # It runs as a user of its own, not as root and not as the owner of the system's clusters.
    assert os.stat(f"/proc/{private_server.pid()}").st_uid == private_server.data().stat().st_uid
    assert private_server.data().owner() == "trecho-server"


@pytest.mark.slow
def test_exec__runs_the_programs_of_the_server_and_keeps_their_exit_code(
    private_server: PrivateServer,
) -> None:
    dsn = private_server.start()
    dump = private_server.run("exec", "pg_dump", "--schema-only", "--dbname", dsn).stdout
    assert "PostgreSQL database dump complete" in dump
    assert private_server.run("exec", "psql", "-qAt", "--dbname", dsn, stdin="SELECT 6 * 7;").stdout == "42\n"
    assert (
        private_server.run("exec", "psql", "--dbname", dsn, "-c", "SELECT 1 / 0", check=False).returncode == 1
    )


@pytest.mark.slow
def test_nothing_stays_mounted(private_server: PrivateServer) -> None:
    before = Path("/proc/self/mounts").read_text()
    private_server.start()
    assert Path("/proc/self/mounts").read_text() == before


@pytest.mark.slow
def test_server_of_another_release__is_restarted_with_this_one(private_server: PrivateServer) -> None:
    dsn = private_server.start()
    pid = private_server.pid()
    (private_server.state / "built").write_text("another release\n")
    assert private_server.start() == dsn
    assert private_server.pid() != pid


# ---- files -------------------------------------------------------------------------------------------------------------


def lock(name: str) -> str:
    return (ROOT / name).read_text()


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-server.lock"])
def test_lock_file__pins_every_package_by_hash_and_names_no_place(name: str) -> None:
    text = lock(name)
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) >= 8
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[^ ;]+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry
    assert not re.search(r"://|\.org|\.com|^-|file:|/", text, re.MULTILINE)


def test_lock_files__have_the_same_grammars_in_client_and_server() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^tree-sitter[a-z-]*==\S+", lock(name), re.MULTILINE))

    assert pins("requirements-server.lock") == pins("requirements.lock")


def test_lock_file__has_all_that_the_project_requires() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    required = {
        name.lower()
        for name in re.findall(r'^    "([A-Za-z0-9-]+)(?:\[\w+\])?[><=]', pyproject, re.MULTILINE)
    }
    assert len(required) > 20
    assert required <= set(re.findall(r"^([a-z0-9-]+)==", lock("requirements.lock"), re.MULTILINE))


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.sh")), ids=lambda path: path.name)
def test_script__parses_and_stops_at_the_first_error(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert re.search(r"^set -Eeuo pipefail$", script.read_text(), re.MULTILINE)
    assert os.access(script, os.X_OK)


def test_make_help__lists_every_target() -> None:
    listed = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert {line.split()[0] for line in listed.splitlines()} == set(phony.group(1).split())
