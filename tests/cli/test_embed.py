"""`trecho embed` against a real database and a server that misbehaves: nothing lost, nothing wrong stored, nothing leaked."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from embedding_rows import Connection, add_texts, add_version, counts, place_all, value, vector
from misbehaving_server import MisbehavingServer, vector_of
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from trecho import secrets_gate
from trecho.db import connect
from trecho.embed import EmbedReport, embed_pending
from trecho.errors import ExitCode
from trecho.providers import ModelMoved, ProviderDown
from trecho.providers.base import PROBE_TEXT

ROOT = Path(__file__).resolve().parent.parent.parent
RECIPE = {
    "provider": "openai-compatible",
    "model_id": "m",
    "dim": 768,
    "query_prefix": "",
    "passage_prefix": "",
}
TEXTS = [f"passagem número {n} sobre prazos" for n in range(40)]


@pytest.fixture
def provider_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MisbehavingServer]:
    for name in ("TRECHO_EMBEDDING_KEY", "TRECHO_EMBEDDING_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    with MisbehavingServer() as running:
        monkeypatch.setenv("TRECHO_EMBEDDING_URL", running.url)
        monkeypatch.setenv("TRECHO_EMBEDDING_TIMEOUT", "1")
        yield running


@pytest.fixture
def index(dsn: str, provider_server: MisbehavingServer) -> Iterator[Connection]:
    """A connection in autocommit mode to an index whose provider is the server."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        conn.execute("SELECT trecho.configure(%s)", (Jsonb(RECIPE),))
        value(conn, "SELECT trecho._ensure_version()")
        yield conn


def unfailed(conn: Connection) -> None:
    """Every text has its own vector on its chunk, and nothing is left over."""
    rows = conn.execute("SELECT content, embedding::text AS embedding FROM trecho.chunks").fetchall()
    for row in rows:
        assert row["embedding"] is not None
        assert json.loads(row["embedding"]) == pytest.approx(vector_of(row["content"]), abs=1e-6)
    assert counts(conn) == {}
    assert value(conn, "SELECT count(*) FROM trecho.embedding_attempts") == 0


def test_embed__gives_every_text_its_vector_and_sends_each_once(
    index: Connection, dsn: str, provider_server: MisbehavingServer
) -> None:
    add_texts(index, TEXTS)
    told: list[tuple[int, int]] = []
    report = embed_pending(dsn, on_progress=lambda done, total: told.append((done, total)))
    unfailed(index)
    assert (report.texts, report.failed, report.quarantined, report.pending) == (40, 0, 0, 0)
    assert report.provider_calls == len(provider_server.requests)
    assert provider_server.texts == dict.fromkeys([*TEXTS, PROBE_TEXT], 1)
    assert told[-1] == (40, 40)


def test_embed__nothing_pending_makes_no_request(
    index: Connection, dsn: str, provider_server: MisbehavingServer
) -> None:
    add_texts(index, TEXTS[:3])
    embed_pending(dsn)
    sent = len(provider_server.requests)
    assert embed_pending(dsn) == EmbedReport(seconds=pytest.approx(0, abs=60))
    assert len(provider_server.requests) == sent


@pytest.mark.parametrize(("texts", "workers"), [(1, 1), (16, 1), (17, 2), (40, 2)])
def test_embed__opens_no_more_connections_than_there_is_work_for(
    index: Connection, dsn: str, texts: int, workers: int
) -> None:
    add_texts(index, TEXTS[:texts])
    opened: list[Connection] = []

    def factory() -> Connection:
        opened.append(connect(dsn, application_name="trecho embed", autocommit=True))
        return opened[-1]

    assert embed_pending(factory).texts == texts
    assert len(opened) == 1 + workers


