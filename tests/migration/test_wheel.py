"""An installed wheel carries everything that `trecho migrate` applies."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import psycopg
import pytest
from support import ROOT


@pytest.mark.slow
def test_wheel__installed_alone_migrates_a_database(empty_dsn, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    names = {str(path.relative_to(site)) for path in site.rglob("*")}
    for folder in ("migrations", "sql", "sql/privileged"):
        for path in (ROOT / folder).glob("*.sql"):
            assert f"trecho/_data/{folder}/{path.name}" in names
    for path in (ROOT / "plpython/trecho_chunkers").glob("*.py"):
        assert f"trecho_chunkers/{path.name}" in names
    code = (
        "import sys, trecho; from pathlib import Path; from trecho import cli, resources\n"
        "assert Path(trecho.__file__).parent.parent == Path(sys.argv[1])\n"
        "assert resources.current().root == Path(sys.argv[1]) / 'trecho' / '_data'\n"
        "sys.exit(cli.main(['migrate', '--dsn', sys.argv[2]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(site), empty_dsn],
        cwd=tmp_path,  # away from the checkout
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("SELECT count(*) FROM trecho.chunk('a.md', '# Um')").fetchone() == (1,)


def test_checkout__is_used_from_any_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "from trecho import resources; print(resources.current().root)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == ROOT
