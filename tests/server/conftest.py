"""Fixtures of the server's tests: further servers of this checkout, and a Docker daemon."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import PrivateServer


@pytest.fixture
def make_server() -> Iterator[Callable[..., PrivateServer]]:
    """Function that names a further server (environment as keywords); wiped after the test."""
    made: list[PrivateServer] = []

    def make(**env: str) -> PrivateServer:
        made.append(PrivateServer(f"test-{uuid.uuid4().hex[:8]}", env))
        return made[-1]

    yield make
    for server in made:
        server.run("clean")


@pytest.fixture
def private_server(make_server: Callable[..., PrivateServer]) -> PrivateServer:
    """One further server, not started yet."""
    return make_server()


# ---- Docker ------------------------------------------------------------------------------------------------------------

BASE = "debian:trixie-slim"


@pytest.fixture(scope="session")
def docker_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Docker daemon that answers: the one that is there, else a private one for this run, installed when missing.

    The private one has no bridge and touches no firewall rule; containers share the host's network.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "TESTCONTAINERS_RYUK_DISABLED", "true"
        )  # its image comes from a registry; fixtures clean up
        patch.setenv("TRECHO_DOCKER_NETWORK", "host")
        if (
            shutil.which("docker")
            and subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0
        ):
            yield
            return
        if not shutil.which("dockerd"):
            _apt_install("docker.io")
        # Not below pytest's folder: the path of a Unix socket is limited to 107 bytes.
        folder = tmp_path_factory.mktemp("docker")
        run = Path("/run") / f"trecho-docker-{uuid.uuid4().hex[:8]}"
        run.mkdir(mode=0o700)
        socket = f"unix://{run}/docker.sock"
        log = folder / "dockerd.log"
        with log.open("w") as output:
            daemon = subprocess.Popen(
                [
                    "dockerd",
                    "--iptables=false",
                    "--bridge=none",
                    f"--data-root={folder}/data",
                    f"--exec-root={run}/exec",
                    f"--host={socket}",
                    f"--pidfile={run}/pid",
                ],
                stdout=output,
                stderr=output,
            )
        patch.setenv("DOCKER_HOST", socket)
        try:
            _wait_for(
                lambda: (
                    subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0
                ),
                log,
            )
            yield
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=60)
            subprocess.run(
                f"umount {run}/exec/netns/* {folder}/data/*", shell=True, capture_output=True, check=False
            )
            shutil.rmtree(folder / "data", ignore_errors=True)
            shutil.rmtree(run, ignore_errors=True)


@pytest.fixture(scope="session")
def base_image(docker_host: None) -> str:
    """The default base of Dockerfile.postgres, made from Debian's packages where no registry is asked."""
    if subprocess.run(["docker", "image", "inspect", BASE], capture_output=True, check=False).returncode:
        if not shutil.which("mmdebstrap"):
            _apt_install("mmdebstrap")
        made = subprocess.run(
            f"mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io trixie - | docker import - {BASE}",
            shell=True,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
    return BASE


def _apt_install(package: str) -> None:
    install = f"apt-get install -qq -y --no-install-recommends {package}"
    ran = subprocess.run(
        f"{install} || (apt-get update -qq && {install})",
        shell=True,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _wait_for(ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
