"""`trecho status`: the page, the document, the exit codes for monitors, the figures for Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from support import Ran

CLI = Callable[..., Ran]
TEXT = "# {0}\n\nAbertura de {0}.\n\n## Um\n\nTexto de {0}.\n"


def execute(dsn: str, query: str, *values: object) -> Any:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(query.encode(), values or None)


def checked(trecho: CLI, dsn: str) -> tuple[int, dict[str, Any]]:
    ran = trecho("status", "--check", "--json", dsn=dsn)
    data = json.loads(ran.out)
    assert data["exit_code"] == ran.code
    return ran.code, data


def test_states__from_nothing_to_current_each_with_its_exit_code(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    assert checked(trecho, dsn)[0] == 5
    (tmp_path / "a.md").write_text(TEXT.format("A"))
    (tmp_path / "b.md").write_text("---\nid: um\n---\n" + TEXT.format("B"))
    assert trecho("sync", str(tmp_path), "--no-embed", dsn=dsn).code == 0
    code, data = checked(trecho, dsn)
    assert (code, data["health"]["usable"], data["health"]["current"]) == (6, True, False)
    assert trecho("embed", dsn=dsn).code == 0
    assert checked(trecho, dsn)[0] == 0

    # A document that cannot be published.
    (tmp_path / "c.md").write_text("---\nid: um\n---\n" + TEXT.format("C"))
    assert trecho("sync", str(tmp_path), dsn=dsn).code == 7
    code, data = checked(trecho, dsn)
    assert (code, data["health"]["failed_documents"], data["health"]["current"]) == (7, 1, False)
    page = trecho("status", dsn=dsn)
    assert page.code == 0
    assert "no: 1 documents could not be published" in page.out
    assert re.search(r"^left out   1 documents.*\n +\S*c\.md: doc_id um is also claimed by", page.out, re.M)
    (tmp_path / "c.md").unlink()
    assert trecho("sync", str(tmp_path), dsn=dsn).code == 0
    assert checked(trecho, dsn)[0] == 0

    # A text that was given up.
    execute(
        dsn,
        "WITH gone AS (UPDATE trecho.chunks SET embedding = NULL WHERE chunk_key = (SELECT min(chunk_key) FROM trecho.placements) RETURNING text_hash)"
        " INSERT INTO trecho.embedding_attempts (index_version, text_hash, attempt_count, last_error, last_attempt_at)"
        " SELECT 1, text_hash, 5, 'recusado pelo provedor', now() FROM gone",
    )
    code, data = checked(trecho, dsn)
    assert code == 7
    (failed,) = data["failed"]
    assert failed["last_error"] == "recusado pelo provedor" and len(failed["text_hash"]) == 64
    assert f"{failed['chunk_id']}: recusado pelo provedor" in trecho("status", dsn=dsn).out


def test_left_out__names_what_the_newest_pass_of_each_set_left_out_once(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("---\nid: um\n---\n" + TEXT.format(name))
    (tmp_path / "c.md").write_text(TEXT.format("C"))
    for _ in range(2):
        assert trecho("sync", str(tmp_path), "--no-embed", dsn=dsn).code == 7
    page = trecho("status", dsn=dsn).out
    assert page.count("a.md: doc_id um is also claimed by") == 1
    assert page.count("b.md: doc_id um is also claimed by") == 1


def test_a_set_of_which_nothing_could_be_published__is_not_forgotten_when_another_set_is_synced(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    bad, good, empty = tmp_path / "bad", tmp_path / "good", tmp_path / "empty"
    for folder in (bad, good, empty):
        folder.mkdir()
    for name in ("a.md", "b.md"):
        (bad / name).write_text("---\nid: um\n---\n" + TEXT.format(name))
    (good / "c.md").write_text(TEXT.format("C"))
    assert trecho("sync", str(bad), "--set", "velho", "--no-embed", dsn=dsn).code == 7
    assert trecho("sync", str(good), "--set", "bom", "--no-embed", dsn=dsn).code == 0
    code, data = checked(trecho, dsn)
    assert (code, data["health"]["failed_documents"]) == (7, 2)
    # The new name takes it along, and what is made good under it is good.
    execute(dsn, "SELECT trecho.rename_source_set('velho', 'novo')")
    assert checked(trecho, dsn)[1]["health"]["failed_documents"] == 2
    assert trecho("sync", str(empty), "--set", "novo", "--no-embed", dsn=dsn).code == 0
    assert checked(trecho, dsn)[1]["health"]["failed_documents"] == 0


def test_passes__one_that_runs_and_one_that_was_killed_are_told_apart(trecho: CLI, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("SELECT trecho.begin_pass('default', 'main', 's', '{docs}')")
        pid = other.info.backend_pid
        page = trecho("status", dsn=dsn).out
        assert f"pid {pid}" in page and re.search(r"^ +1  .*running", page, re.M)
        execute(dsn, "SELECT pg_terminate_backend(%s, 10000)", pid)
    page = trecho("status", dsn=dsn).out
    assert "pid" not in page and re.search(r"^ +1  .*killed", page, re.M)


def test_prometheus__every_line_is_of_its_format_and_names_are_escaped(trecho: CLI, dsn: str) -> None:
    execute(
        dsn,
        "SELECT trecho.put_document('docs', 'x', source_path => 'a.md', project => %s)",
        'a "b" \\ c\nd',
    )
    ran = trecho("status", "--prometheus", dsn=dsn)
    assert ran.code == 0
    label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    seen: set[str] = set()
    kinds: dict[str, str] = {}
    for line in ran.out.splitlines():
        comment = re.fullmatch(r"# (HELP|TYPE) (trecho_[a-z_]+) (.+)", line)
        if comment:
            assert comment[2] not in seen
            kinds[comment[2]] = comment[3]
            continue
        sample = re.fullmatch(rf"(trecho_[a-z_]+)(?:\{{{label}(?:,{label})*\}})? (-?[0-9.e+-]+)", line)
        assert sample, line
        float(sample[2])
        seen.add(sample[1])
        assert kinds[sample[1]] == "gauge"
    assert {"trecho_documents", "trecho_usable", "trecho_texts_pending"} <= seen
    assert r'project="a \"b\" \\ c\nd"' in ran.out
    for other in ("--json", "--check"):
        assert trecho("status", "--prometheus", other, dsn=dsn).code == 2
