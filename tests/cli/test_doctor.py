"""`trecho doctor`: what differs between files, git and the index is found without changing anything, and mended on request."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row
from support import Ran, as_role

CLI = Callable[..., Ran]


def doc(title: str, word: str = "palavra") -> str:
    return f"# {title}\n\nAbertura.\n\n## Um\n\nTexto com {word}.\n\n## Dois\n\nFim de {title}.\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run_sql(dsn: str, query: str, *values: object) -> list[dict[str, Any]]:
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, autocommit=True) as conn:
        cursor = conn.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def doctor(trecho: CLI, dsn: str, *args: str) -> tuple[int, dict[str, dict[str, Any]], dict[str, Any]]:
    """Exit code, check -> finding (skipped ones left out), and the whole document."""
    ran = trecho("doctor", "--json", *args, dsn=dsn)
    data = json.loads(ran.out)
    assert data["exit_code"] == ran.code, ran.err
    found = {f["check"]: f for f in data["findings"] if f["severity"] != "skipped"}
    return ran.code, found, data


def contents(dsn: str) -> dict[str, str]:
    rows = run_sql(
        dsn,
        "SELECT d.source, string_agg(c.content, '' ORDER BY p.ordinal) AS text FROM trecho.documents AS d"
        "  JOIN trecho.placements AS p USING (document_id)"
        "  JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key GROUP BY 1",
    )
    return {r["source"]: r["text"] for r in rows}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trecho: CLI, dsn: str) -> Path:
    """A folder with trecho.toml and three documents, indexed."""
    write(
        tmp_path,
        {
            "trecho.toml": '[[source]]\nset = "manual"\npath = "docs"\nscope = "docs"\n',
            "docs/a.md": doc("A", "alfa"),
            "docs/b.md": doc("B", "beta"),
            "docs/c.md": doc("C", "gama"),
        },
    )
    monkeypatch.chdir(tmp_path)
    assert trecho("sync", dsn=dsn).code == 0
    return tmp_path


def test_healthy_index__is_clean_and_exits_0(trecho: CLI, dsn: str, project: Path) -> None:
    code, found, data = doctor(trecho, dsn)
    assert (code, found) == (0, {})
    assert {"sources", "content_hash", "passages", "word statistics", "indexes"} <= set(data["passed"])
    ran = trecho("doctor", dsn=dsn)
    assert ran.code == 0 and ran.out.startswith("default: no findings; ")
    assert "not checked" not in ran.out


def test_files__changed_added_and_removed_are_found_with_nothing_changed_and_repair_brings_them_in(
    trecho: CLI, dsn: str, project: Path
) -> None:
    write(project, {"docs/a.md": doc("A", "ômega"), "docs/sub/nova.md": doc("Nova", "delta")})
    (project / "docs" / "b.md").unlink()
    before = contents(dsn)
    code, found, _ = doctor(trecho, dsn)
    assert code == 6
    assert {name: f["example"] for name, f in found.items()} == {
        "changed sources": "docs/a.md",
        "new sources": "docs/sub/nova.md",
        "removed sources": "docs/b.md",
    }
    assert contents(dsn) == before
    code, found, data = doctor(trecho, dsn, "--repair")
    assert (code, found) == (0, {})
    assert data["repaired"].keys() >= {"changed sources", "new sources", "removed sources"}
    assert contents(dsn).keys() == {"docs/a.md", "docs/c.md", "docs/sub/nova.md"}
    hits = run_sql(dsn, "SELECT source_path FROM trecho.search('ômega', mode => 'lexical')")
    assert hits[0]["source_path"] == "docs/a.md"
    assert doctor(trecho, dsn, "--repair")[2]["repaired"] == {}


def test_repair__counts_what_is_mended_and_not_what_is_still_wrong(
    trecho: CLI, dsn: str, project: Path
) -> None:
    write(
        project,
        {"docs/a.md": doc("A", "ômega"), "docs/x" + "y" * 200 + "/" + "z" * 200 + ".md": doc("N", "nu")},
    )
    deep = "docs/" + "/".join(["x" * 200] * 6)
    write(project, {f"{deep}/n.md": doc("N", "delta")})  # a path too long to be indexed
    code, found, data = doctor(trecho, dsn, "--repair")
    assert (code, found["new sources"]["findings"]) == (6, 1)
    assert data["repaired"] == {"changed sources": 1, "new sources": 1}


def test_repair__whose_sync_is_refused_says_so_and_what_is_left(trecho: CLI, dsn: str, project: Path) -> None:
    for name in ("a", "b", "c"):
        (project / "docs" / f"{name}.md").unlink()
    ran = trecho("doctor", "--repair", dsn=dsn)
    assert ran.code == 6 and "--allow-mass-delete" in ran.err
    assert "removed sources: 3" in ran.out and "repaired" not in ran.out
    assert len(contents(dsn)) == 3


def test_names__that_would_move_the_terminal_are_shown_as_escapes(
    trecho: CLI, dsn: str, project: Path
) -> None:
    write(project, {"docs/r\x1b[31mX\ny.md": doc("R", "rubro")})
    for command in (["doctor"], ["sync", "--no-embed"], ["status"], ["doctor", "--quick"], ["set", "list"]):
        ran = trecho(*command, dsn=dsn)
        assert "\x1b" not in ran.out + ran.err, command


def test_document__that_an_application_wrote_over_is_found_and_becomes_its_source_again(
    trecho: CLI, dsn: str, project: Path
) -> None:
    run_sql(dsn, "SELECT trecho.put_document('docs', 'outra coisa', source_path => 'docs/a.md')")
    code, found, _ = doctor(trecho, dsn, "--no-embed")
    assert code == 6 and found["changed sources"]["example"] == "docs/a.md"
    assert doctor(trecho, dsn, "--repair")[:2] == (0, {})
    assert "alfa" in contents(dsn)["docs/a.md"]


def test_stored_text__that_is_damaged_comes_back_from_its_file(trecho: CLI, dsn: str, project: Path) -> None:
    before = contents(dsn)
    run_sql(dsn, "UPDATE trecho.blobs SET content = 'estragado' WHERE content LIKE '%%alfa%%'")
    run_sql(dsn, "UPDATE trecho.chunks SET content = 'estragado' WHERE content LIKE '%%alfa%%'")
    code, found, _ = doctor(trecho, dsn)
    assert code == 1 and {"texts", "content_hash", "text_hash"} <= found.keys()
    code, found, data = doctor(trecho, dsn, "--repair")
    assert (code, found, data["repaired"]["texts"]) == (0, {}, 1)
    assert contents(dsn) == before


def test_database__damage_of_every_kind_is_mended_and_said(trecho: CLI, dsn: str, project: Path) -> None:
    before = contents(dsn)
    for statement in (
        "UPDATE trecho.chunks SET embedding = NULL WHERE chunk_key % 2 = 0",
        "UPDATE trecho.chunks SET content_hash = sha256(content_hash) WHERE chunk_key % 3 = 0",
        "DELETE FROM trecho.placements WHERE ordinal = 2",
        "SET allow_system_table_mods = on; UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'trecho.chunks_1_vectors'::regclass",
        "DROP INDEX trecho.chunks_1_text",
        "UPDATE trecho.lexeme_stats SET document_frequency = 100000",
    ):
        run_sql(dsn, statement)
    code, found, _ = doctor(trecho, dsn)
    assert code == 1
    assert {
        "pending vectors",
        "content_hash",
        "placement counts",
        "indexes",
        "word statistics",
    } <= found.keys()
    ran = trecho("doctor", "--repair", dsn=dsn)
    assert ran.code == 0, ran.out
    assert "repaired  content_hash: " in ran.out and "default: no findings; " in ran.out
    assert 'REINDEX INDEX CONCURRENTLY "trecho"."chunks_1_vectors"' in ran.err
    assert contents(dsn) == before
    assert run_sql(dsn, "SELECT count(*) AS n FROM trecho.chunks WHERE embedding IS NULL") == [{"n": 0}]


def test_vectors__that_are_of_another_text_are_found_by_embedding_anew(
    trecho: CLI, dsn: str, project: Path
) -> None:
    """Two vectors exchanged: of the right size, finite, and wrong."""
    semantic = (
        "SELECT chunk_id, semantic_score FROM trecho.search('', (SELECT embedding FROM trecho.chunks WHERE source_path = 'docs/c.md'"
        " AND content LIKE '%%gama%%'), mode => 'semantic')"
    )
    run_sql(
        dsn,
        "WITH pair AS (SELECT min(c.chunk_key) AS a, max(c.chunk_key) AS b FROM trecho.chunks AS c WHERE c.source_path <> 'docs/c.md')"
        " UPDATE trecho.chunks AS c SET embedding = o.embedding FROM pair AS p, trecho.chunks AS o"
        "  WHERE (c.chunk_key, o.chunk_key) IN ((p.a, p.b), (p.b, p.a))",
    )
    assert doctor(trecho, dsn)[:2] == (0, {})
    code, found, data = doctor(trecho, dsn, "--vectors", "1000")
    assert code == 1 and found.keys() == {"vectors of their text"}
    assert found["vectors of their text"]["findings"] == 2
    code, found, data = doctor(trecho, dsn, "--vectors", "1000", "--repair")
    assert (code, found, data["repaired"]) == (0, {}, {"vectors of their text": 2})
    assert "vectors of their text" in data["passed"]
    assert run_sql(dsn, semantic)[0]["semantic_score"] > 0.99


def test_operator__repairs_without_owning_anything(
    trecho: CLI, dsn: str, project: Path, make_role: Callable[..., str]
) -> None:
    operator = as_role(dsn, make_role("trecho_operator"))
    run_sql(
        dsn,
        "SET allow_system_table_mods = on; UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'trecho.chunks_1_words'::regclass",
    )
    run_sql(dsn, "UPDATE trecho.chunks SET context = 'x' WHERE chunk_key % 2 = 0")
    code, found, _ = doctor(trecho, operator)
    assert code == 1 and {"indexes", "text_hash"} <= found.keys()
    ran = trecho("doctor", "--repair", dsn=operator)
    assert ran.code == 0, ran.out
    assert "no member of trecho_owner" in ran.err


def test_failed_texts__exit_7_and_pending_ones_6(trecho: CLI, dsn: str, project: Path) -> None:
    run_sql(dsn, "UPDATE trecho.chunks SET embedding = NULL WHERE source_path = 'docs/a.md'")
    assert doctor(trecho, dsn)[0] == 6
    run_sql(
        dsn,
        "INSERT INTO trecho.embedding_attempts (index_version, text_hash, attempt_count, last_error, last_attempt_at)"
        " SELECT DISTINCT 1, text_hash, 5, 'recusado', now() FROM trecho.chunks WHERE embedding IS NULL",
    )
    code, found, _ = doctor(trecho, dsn)
    assert code == 7 and found.keys() == {"failed vectors"}


def test_empty_database__is_not_usable_and_what_is_skipped_is_said(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = trecho("doctor", dsn=dsn)
    assert ran.code == 5
    assert "not checked: sources" in ran.out
    assert "skipped   sources (sources)" in ran.out


def test_quick_and_no_sources__name_what_was_not_checked(trecho: CLI, dsn: str, project: Path) -> None:
    run_sql(dsn, "UPDATE trecho.chunks SET content_hash = sha256(content_hash)")
    ran = trecho("doctor", "--quick", "--no-sources", dsn=dsn)
    assert ran.code == 0
    assert ran.out.startswith("skipped   sources") and "every project: no findings" in ran.out
    assert "not checked: sources, " in ran.out and "content_hash" in ran.out
    assert trecho("doctor", "--no-sources", dsn=dsn).code == 1


@pytest.mark.parametrize(
    "args", [("--no-sources", "x"), ("nicht/da",), ("--config", "keine.toml"), ("--no-sources", "--git")]
)
def test_wrong_use__exits_2(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trecho("doctor", *args, dsn=dsn).code == 2


def git(repo: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *args],
        cwd=repo,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_git__the_index_is_compared_with_the_commit_it_claims_and_with_the_branch(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    write(tmp_path, {"docs/a.md": doc("A", "alfa"), "src/x.rs": "fn soma() -> i32 {\n    1\n}\n"})
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "um")
    monkeypatch.chdir(tmp_path)
    assert trecho("sync", "--git", dsn=dsn).code == 0
    assert doctor(trecho, dsn, "--git")[:2] == (0, {})
    # An edit that is not committed is none.
    write(tmp_path, {"docs/a.md": doc("A", "ômega")})
    assert doctor(trecho, dsn, "--git")[:2] == (0, {})
    run_sql(dsn, "DELETE FROM trecho.documents WHERE source_path = 'src/x.rs'")
    code, found, _ = doctor(trecho, dsn, "--git")
    assert code == 1 and found["new sources"]["example"] == "src/x.rs"
    assert found.keys() >= {"placements without a document", "indexed documents without a document"}
    assert doctor(trecho, dsn, "--git", "--repair")[:2] == (0, {})
    git(tmp_path, "commit", "-qam", "dois")
    code, found, _ = doctor(trecho, dsn, "--git")
    assert code == 6 and found.keys() == {"commits behind"}
    assert doctor(trecho, dsn, "--git", "HEAD")[1].keys() == {"changed sources"}
    assert doctor(trecho, dsn, "--git", "--repair")[:2] == (0, {})
    assert "ômega" in contents(dsn)["docs/a.md"]


def test_client_chunking__passages_are_cut_again_in_the_client(
    trecho: CLI, empty_dsn: str, tmp_path: Path
) -> None:
    assert trecho("migrate", "--chunking", "client", dsn=empty_dsn).code == 0
    write(tmp_path, {"a.md": doc("A", "alfa"), "b.md": doc("B", "beta")})
    assert trecho("sync", str(tmp_path), dsn=empty_dsn).code == 0
    assert doctor(trecho, empty_dsn, str(tmp_path))[:2] == (0, {})
    before = contents(empty_dsn)
    run_sql(empty_dsn, "UPDATE trecho.chunks SET content = 'outra' WHERE content LIKE '%%alfa%%'")
    run_sql(empty_dsn, "UPDATE trecho.placements SET chunk_id = left(chunk_id, -1) || 'x' WHERE ordinal = 1")
    run_sql(empty_dsn, "DELETE FROM trecho.placements WHERE ordinal = 3")
    code, found, data = doctor(trecho, empty_dsn, str(tmp_path))
    assert code == 1
    assert {"content_hash", "text_hash", "chunk ids", "placement counts"} <= found.keys()
    assert "passages" in {f["check"] for f in data["findings"] if f["severity"] == "skipped"}
    assert doctor(trecho, empty_dsn, str(tmp_path), "--repair")[:2] == (0, {})
    assert contents(empty_dsn) == before


def test_in_a_repository__the_branch_of_head_is_compared_and_none_is_created(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trecho.toml says main by default; what --git indexed is the branch of HEAD."""
    git(tmp_path, "init", "-q", "-b", "trabalho")
    write(tmp_path, {"trecho.toml": '[[source]]\npath = "docs"\n', "docs/a.md": doc("A", "alfa")})
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "um")
    (tmp_path / "docs" / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "docs" / "sub")
    assert trecho("sync", "--git", dsn=dsn).code == 0
    write(tmp_path, {"docs/a.md": doc("A", "não confirmado")})
    ran = trecho("doctor", "--repair", dsn=dsn)
    assert ran.code == 0 and "default/trabalho was indexed from commits" in ran.err
    assert "no findings" in ran.out
    assert run_sql(dsn, "SELECT branch FROM trecho.branches") == [{"branch": "trabalho"}]
    git(tmp_path, "commit", "-qam", "dois")
    assert doctor(trecho, dsn)[1].keys() == {"commits behind"}
    # A branch of HEAD that is not indexed: nothing is compared with another one, and nothing created.
    write(tmp_path, {"trecho.toml": '[project]\nbranch = "trabalho"\n[[source]]\npath = "docs"\n'})
    git(tmp_path, "commit", "-qam", "três")
    git(tmp_path, "checkout", "-qb", "nova")
    write(tmp_path, {"docs/b.md": doc("B", "beta")})
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "quatro")
    _, found, data = doctor(trecho, dsn, "--repair")
    assert found == {}
    (skipped,) = [f for f in data["findings"] if f["check"] == "sources"]
    assert "branch nova of HEAD is not indexed" in skipped["example"]
    assert "--branch trabalho" in skipped["example"]
    assert run_sql(dsn, "SELECT branch FROM trecho.branches") == [{"branch": "trabalho"}]
    # Another branch than that of HEAD is brought to its own commit.
    code, found, _ = doctor(trecho, dsn, "--branch", "trabalho")
    assert (code, found.keys()) == (6, {"commits behind"})
    assert doctor(trecho, dsn, "--branch", "trabalho", "--repair")[:2] == (0, {})
    assert set(contents(dsn)) == {"docs/a.md"} and "não confirmado" in contents(dsn)["docs/a.md"]
    # With a configuration named, or a folder, it is files that are compared.
    assert "new sources" in doctor(trecho, dsn, "--config", str(tmp_path / "trecho.toml"))[1]
