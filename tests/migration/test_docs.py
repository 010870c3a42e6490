"""docs/errors.md says all that can be raised."""

from __future__ import annotations

import re

import pytest
from support import ROOT

from trecho import privileged
from trecho.cli import INTERRUPTED, READER_LEFT
from trecho.errors import BY_SQLSTATE, ExitCode, TrechoError

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
