"""What the secret gate holds back, and what it must let through. Every secret here is made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from handbook import write_handbook

from trecho import secrets_gate
from trecho.errors import ExitCode
from trecho.secrets_gate import GateBroken, batches_per_scan, screen, screen_once, suspicions

HELD = {
    "yaml": "banco:\n  password: hunter2x\n",
    "yaml in Portuguese": "senha: S3nh4@Forte!2024",
    "a weak word as password": "  senha: supersecreta",
    "environment": "export PGPASSWORD=s3nh4Muito psql",
    "cloud key id": "aws_access_key_id = AKIAIOSFODNN7EXAMPL2",
    "cloud key": "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIE",
    "inside of a private key": "MIIEpAIBAAKCAQEA3Tz2mr7SZiAMfQyuvBjM9Oi4ovzEHMvXqBjM9Oi4ovzEHMvX\n" * 2,
    "token": "token: ghp_1234567890abcdefghijklmnopqrstuvwxyz",
    "dsn": "postgresql://app:Sup3rS3nha@db:5432/x",
    "jwt": 'let k = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"',
    "sql": "CREATE ROLE a PASSWORD 'k9#mQ2vL'",
    "code": 'password = "tr0ub4dor"',
    "header": "Authorization: Bearer abcdef1234567890abcdef",
    "credential": "credential: Zx81kQ7pLm42vB9s",
    "json": '"api_key": "9f86d081884c7d659a2feaa0c55ad015"',
}
LET_THROUGH = {
    "prose": "A senha deve ser forte e a chave fica no cofre.",
    "type": "password: string",
    "variable": "  password: ${DB_PASSWORD}",
    "call": "let token = parser.next_token();",
    "name of a secret": "secretName: app-tls",
    "placeholder in a dsn": "postgresql://postgres:senha@localhost/db",
    "placeholder": "password: <sua senha>",
    "number": "max_tokens: 4096",
    "remark": "- senha: obrigatória",
    "label": '"password": "Digite sua senha"',
    "parameter": "fn f(password: &str) -> bool {",
    "reference": "const password = req.body.password;",
    "commit": "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "path": "key_file: /etc/ssl/private/server.key",
    "nothing": "",
}


@pytest.mark.parametrize("name", sorted(HELD))
def test_a_secret_is_held_and_its_kind_told_without_it(name: str) -> None:
    found = suspicions(f"Um parágrafo antes.\n{HELD[name]}\nUm depois.")
    assert found
    secret = max(HELD[name].split(), key=len)
    assert not any(secret in kind for kind in found)


@pytest.mark.parametrize("name", sorted(LET_THROUGH))
def test_what_is_plainly_no_secret_passes(name: str) -> None:
    assert suspicions(f"Um parágrafo antes.\n{LET_THROUGH[name]}\nUm depois.") == []


# Stands for gitleaks: the same arguments, the same report. It finds RARO, and says nothing of other texts.
STAND_IN = """#!{python}
import json, os, sys
from collections.abc import Sequence
from pathlib import Path
arguments = sys.argv[1:]
assert arguments[0] == "dir" and "--redact" in arguments and "--ignore-gitleaks-allow" in arguments
assert arguments[arguments.index("--exit-code") + 1] == "0"
mode = {mode!r}
if mode == "fails":
    print("unknown flag", file=sys.stderr)
    sys.exit(1)
found = [
    {{"RuleID": "raro", "File": str(path), "StartLine": 1, "Secret": "REDACTED"}}
    for path in Path(arguments[-1]).iterdir()
    if "RARO" in path.read_text(encoding="utf-8")
]
report = Path(arguments[arguments.index("--report-path") + 1])
if mode == "garbage":
    report.write_text("[{{")
elif mode == "strange":
    report.write_text(json.dumps([{{"RuleID": "raro", "File": "elsewhere"}}]))
elif mode != "silent":
    report.write_text(json.dumps(found or None))
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str = "") -> None:
    program = folder / "gitleaks"
    program.write_text(STAND_IN.format(python=sys.executable, mode=mode))
    program.chmod(0o755)
    monkeypatch.setenv("TRECHO_GITLEAKS", str(program))


def test_gitleaks_is_asked_too_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch)
    texts = ["nada", "um RARO segredo", "senha: S3nh4@Forte!2024", "senha: S3nh4@Forte!2024 RARO", ""]
    assert screen(texts) == [
        [],
        ["gitleaks raro"],
        ["Secret Keyword"],
        ["Secret Keyword", "gitleaks raro"],
        [],
    ]
    assert screen(["nada"]) == [[]]  # a report of null
    assert screen([]) == []
    assert batches_per_scan() > 1


def test_gitleaks_on_the_path_is_found_and_can_be_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch)
    monkeypatch.delenv("TRECHO_GITLEAKS")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert screen(["um RARO segredo"]) == [["gitleaks raro"]]
    monkeypatch.setenv("TRECHO_GITLEAKS", "off")
    assert screen(["um RARO segredo"]) == [[]]
    assert batches_per_scan() == 1


@pytest.mark.parametrize("mode", ["fails", "garbage", "silent", "strange"])
def test_a_gitleaks_that_does_not_do_its_work_lets_nothing_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    stand_in(tmp_path, monkeypatch, mode)
    with pytest.raises(GateBroken, match="nothing was sent") as caught:
        screen(["nada"])
    assert caught.value.exit_code == ExitCode.REFUSED
    assert "TRECHO_GITLEAKS=off" in caught.value.hint


def test_a_gitleaks_that_is_named_and_not_there_lets_nothing_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRECHO_GITLEAKS", "/nowhere/gitleaks")
    with pytest.raises(GateBroken, match="/nowhere/gitleaks"):
        screen(["nada"])


def test_prose_that_speaks_of_secrets_reaches_no_detector(tmp_path: Path) -> None:
    write_handbook(tmp_path, 50, 11)
    texts = [file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.md")]
    assert sum("chave" in text for text in texts) > 40
    code = (
        "import sys, json; from trecho.secrets_gate import screen\n"
        "assert not any(screen(json.load(sys.stdin)))\n"
        "assert 'detect_secrets' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(texts),
        env=os.environ | {"TRECHO_GITLEAKS": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_word_that_is_looked_for_holds_a_root() -> None:
    assert all(any(root in word for root in secrets_gate._ROOTS) for word in secrets_gate._WORDS)


def test_what_was_found_harmless_is_not_scanned_again_and_what_was_not_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scanned: list[str] = []

    def counting(texts: Sequence[str]) -> list[list[str]]:
        scanned.extend(texts)
        return screen(texts)

    monkeypatch.setattr(secrets_gate, "_harmless", set())
    monkeypatch.setattr(secrets_gate, "screen", counting)
    secret = "senha: S3nh4@Forte!2024"
    for turn in ["um", "dois"]:
        assert screen_once(["prosa", secret, turn, "prosa"]) == [[], ["Secret Keyword"], [], []]
    assert scanned == ["prosa", secret, "um", "prosa", secret, "dois"]
    monkeypatch.setattr(secrets_gate, "_REMEMBERED", 3)  # no more memory than that
    assert screen_once(["novo"]) == screen_once(["novo"]) == [[]]
    assert scanned[-2:] == ["novo", "novo"]
    assert len(secrets_gate._harmless) == 3