def test_embed__faults_now_and_then_store_nothing_wrong_and_lose_nothing(
    index: Connection, dsn: str, provider_server: MisbehavingServer
) -> None:
    texts = [f"texto {n}" for n in range(500)]
    add_texts(index, texts)
    faults = [
        "429",
        "500",
        "cut",
        "cut-early",
        "truncated",
        "count",
        "shuffled",
        "unnumbered",
        "nan",
        "zeros",
        "size",
        "text",
        "not-json",
        "429-after",
        "hang",
        "drip",
    ]
    provider_server.faults = [""] + [word for fault in faults for word in (fault, "")]
    report = embed_pending(dsn, workers=1)  # one request after the other: no two faults in a row
    unfailed(index)
    assert report.texts == 500
    assert not provider_server.faults
    assert (
        max(provider_server.answered[text] for text in texts) == 1
    )  # what was answered well is not sent again


@pytest.mark.parametrize(("fault", "attempts"), [("refuse", 5), ("nan", 1), ("500", 1)])
def test_embed__one_bad_text_is_recorded_with_its_reason_and_the_others_embedded(
    index: Connection, dsn: str, provider_server: MisbehavingServer, fault: str, attempts: int
) -> None:
    hashes = add_texts(index, [*TEXTS, "veneno"])
    provider_server.poison = lambda text: fault if text == "veneno" else None
    stop = threading.Event()
    if attempts < 5:  # it would be tried four times more, with pauses of 15 s in all
        index.execute(
            "INSERT INTO trecho.embedding_attempts (index_version, text_hash, attempt_count) VALUES (1, %s, 4)",
            (hashes["veneno"],),
        )
    report = embed_pending(dsn, stop=stop)
    assert (report.texts, report.failed, report.pending) == (40, 1, 0)
    assert report.exit_code == ExitCode.SOME_FAILED
    row = index.execute(
        "SELECT text_hash, attempt_count, last_error, leased_by FROM trecho.embedding_attempts"
    ).fetchall()
    assert [(r["text_hash"], r["attempt_count"], r["leased_by"]) for r in row] == [
        (hashes["veneno"], 5, None)
    ]
    assert row[0]["last_error"].startswith(
        {"refuse": "HTTP 400", "nan": "its vector holds NaN", "500": "HTTP 500"}[fault]
    )
    index.execute("DELETE FROM trecho.embedding_attempts")
    index.execute("DELETE FROM trecho.chunks WHERE content = 'veneno'")
    unfailed(index)


def test_embed__a_text_that_failed_before_goes_alone(
    index: Connection, dsn: str, provider_server: MisbehavingServer
) -> None:
    hashes = add_texts(index, TEXTS[:5])
    index.execute(
        "INSERT INTO trecho.embedding_attempts (index_version, text_hash, attempt_count, last_error) VALUES (1, %s, 2, 'x')",
        (hashes[TEXTS[2]],),
    )
    embed_pending(dsn)
    unfailed(index)
    assert [TEXTS[2]] in [request["input"] for request in provider_server.requests]


