"""What the secret gate holds back, and what it must let through. Every secret here is made up."""

from __future__ import annotations

import pytest

from trecho.secrets_gate import suspicions

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
