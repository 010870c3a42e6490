"""docs/errors.md says all that can be raised; commands of the pages run; links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo
from support import ROOT, as_role

from trecho import privileged
from trecho.cli import INTERRUPTED, READER_LEFT
from trecho.errors import BY_SQLSTATE, ExitCode, TrechoError

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
# Their blocks of SQL are what a reader copies, with any database in the place of acervo.
SQL_PAGES = ["README.md", "docs/install.md", "docs/tuning.md", "docs/sizing.md"]
FIRST_STEPS = ROOT / "docs" / "pt" / "primeiros-passos.md"

ERRORS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
SOURCES = [
    path
    for folder, pattern in (
        ("sql", "**/*.sql"),
        ("migrations", "*.sql"),
        ("plpython", "**/*.py"),
        ("trecho", "**/*.py"),
    )
    for path in sorted((ROOT / folder).glob(pattern))
]


def test_errors__every_sqlstate_that_is_raised_has_a_row_and_a_class():
    raised = {
        code for path in SOURCES for code in re.findall(r"\bTR\d{3}\b", path.read_text(encoding="utf-8"))
    }
    rows = set(re.findall(r"^\| (TR\d{3}) \|", ERRORS, re.M))
    assert raised == rows == set(BY_SQLSTATE)


def test_errors__rows_state_the_exit_code_of_the_class():
    for code, exit_code in re.findall(r"^\| (TR\d{3}) \|.*\| (\d+) \|$", ERRORS, re.M):
        assert BY_SQLSTATE[code].exit_code == int(exit_code), code


def test_errors__every_exit_code_has_a_row():
    table = ERRORS.split("## SQLSTATEs")[0]
    assert {int(n) for n in re.findall(r"^\| (\d+) \|", table, re.M)} == {int(c) for c in ExitCode} | {
        INTERRUPTED,
        READER_LEFT,
    }


def test_errors__every_need_has_a_row():
    source = (ROOT / "trecho" / "privileged.py").read_text(encoding="utf-8")
    source += (ROOT / "trecho" / "runner.py").read_text(encoding="utf-8")
    codes = set(re.findall(r'(?:Need|add)\(\s*"(\w+)"', source))
    codes |= {
        f"{name}_{state}" for name in privileged.EXTENSIONS for state in ("not_available", "not_creatable")
    }
    codes -= {"chunkers_not_made"}
    assert len(codes) > 12
    assert {code for code in codes if f"`{code}`" not in ERRORS} == set()


@pytest.mark.parametrize("cls", sorted(BY_SQLSTATE.values(), key=lambda c: c.__name__))
def test_errors__docstring_is_the_default_message(cls):
    error = cls()
    assert isinstance(error, TrechoError)
    assert str(error) and "\n" not in str(error) and not str(error).endswith(".")


# ---- pages -----------------------------------------------------------------------------------------------------


def blocks(path: Path) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks of a page."""
    return re.findall(r"^ *```(\w+)\n(.*?)^ *```$", path.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("name", SQL_PAGES)
def test_pages__sql_runs_as_it_stands(dsn, name):
    queries = [text for language, text in blocks(ROOT / name) if language == "sql"]
    assert queries
    database = conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, autocommit=True) as conn:
        for text in queries:
            conn.execute(text.replace("DATABASE acervo", f'DATABASE "{database}"').encode())


@pytest.fixture
def shell(tmp_path):
    """Run a block of a page by a shell, in a folder of its own, with `trecho` on the path."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "trecho"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trecho "$@"\n')
    script.chmod(0o755)
    (tmp_path / "casa").mkdir()

    def run(text: str, dsn: str, program: str = "bash") -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'plpython'}",
            "TRECHO_DSN": dsn,
        }
        return subprocess.run(
            [shutil.which(program) or program, "-euc", text],
            cwd=tmp_path / "casa",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_roles__sql_of_the_page_separates_readers_as_it_says(dsn, make_role):
    names = {name: make_role() for name in ("app_busca", "app_cadastro", "ana")}
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT trecho.put_document('docs', 'escala', 'a.md', project => 'plataforma')")
        conn.execute("SELECT trecho.put_document('docs', 'escala', 'a.md', project => 'pessoal')")
        for language, text in blocks(ROOT / "docs" / "roles.md"):
            if language == "sql":
                made = re.sub(r"\b(app_busca|app_cadastro|ana)\b", lambda found: names[found[1]], text)
                conn.execute(made.encode())
    search = "SELECT * FROM trecho.search('escala', mode => 'lexical', project => %s)"
    with psycopg.connect(as_role(dsn, names["app_busca"]), autocommit=True) as conn:
        assert conn.execute(search, ("plataforma",)).rowcount == 1
        for refused in (search.replace("%s", "'pessoal'"), "SELECT trecho.put_document('docs', 'x', 'x.md')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(refused.encode())
    with psycopg.connect(as_role(dsn, names["app_cadastro"]), autocommit=True) as conn:
        conn.execute("SELECT trecho.put_document('docs', 'x', 'x.md', project => 'pessoal')")


def test_first_steps_in_portuguese__run_from_top_to_bottom(dsn, shell):
    output = ""
    for language, text in blocks(FIRST_STEPS):
        if language == "bash":
            done = shell(text, dsn)
            assert done.returncode == 0, (text, done.stdout, done.stderr)
            output += done.stdout
        elif language == "sql":
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(text.encode())
        elif language == "text":  # what the page says that the command before it answers
            figures_and_marks = r"\*\*|score [\d.]+"
            assert re.sub(figures_and_marks, "", text).strip() in re.sub(figures_and_marks, "", output)
    assert "manual/backup.md" in output and "decisoes/0001-pgbouncer.md" in output


@pytest.mark.slow
def test_script_of_a_deploy__stops_for_the_operator_and_goes_on_after(empty_dsn, make_role, shell):
    (text,) = (text for language, text in blocks(ROOT / "docs" / "deploy.md") if language == "sh")
    role = make_role()
    dsn = as_role(empty_dsn, role)
    database = conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(f'GRANT CREATE ON DATABASE "{database}" TO "{role}"')
        stopped = shell(text + "\ntrue", dsn, "sh")
        assert stopped.returncode == 3, stopped.stderr
        script = shell("cat dba.sql", dsn).stdout
        with conn.transaction():
            conn.execute(re.sub(r"^(BEGIN|COMMIT);$", "", script, flags=re.M).encode())
        for _ in range(2):
            done = shell(text, dsn, "sh")
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages__links_lead_to_files_that_are_there(page):
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target


def test_pages__every_page_is_in_the_index_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT).as_posix()
        assert "decisions/" in name or f"({name})" in readme, name
    assert "docs/decisions" in readme


def test_changelog__has_the_version_of_the_package():
    from trecho import __version__

    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {__version__}" in changelog
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