def test_embed__a_provider_that_is_down_is_one_problem_and_no_failed_text(
    index: Connection,
    dsn: str,
    provider_server: MisbehavingServer,
    trecho: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_texts(index, TEXTS)
    monkeypatch.setenv("TRECHO_EMBEDDING_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(ProviderDown):
        embed_pending(dsn)
    assert counts(index) == {"pending": 40}
    assert value(index, "SELECT count(*) FROM trecho.embedding_attempts") == 0
    ran = trecho("embed", "--once", "--json", dsn=dsn)
    assert ran.code == ExitCode.NOT_CURRENT
    assert ran.err.count("error:") == 1
    assert json.loads(ran.out)["pending"] == 40


def test_embed__a_provider_that_goes_down_midway_keeps_what_is_paid(
    index: Connection, dsn: str, provider_server: MisbehavingServer
) -> None:
    add_texts(index, [f"texto {n}" for n in range(100)])
    provider_server.faults = ["", "", ""]  # the probe and two batches are answered
    provider_server.always = "cut-early"
    report = embed_pending(dsn, raise_problems=False, workers=1)
    assert 0 < report.texts < 100
    assert isinstance(report.problems[0], ProviderDown)
    assert report.exit_code == ExitCode.NOT_CURRENT
    assert counts(index) == {"pending": 100 - report.texts}
    assert value(index, "SELECT count(*) FROM trecho.embedding_attempts") == 0
    provider_server.always = None
    assert embed_pending(dsn).texts == 100 - report.texts
    unfailed(index)
    assert max(provider_server.answered[f"texto {n}"] for n in range(100)) == 1


def test_embed__a_model_that_changed_silently_stops_the_work(
    index: Connection, dsn: str, provider_server: MisbehavingServer, trecho: Callable[..., Any]
) -> None:
    add_texts(index, TEXTS[:5])
    embed_pending(dsn)
    add_texts(index, TEXTS[5:10])
    provider_server.model = "another one behind the same name"
    with pytest.raises(ModelMoved, match="has changed"):
        embed_pending(dsn)
    assert trecho("embed", dsn=dsn).code == ExitCode.REFUSED
    assert counts(index) == {"pending": 5}
    provider_server.model = ""
    embed_pending(dsn)
    unfailed(index)


def test_embed__one_version_whose_provider_is_down_does_not_hold_up_the_other(
    index: Connection, dsn: str, provider_server: MisbehavingServer
) -> None:
    add_texts(index, TEXTS[:5])
    other = add_version(index, provider="openai", dim=384)  # wants a key, and there is none
    add_texts(index, TEXTS[:5], version=other)
    report = embed_pending(dsn, raise_problems=False)
    assert (report.texts, report.pending) == (5, 5)
    assert [type(problem).__name__ for problem in report.problems] == ["ProviderConfigError"]
    assert counts(index, 1) == {}


SECRETS = {
    "cloud": "A chave da nuvem é AKIAIOSFODNN7EXAMPL2 e fica no cofre.",
    "key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA3Tz2mr7SZiAMfQyuvBjM9Oi4ovzEHMvX\n-----END RSA PRIVATE KEY-----",
    "token": 'let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";',
    "yaml": "banco:\n  usuario: app\n  senha: S3nh4-Muito-Forte\n",
}


def test_embed__no_planted_secret_reaches_the_server(
    index: Connection, dsn: str, provider_server: MisbehavingServer, trecho: Callable[..., Any]
) -> None:
    hashes = add_texts(index, [*TEXTS[:5], *SECRETS.values()])
    report = embed_pending(dsn)
    assert (report.texts, report.quarantined, report.failed) == (5, 4, 0)
    sent = json.dumps(provider_server.requests)
    for piece in ("AKIAIOSFODNN7", "PRIVATE KEY", "ghp_16C7", "S3nh4"):
        assert piece not in sent
    assert value(index, "SELECT count(*) FROM trecho.chunks WHERE quarantined AND embedding IS NULL") == 4

    listed = trecho("embed", "--list-quarantined", dsn=dsn)
    assert len(listed.out.splitlines()) == 4
    assert not any(piece in listed.out for piece in ("AKIAIOSFODNN7", "MIIE", "ghp_", "S3nh4"))
    released = trecho("embed", "--release", hashes[SECRETS["yaml"]].hex(), dsn=dsn)
    assert released.code == 0
    report = embed_pending(dsn)
    assert (report.texts, report.quarantined) == (1, 3)
    assert provider_server.texts[SECRETS["yaml"]] == 1


PLANTED = {
    "guia.md": "# Guia\n\nUm texto sem nada.\n\n## Banco\n\nO serviço lê assim:\n\n```yaml\nbanco:\n  senha: S3nh4-Muito-Forte\n```\n",
    "nuvem.md": "# Nuvem\n\nA chave é AKIAIOSFODNN7EXAMPL2, guardada no cofre.\n",
    "chaves.md": "# Chaves\n\n-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA3Tz2mr7SZiAMfQyuvBjM9Oi4ovzEHMvX\n-----END RSA PRIVATE KEY-----\n",
    "conf/app.yaml": "servico: conta\nbanco:\n  password: hunter2x9\n",
    "src/main.rs": 'fn entrar() -> bool {\n    let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";\n    abrir(token)\n}\n',
    "src/deploy.ts": 'export const chave = {\n  id: "AKIAIOSFODNN7EXAMPL3",\n};\n',
    "limpo.md": "# Limpo\n\nA escala muda às segundas-feiras.\n",
}
PIECES = ("S3nh4-Muito", "AKIAIOSFODNN7", "MIIEpAIBAAKCAQEA", "hunter2x9", "ghp_16C7")


def commit(folder: Path, files: dict[str, str]) -> None:
    """Write files into a repository and commit them."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=Teste", "-c", "user.email=teste@exemplo.org"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "mudança"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)


def found_by_words(conn: Connection, query: str) -> int:
    count: int = value(conn, "SELECT count(*) FROM trecho.search(%s, mode => 'lexical')", query)
    return count


def test_sync__planted_secrets_are_hidden_from_the_publication_on_and_never_leave(
    index: Connection,
    dsn: str,
    provider_server: MisbehavingServer,
    trecho: Callable[..., Any],
    tmp_path: Path,
) -> None:
    commit(tmp_path, PLANTED)
    # No worker runs, and no vector is asked for: they are hidden all the same.
    ran = trecho("sync", "--git", "--repo", str(tmp_path), "--no-embed", "--json", dsn=dsn)
    assert ran.code == 0, ran.err
    assert sum(outcome["quarantined"] for outcome in json.loads(ran.out)) == 6
    assert "seem to hold a secret" in ran.err
    assert not provider_server.requests
    assert not any(piece in ran.out + ran.err for piece in PIECES)
    assert found_by_words(index, "escala segundas") == 1
    for query in ("senha banco", "nuvem cofre", "entrar abrir", "chave"):
        rows = index.execute("SELECT content FROM trecho.search(%s, mode => 'lexical')", (query,)).fetchall()
        assert not any(piece in row["content"] for row in rows for piece in PIECES)
    index.execute("SET trecho.hide_quarantined = off")
    assert found_by_words(index, "nuvem cofre") >= 1

    report = embed_pending(dsn)
    assert (report.failed, report.quarantined, report.pending) == (0, 6, 0)
    assert report.texts > 0
    sent = json.dumps(provider_server.requests, ensure_ascii=False)
    assert not any(piece in sent for piece in PIECES)


@pytest.mark.parametrize("refusal", [None, b'{"error": "no \\u0000 and \\ud800"}'])
def test_sync__a_text_that_the_provider_refuses_is_told_once_and_holds_nothing_up(
    dsn: str,
    provider_server: MisbehavingServer,
    trecho: Callable[..., Any],
    tmp_path: Path,
    refusal: bytes | None,
) -> None:
    folder = tmp_path / "docs"
    commit(
        folder, {f"{n}.md": f"# Página {n}\n\nTexto {n}.\n" for n in range(5)} | {"v.md": "# V\n\nveneno\n"}
    )
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT trecho.configure(%s)", (Jsonb(RECIPE),))
    provider_server.poison = lambda text: "refuse" if "veneno" in text else None
    provider_server.refusal = refusal
    ran = trecho("sync", str(folder), dsn=dsn)
    assert ran.code == ExitCode.SOME_FAILED, ran.err
    assert "1 texts failed" in ran.err and "6 written" in ran.err
    commit(folder, {"0.md": "# Página 0\n\nOutro texto.\n"})
    ran = trecho("sync", str(folder), dsn=dsn)
    assert ran.code == ExitCode.DONE and "failed" not in ran.err


def test_sync__waits_for_its_own_texts_alone_and_leaves_those_of_other_projects(
    index: Connection,
    dsn: str,
    provider_server: MisbehavingServer,
    trecho: Callable[..., Any],
    tmp_path: Path,
) -> None:
    for project in ("a", "b"):
        (tmp_path / project).mkdir()
        for number in range(3):
            (tmp_path / project / f"{number}.md").write_text(
                f"# {project}{number}\n\nTexto {number} de {project}.\n"
            )
        assert trecho("sync", str(tmp_path / project), "--project", project, "--no-embed", dsn=dsn).code == 0
    (tmp_path / "b" / "nova.md").write_text("# Nova\n\nTexto novo de b.\n")
    ran = trecho("sync", str(tmp_path / "b"), "--project", "b", "--json", dsn=dsn)
    assert (ran.code, json.loads(ran.out)[0]["embedded"]) == (0, 4)
    assert not any(" de a." in text for text in provider_server.texts)
    # What a pass is about to place goes first, so that it is published before the rest is paid for.
    (tmp_path / "a" / "nova.md").write_text("# Nova\n\nTexto novo de a.\n")
    provider_server.poison = lambda text: "500" if "novo" not in text and " de a." in text else None
    ran = trecho("sync", str(tmp_path / "a"), "--project", "a", "--json", dsn=dsn)
    outcome = json.loads(ran.out)[0]
    assert (outcome["state"], outcome["counts"]["documents_written"]) == ("published", 1)
    found = index.execute(
        "SELECT title FROM trecho.search('novo', project => 'a', mode => 'lexical')"
    ).fetchall()
    assert [row["title"] for row in found] == ["Nova"]


def test_embed__a_prefix_hides_no_secret(
    dsn: str, provider_server: MisbehavingServer, trecho: Callable[..., Any], tmp_path: Path
) -> None:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        conn.execute("SELECT trecho.configure(%s)", (Jsonb(RECIPE | {"passage_prefix": "senha_hint: "}),))
        value(conn, "SELECT trecho._ensure_version()")
        conn.execute("SELECT trecho.put_document('docs', 'senha: hunter22x9', 'a.md')")
    (tmp_path / "b.md").write_text("senha: hunter22x8\n")
    ran = trecho("sync", str(tmp_path), "--json", dsn=dsn)
    assert json.loads(ran.out)[0]["quarantined"] == 1
    assert not any("hunter" in text for text in provider_server.texts)


def test_sync__scans_what_has_changed_and_nothing_else(
    index: Connection,
    dsn: str,
    trecho: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scanned: list[str] = []
    real = secrets_gate.screen

    def counting(texts: Sequence[str]) -> list[list[str]]:
        scanned.extend(texts)
        return real(texts)

    monkeypatch.setattr(secrets_gate, "screen", counting)
    for number in range(20):
        sections = "".join(f"## Parte {part}\n\nTexto {number} {part}.\n\n" for part in range(5))
        (tmp_path / f"doc{number}.md").write_text(f"# Documento {number}\n\n{sections}")
    assert trecho("sync", str(tmp_path), dsn=dsn).code == 0
    assert len(scanned) == 100
    scanned.clear()
    assert trecho("sync", str(tmp_path), dsn=dsn).code == 0
    assert scanned == []
    text = (tmp_path / "doc7.md").read_text()
    (tmp_path / "doc7.md").write_text(text.replace("Texto 7 3.", "senha: S3nh4-Muito-Forte"))
    ran = trecho("sync", str(tmp_path), "--json", dsn=dsn)
    assert (ran.code, len(scanned)) == (0, 1)
    assert json.loads(ran.out)[0]["quarantined"] == 1


def test_sync_and_embed__a_gate_that_is_broken_lets_nothing_out(
    index: Connection,
    dsn: str,
    provider_server: MisbehavingServer,
    trecho: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRECHO_GITLEAKS", "/nowhere/gitleaks")
    (tmp_path / "a.md").write_text("# A\n\nUm texto da pasta.\n")
    ran = trecho("sync", str(tmp_path), dsn=dsn)
    assert ran.code == ExitCode.REFUSED
    assert "TRECHO_GITLEAKS" in ran.err
    assert value(index, "SELECT count(*) FROM trecho.documents") == 0
    add_texts(index, TEXTS[:3])
    assert trecho("embed", dsn=dsn).code == ExitCode.REFUSED
    assert not set(provider_server.texts) - {PROBE_TEXT}
    assert value(index, "SELECT count(*) FROM trecho.embedding_attempts") == 0
    monkeypatch.setenv("TRECHO_GITLEAKS", "off")
    assert trecho("embed", dsn=dsn).code == 0


@pytest.mark.parametrize(
    "arguments", [["embed"], ["embed", "--watch"], ["embed", "--list-quarantined"], ["version", "build"]]
)
def test_embed__a_database_without_the_schema_says_what_to_do(
    empty_dsn: str, trecho: Callable[..., Any], arguments: list[str]
) -> None:
    ran = trecho(*arguments, dsn=empty_dsn)
    assert ran.code == ExitCode.NOT_USABLE
    assert "has no schema trecho" in ran.err
    assert "hint: Run trecho migrate" in ran.err


def test_embed__the_local_model_sees_everything_because_nothing_leaves(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        add_texts(conn, [SECRETS["yaml"], "O prazo é de dez dias."])
        report = embed_pending(dsn)
        assert (report.texts, report.quarantined) == (2, 0)
        norms = conn.execute(
            "SELECT vector_norm(embedding) AS n, vector_norm(subvector(embedding, 385, 384)) AS rest FROM trecho.chunks"
        ).fetchall()
        assert [(row["n"], row["rest"]) for row in norms] == [
            (pytest.approx(1, abs=1e-3), 0),
            (pytest.approx(1, abs=1e-3), 0),
        ]


def test_embed__retry_failed_tries_again_what_was_given_up(
    index: Connection, dsn: str, provider_server: MisbehavingServer, trecho: Callable[..., Any]
) -> None:
    add_texts(index, ["veneno"])
    provider_server.poison = lambda text: "refuse" if text == "veneno" else None
    ran = trecho("embed", "--json", dsn=dsn)
    assert ran.code == ExitCode.SOME_FAILED
    assert json.loads(ran.out)["failed"] == 1
    provider_server.poison = lambda text: None
    assert trecho("embed", dsn=dsn).code == ExitCode.SOME_FAILED
    ran = trecho("embed", "--retry-failed", dsn=dsn)
    assert (ran.code, ran.out.split(" in ")[0]) == (ExitCode.DONE, "1 texts embedded")
    unfailed(index)


@pytest.mark.parametrize(
    "arguments", [["--workers", "0"], ["--workers", "65"], ["--release", "xyz"], ["--once", "--watch"]]
)
def test_embed__bad_usage_exits_2(dsn: str, trecho: Callable[..., Any], arguments: list[str]) -> None:
    ran = trecho("embed", *arguments, dsn=dsn)
    assert ran.code == ExitCode.USAGE
    assert "error:" in ran.err


def test_embed__an_unknown_version_is_told(dsn: str, trecho: Callable[..., Any]) -> None:
    ran = trecho("embed", "--index-version", "99", "--json", dsn=dsn)
    assert ran.code == ExitCode.ERROR
    assert json.loads(ran.out)["sqlstate"] == "TR001"


def process(dsn: str, *arguments: str) -> subprocess.Popen[str]:
    """A worker in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plpython")])}
    return subprocess.Popen(
        [sys.executable, "-m", "trecho", "embed", "--dsn", dsn, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def await_condition(condition: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.02)


def test_watch__embeds_what_appears_and_ends_cleanly_at_sigterm(
    index: Connection, dsn: str, provider_server: MisbehavingServer
) -> None:
    watcher = process(dsn, "--watch")
    try:
        await_condition(
            lambda: (
                value(
                    index,
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%%' OR application_name = 'trecho embed watch'",
                )
                > 0
            )
        )
        index.execute("SELECT trecho.put_document('docs', 'Um texto que aparece.', 'a.md')")
        await_condition(
            lambda: value(index, "SELECT count(*) FROM trecho.chunks WHERE embedding IS NOT NULL") == 1
        )
        watcher.send_signal(signal.SIGTERM)
        out, err = watcher.communicate(timeout=60)
        # On a slow machine a line of progress comes between.
        assert (watcher.returncode, "error" in err, "warning" in err) == (0, False, False)
        assert out.startswith("1 texts embedded")
    finally:
        watcher.kill()
        watcher.communicate()


def test_sigterm__stores_the_batch_under_way_and_gives_the_rest_back(
    index: Connection, dsn: str, provider_server: MisbehavingServer
) -> None:
    add_texts(index, [f"texto {n}" for n in range(200)])
    provider_server.always = "hang"
    provider_server.hang_s = 0.3
    worker = process(dsn, "--workers", "1")
    try:
        await_condition(lambda: len(provider_server.requests) >= 3)
        worker.send_signal(signal.SIGTERM)
        _, err = worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.communicate()
    assert worker.returncode == ExitCode.NOT_CURRENT, err
    found = counts(index)
    assert (
        found["pending"]
        + found.get("staged", 0)
        + value(index, "SELECT count(*) FROM trecho.chunks WHERE embedding IS NOT NULL")
        == 200
    )
    assert value(index, "SELECT count(*) FROM trecho.embedding_attempts") == 0
    provider_server.always = None
    embed_pending(dsn)
    unfailed(index)
    assert max(provider_server.texts[f"texto {n}"] for n in range(200)) == 1


@pytest.mark.slow
def test_kill_9_of_three_of_four_workers_loses_nothing_and_pays_only_what_was_in_flight_twice(
    index: Connection, dsn: str, provider_server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRECHO_EMBEDDING_TIMEOUT", "60")  # a timeout would send texts again
    total = 5000
    index.execute(
        "INSERT INTO trecho.chunks (index_version, project, scope, source_path, kind, content, content_hash, text_hash)"
        " SELECT 1, 'default', 'docs', 'a.md', 'section', 'texto ' || n, sha256(('a' || n)::bytea), sha256(('texto ' || n)::bytea)"
        " FROM generate_series(1, %s) AS n",
        (total,),
    )
    place_all(index)
    provider_server.always = "hang"
    provider_server.hang_s = 0.02
    shares = sorted(random.uniform(0.02, 0.8) for _ in range(3))
    print(f"killed at {shares} of the texts")  # shown when it fails
    workers = [process(dsn, "--workers", "2") for _ in range(4)]
    batch = 32
    try:
        for number, share in enumerate(shares):
            await_condition(lambda share=share: sum(provider_server.texts.values()) > share * total, 300)  # type: ignore[misc]
            workers[number].kill()
        _, err = workers[3].communicate(timeout=500)
        assert workers[3].returncode == ExitCode.DONE, err
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    unfailed(index)
    twice = sum(n - 1 for text, n in provider_server.texts.items() if text.startswith("texto"))
    assert set(provider_server.texts) - {PROBE_TEXT} == {f"texto {n}" for n in range(1, total + 1)}
    assert twice <= 3 * 2 * batch


def test_vector_parameters_arrive_bit_for_bit(
    index: Connection, dsn: str, provider_server: MisbehavingServer
) -> None:
    add_texts(index, ["um texto"])
    embed_pending(dsn)
    stored = value(index, "SELECT embedding::text FROM trecho.chunks")
    wanted = "[" + ",".join(str(n) for n in vector_of("um texto")) + "]"
    assert stored == value(index, "SELECT %s::vector::text", wanted)
    assert stored != value(index, "SELECT %s::vector::text", vector("um texto"))
