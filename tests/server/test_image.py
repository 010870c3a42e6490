"""Dockerfile.postgres, built and run for real."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import conninfo
from servers import ROOT, PrivateServer, value
from testcontainers.core.container import DockerContainer
from testcontainers.core.image import DockerImage
from testcontainers.core.wait_strategies import HealthcheckWaitStrategy

PORT = 27431
"""Of the container on the host's network: below the ephemeral ports, above those that server.sh chooses."""


@pytest.fixture(scope="session")
def image(base_image: str) -> Iterator[str]:
    """The image of this checkout, with the wheels as `server.sh wheels` leaves them."""
    PrivateServer("dev").run("wheels")
    with DockerImage(
        path=ROOT,
        dockerfile_path="Dockerfile.postgres",
        tag="trecho-postgres:test",
        clean_up=False,
        network_mode="host",
    ) as built:
        yield str(built.tag)


@pytest.fixture
def container(image: str) -> Iterator[DockerContainer]:
    """The image running, healthy."""
    running = (
        DockerContainer(image)
        .with_env("POSTGRES_PASSWORD", "abre-te sésamo")
        .with_env("POSTGRES_DB", 'acervo "novo"')
        .with_env("PGPORT", str(PORT))
        .with_kwargs(network_mode="host", shm_size="256m")
        .waiting_for(HealthcheckWaitStrategy().with_startup_timeout(120))
    )
    with running:
        yield running


def dsn_of(_: DockerContainer) -> str:
    return conninfo.make_conninfo(
        host="127.0.0.1", port=PORT, user="postgres", password="abre-te sésamo", dbname='acervo "novo"'
    )


@pytest.mark.slow
def test_image__becomes_healthy_and_can_do_what_the_product_needs(container: DockerContainer) -> None:
    with psycopg.connect(dsn_of(container), autocommit=True) as conn:
        assert conn.info.server_version >= 170000
        for extension in ("vector", "plpython3u", "unaccent"):
            conn.execute(f"CREATE EXTENSION {extension}".encode())
        assert conn.execute("SELECT lower('AÇÃO'), current_setting('server_encoding')").fetchone() == (
            "ação",
            "UTF8",
        )
        conn.execute(
            "CREATE FUNCTION root_kind(source text) RETURNS text LANGUAGE plpython3u AS $$\n"
            "import tree_sitter, tree_sitter_rust\n"
            "parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))\n"
            "return parser.parse(source.encode()).root_node.type\n$$"
        )
        assert conn.execute("SELECT root_kind('fn main() {}')").fetchone() == ("source_file",)
        # The container has 256 MB of /dev/shm; an index build by several workers must fit.
        assert conn.execute("SHOW maintenance_work_mem").fetchone() == ("192MB",)


@pytest.mark.slow
def test_image__refuses_a_wrong_password_and_keeps_data_over_a_restart(container: DockerContainer) -> None:
    dsn = dsn_of(container)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(conninfo.make_conninfo(dsn, password="wrong"))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 42 AS n")
    wrapped = container.get_wrapped_container()
    wrapped.restart(timeout=60)
    HealthcheckWaitStrategy().with_startup_timeout(120).wait_until_ready(container)
    assert value(dsn, "SELECT n FROM kept") == 42
    logs = wrapped.logs().decode()
    assert "database system was not properly shut down" not in logs


@pytest.mark.slow
def test_image__without_a_password_does_not_start(image: str) -> None:
    ran = subprocess.run(
        ["docker", "run", "--rm", "--network", "host", image], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "hint: Set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE." in ran.stderr


@pytest.mark.slow
def test_server_docker__does_what_the_other_kinds_do(
    image: str, make_server: Callable[..., PrivateServer]
) -> None:
    server = make_server(SERVER="docker", TRECHO_DOCKER_NETWORK="host")
    dsn = server.start()
    assert server.start() == dsn
    assert value(dsn, "SELECT current_database()") == "trecho"
    assert "dump complete" in server.run("exec", "pg_dump", "--schema-only", "--dbname", dsn).stdout
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE kept ()")
    server.run("stop")
    assert server.run("dsn", check=False).returncode == 1
    assert server.start() == dsn
    assert value(dsn, "SELECT to_regclass('kept') IS NOT NULL") is True
