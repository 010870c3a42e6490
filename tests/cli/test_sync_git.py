"""`trecho sync --git` on real repositories: what it reads, what it follows, what it does when history is rewritten."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row
from support import ROOT, Ran

CLI = Callable[..., Ran]
ZERO = "0" * 40


class Repo:
    """A repository with one worktree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "Teste")
        self.git("config", "user.email", "teste@exemplo.org")
        self.git("config", "core.quotepath", "true")

    def git(self, *args: str, **env: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.path), *args],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **env},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, files: dict[str, str | None] | None = None) -> str:
        """Write (None: remove) files, commit everything, give the commit."""
        for name, text in (files or {}).items():
            path = self.path / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "mudança")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


def doc(title: str, word: str = "palavra") -> str:
    return f"# {title}\n\n## Um\n\nTexto com {word}.\n\n## Dois\n\nFim de {title}.\n"


def synced(trecho: CLI, dsn: str, repo: Repo, *args: str, code: int = 0) -> dict[str, int]:
    """Run the sync. Gives the counts of its passes added up, files looked at included."""
    ran = trecho("sync", "--repo", str(repo.path), "--no-embed", "--json", *args, dsn=dsn)
    assert ran.code == code, ran.err
    total: dict[str, int] = {"looked_at": 0}
    for outcome in json.loads(ran.out):
        total["looked_at"] += outcome["unchanged"] + outcome["counts"].get("documents_staged", 0)
        for key, number in outcome["counts"].items():
            if isinstance(number, int):
                total[key] = total.get(key, 0) + number
    return total


def documents(dsn: str, branch: str = "main") -> dict[str, str]:
    """source -> scope of what a branch holds."""
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row) as conn:
        found = conn.execute(
            "SELECT source, scope::text FROM trecho.documents WHERE branch = %s", (branch,)
        ).fetchall()
    return {r["source"]: r["scope"] for r in found}


def whole(dsn: str, branch: str = "main") -> list[dict[str, Any]]:
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row) as conn:
        return conn.execute(
            "SELECT d.source, p.chunk_id, c.content FROM trecho.placements AS p JOIN trecho.documents AS d USING (document_id)"
            "  JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key"
            " WHERE d.branch = %s ORDER BY 1, p.ordinal",
            (branch,),
        ).fetchall()


def test_without_configuration__documents_decisions_and_code_find_their_scope(
    trecho: CLI, dsn: str, repo: Repo
) -> None:
    repo.commit(
        {
            "README.md": doc("R"),
            "docs/adr/0001-x.md": doc("X"),
            "src/main.rs": "fn main() {}\n",
            "logo.bin": "x",
            "Cargo.lock": "x",
        }
    )
    synced(trecho, dsn, repo, "--git")
    assert documents(dsn) == {"README.md": "docs", "docs/adr/0001-x.md": "adr", "src/main.rs": "code"}


def test_next_sync__looks_only_at_the_difference(trecho: CLI, dsn: str, repo: Repo) -> None:
    repo.commit({f"{n}.md": doc(str(n)) for n in range(10)})
    assert synced(trecho, dsn, repo, "--git")["looked_at"] == 10
    repo.commit({"3.md": doc("3", "mudança"), "novo.md": doc("N"), "4.md": None})
    counts = synced(trecho, dsn, repo, "--git")
    assert (counts["looked_at"], counts["documents_written"], counts["documents_removed"]) == (2, 2, 1)
    assert set(documents(dsn)) == {*(f"{n}.md" for n in range(10)), "novo.md"} - {"4.md"}
    assert synced(trecho, dsn, repo, "--git")["looked_at"] == 0


def test_renames_odd_names_and_type_changes__are_followed(trecho: CLI, dsn: str, repo: Repo) -> None:
    repo.commit(
        {
            "a b.md": doc("A"),
            "ção/é.md": doc("Ç"),
            'as"pas.md': doc("P"),
            "vira-link.md": doc("V"),
            "tab\tq.md": doc("T"),
        }
    )
    synced(trecho, dsn, repo, "--git")
    assert set(documents(dsn)) == {"a b.md", "ção/é.md", 'as"pas.md', "vira-link.md", "tab\tq.md"}
    repo.git("mv", "a b.md", "c d.md")
    (repo.path / "vira-link.md").unlink()
    (repo.path / "vira-link.md").symlink_to("c d.md")
    repo.commit()
    counts = synced(trecho, dsn, repo, "--git")
    assert set(documents(dsn)) == {"c d.md", "ção/é.md", 'as"pas.md', "tab\tq.md"}
    assert (counts["documents_written"], counts["documents_removed"]) == (1, 2)


def test_rewritten_history__is_read_whole(trecho: CLI, dsn: str, repo: Repo) -> None:
    first = repo.commit({"a.md": doc("A"), "b.md": doc("B")})
    synced(trecho, dsn, repo, "--git")
    repo.git("checkout", "-q", "--orphan", "outra")
    repo.commit({"a.md": doc("A", "outra"), "b.md": None, "c.md": doc("C")})
    repo.git("branch", "-f", "main", "outra")
    repo.git("checkout", "-q", "main")
    repo.git("branch", "-D", "outra")
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("gc", "-q", "--prune=now")
    assert subprocess.run(
        ["git", "-C", str(repo.path), "cat-file", "-e", first], capture_output=True, check=False
    ).returncode
    synced(trecho, dsn, repo, "--git")
    assert set(documents(dsn)) == {"a.md", "c.md"}
    assert any("outra" in r["content"] for r in whole(dsn))


def test_the_difference_is_from_the_recorded_commit__whatever_before_says(
    trecho: CLI, dsn: str, repo: Repo
) -> None:
    """A push whose hook was lost: BEFORE is newer than what the index has."""
    repo.commit({"a.md": doc("A")})
    synced(trecho, dsn, repo, "--git")
    missed = repo.commit({"b.md": doc("B")})
    last = repo.commit({"c.md": doc("C")})
    synced(trecho, dsn, repo, "--git", f"{missed}..{last}")
    assert set(documents(dsn)) == {"a.md", "b.md", "c.md"}


def test_branches__are_apart_share_chunks_and_go_when_deleted(trecho: CLI, dsn: str, repo: Repo) -> None:
    repo.commit({f"{n}.md": doc(str(n)) for n in range(4)})
    synced(trecho, dsn, repo, "--git")
    repo.git("checkout", "-q", "-b", "ramo")
    tip = repo.commit({"0.md": doc("0", "ramo")})
    counts = synced(trecho, dsn, repo, "--git", f"{ZERO}..{tip}", "--branch", "ramo")
    assert (counts["documents_written"], counts["chunks_written"]) == (4, 1)
    assert set(documents(dsn, "ramo")) == set(documents(dsn))
    synced(trecho, dsn, repo, "--git", f"{tip}..{ZERO}", "--branch", "ramo")
    assert documents(dsn, "ramo") == {} and len(documents(dsn)) == 4


def test_rule_files_that_change__are_applied_to_the_whole_tree(trecho: CLI, dsn: str, repo: Repo) -> None:
    repo.commit({"a.md": doc("A"), "g/x.md": doc("X"), "h/y.md": doc("Y")})
    synced(trecho, dsn, repo, "--git")
    repo.commit({".gitattributes": "g/* linguist-generated\n", "h/.trechoignore": "*.md\n"})
    synced(trecho, dsn, repo, "--git")
    assert set(documents(dsn)) == {"a.md"}
    repo.commit({".gitattributes": None, "trecho.toml": '[[source]]\nset = "git:docs"\npath = "g"\n'})
    synced(trecho, dsn, repo, "--git", "--allow-mass-delete")
    assert set(documents(dsn)) == {"g/x.md"}


def test_a_configuration_outside_the_commit_that_changes__is_applied_to_the_whole_tree(
    trecho: CLI, dsn: str, repo: Repo, tmp_path: Path
) -> None:
    given = tmp_path / "fora.toml"
    given.write_text('[[source]]\nset = "d"\npath = "."\nexclude = ["g/"]\n')
    repo.commit({"a.md": doc("A"), "g/x.md": doc("X"), "h/y.md": doc("Y")})
    synced(trecho, dsn, repo, "--git", "--config", str(given))
    assert set(documents(dsn)) == {"a.md", "h/y.md"}
    ran = trecho("sync", "--git", "--repo", str(repo.path), "--config", str(given), "--no-embed", dsn=dsn)
    assert ran.code == 0 and "whole tree" not in ran.err

    given.write_text('[[source]]\nset = "d"\npath = "."\nexclude = ["h/"]\n')
    ran = trecho("sync", "--git", "--repo", str(repo.path), "--config", str(given), "--no-embed", dsn=dsn)
    assert ran.code == 0 and "whole tree: its configuration has changed" in ran.err
    assert set(documents(dsn)) == {"a.md", "g/x.md"}
    # So do limits.
    given.write_text('[chunking]\nmax_document_bytes = 10\n\n[[source]]\nset = "d"\npath = "."\n')
    ran = trecho(
        "sync",
        "--git",
        "--repo",
        str(repo.path),
        "--config",
        str(given),
        "--no-embed",
        "--allow-mass-delete",
        dsn=dsn,
    )
    assert ran.code == 0 and "whole tree" in ran.err
    assert documents(dsn) == {}


def test_documents_that_failed__are_tried_again_though_they_did_not_change(
    trecho: CLI, dsn: str, repo: Repo
) -> None:
    claim = "---\nid: um\n---\n# {}\n"
    repo.commit({"a.md": claim.format("A"), "b.md": claim.format("B"), "c.md": doc("C")})
    synced(trecho, dsn, repo, "--git", code=7)
    assert set(documents(dsn)) == {"c.md"}
    repo.commit({"a.md": None})
    synced(trecho, dsn, repo, "--git")
    assert set(documents(dsn)) == {"b.md", "c.md"}


def test_wrong_repository_revision_or_range__is_a_usage_error(
    trecho: CLI, dsn: str, repo: Repo, tmp_path: Path
) -> None:
    repo.commit({"a.md": doc("A")})
    assert trecho("sync", "--git", "--repo", str(tmp_path / "nada"), dsn=dsn).code == 2
    for wrong in ("inexistente", f"{ZERO}..inexistente", "a...b", "--upload-pack=x"):
        ran = trecho("sync", f"--git={wrong}", "--repo", str(repo.path), dsn=dsn)
        assert ran.code == 2, (wrong, ran.err)
    assert trecho("sync", "--git", "--scope", "docs", "--repo", str(repo.path), dsn=dsn).code == 2


def test_hook__indexes_each_pushed_branch_and_drops_deleted_ones(
    trecho: CLI, dsn: str, repo: Repo, tmp_path: Path
) -> None:
    bare = tmp_path / "central.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(bare)], check=True)
    assert trecho("hook", "install", "--repo", str(bare), "--no-embed").code == 0
    assert trecho("hook", "install", "--repo", str(bare), "--no-embed").code == 0
    repo.git("remote", "add", "central", str(bare))
    env = {"TRECHO_DSN": dsn, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plpython")])}
    repo.commit({"a.md": doc("A"), "m.rs": "fn f() {}\n"})
    repo.git("branch", "ramo/é")
    repo.git("push", "-q", "central", "main", "ramo/é", **env)
    assert documents(dsn) == documents(dsn, "ramo/é") == {"a.md": "docs", "m.rs": "code"}
    repo.commit({"b.md": doc("B")})
    repo.git("push", "-q", "central", "main", ":ramo/é", **env)
    assert set(documents(dsn)) == {"a.md", "b.md", "m.rs"} and documents(dsn, "ramo/é") == {}
    gone = trecho("hook", "uninstall", "--repo", str(bare))
    assert gone.code == 0 and "uninstalled" in gone.err
    again = trecho("hook", "uninstall", "--repo", str(bare))
    assert again.code == 0 and "nothing to uninstall" in again.err and str(bare) in again.err
    (bare / "hooks" / "post-receive").write_text("#!/bin/sh\n")
    assert trecho("hook", "install", "--repo", str(bare)).code == 4


def test_a_hook_that_cannot_work_as_it_is__is_installed_with_a_warning(
    trecho: CLI, dsn: str, repo: Repo, tmp_path: Path
) -> None:
    bare = tmp_path / "central.git"
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    ran = trecho("hook", "install", "--repo", str(bare))
    assert ran.code == 0 and "TRECHO_DSN" in ran.err and "bare" not in ran.err
    ran = trecho("hook", "install", "--repo", str(repo.path))
    assert ran.code == 0 and "is not bare" in ran.err
    ran = trecho("hook", "install", "--repo", str(bare), dsn="postgresql://ana@localhost/x")
    assert ran.code == 0 and "warning" not in ran.err


def test_a_password__is_not_written_into_the_hook(trecho: CLI, repo: Repo) -> None:
    ran = trecho("hook", "install", "--repo", str(repo.path), dsn="postgresql://ana:segredo@localhost/x")
    assert ran.code == 4 and "segredo" not in ran.err + ran.out
    assert not (repo.path / ".git" / "hooks" / "post-receive").exists()


def test_what_an_application_changes_on_a_source__is_made_equal_again(
    trecho: CLI, dsn: str, repo: Repo
) -> None:
    repo.commit({"a.md": doc("A"), "b.md": doc("B")})
    synced(trecho, dsn, repo, "--git")
    before = whole(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT trecho.put_document('docs', 'da aplicação', 'a.md')")
        conn.execute("SELECT trecho.remove_document('docs', 'b.md')")
    synced(trecho, dsn, repo, "--git")
    assert whole(dsn) == before
    assert synced(trecho, dsn, repo, "--git")["looked_at"] == 0


def test_deleted_branch__goes_from_the_project_of_its_configuration(
    trecho: CLI, dsn: str, repo: Repo
) -> None:
    tip = repo.commit(
        {
            "trecho.toml": '[project]\nname = "plataforma"\n[[source]]\nset = "m"\npath = "."\n',
            "a.md": doc("A"),
        }
    )
    synced(trecho, dsn, repo, "--git", tip, "--branch", "b4")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT trecho.put_document('docs', 'x', 'fica.md', branch => 'b4')")
    synced(trecho, dsn, repo, "--git", f"{tip}..{ZERO}", "--branch", "b4")
    assert set(documents(dsn, "b4")) == {"fica.md"}


@pytest.mark.parametrize("command", ["sync", "doctor"])
def test_a_head_on_no_branch__is_never_taken_for_main(
    repo: Repo, dsn: str, trecho: CLI, command: str
) -> None:
    repo.commit({"docs/a.md": "# Publicado\n\nPrazo de dez dias.\n"})
    arguments = ["--git", "--repo", str(repo.path)]
    assert trecho("sync", *arguments, "--no-embed", dsn=dsn).code == 0
    repo.git("checkout", "-q", "--detach")
    repo.commit({"docs/a.md": "# Proposta\n\nPrazo de vinte dias.\n"})
    ran = trecho(command, *arguments, *(["--no-embed"] if command == "sync" else []), dsn=dsn)
    assert ran.code == 2 and "--branch" in ran.err
    with psycopg.connect(dsn) as conn:
        found = conn.execute("SELECT content FROM trecho.search('prazo', mode => 'lexical')").fetchall()
    assert len(found) == 1 and "dez dias" in found[0][0]
    named = trecho("sync", *arguments, "--branch", "proposta", "--no-embed", dsn=dsn)
    assert named.code == 0, named.err


def test_a_pattern_that_is_none__is_named_in_trechoignore_and_nothing_in_gitattributes(
    repo: Repo, dsn: str, trecho: CLI
) -> None:
    arguments = ["--git", "--repo", str(repo.path), "--no-embed"]
    repo.commit({"docs/a.md": "# A\n\nTexto.\n", ".gitattributes": "[z-a] linguist-generated\n"})
    assert trecho("sync", *arguments, dsn=dsn).code == 0
    for name, text in {
        ".trechoignore": "*.tmp\n[z-a]\n",
        "trecho.toml": '[[source]]\npath = "docs"\ninclude = ["[z-a]"]\n',
    }.items():
        repo.commit({name: text})
        ran = trecho("sync", *arguments, dsn=dsn)
        assert ran.code == 2 and "'[z-a]' is no pattern" in ran.err and "defect" not in ran.err
        repo.commit({name: None})
    assert trecho("sync", *arguments, dsn=dsn).code == 0


def test_files_of_a_checkout_on_no_branch__are_compared_without_git(
    repo: Repo, dsn: str, trecho: CLI, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.commit({"docs/a.md": "# A\n\nTexto.\n", "trecho.toml": '[[source]]\npath = "docs"\n'})
    repo.git("checkout", "-q", "--detach")
    monkeypatch.chdir(repo.path)
    assert trecho("sync", "--no-embed", dsn=dsn).code == 0
    ran = trecho("doctor", "--json", dsn=dsn)
    assert ran.code != 2 and "changed" not in ran.out, ran.err
    (repo.path / "docs" / "a.md").write_text("# A\n\nOutro texto.\n")
    assert "changed" in trecho("doctor", "--json", dsn=dsn).out


def test_a_branch_that_is_named__is_its_own_tip_and_not_that_of_head(
    repo: Repo, dsn: str, trecho: CLI
) -> None:
    repo.commit({"a.md": doc("A")})
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit({"f.md": doc("F")})
    synced(trecho, dsn, repo, "--git", "--branch", "main")
    assert documents(dsn) == {"a.md": "docs"}
    repo.git("checkout", "-q", "main")
    synced(trecho, dsn, repo, "--git", "feature")
    assert (documents(dsn), documents(dsn, "feature")) == (
        {"a.md": "docs"},
        {"a.md": "docs", "f.md": "docs"},
    )
    # A name that git does not have, and a HEAD on no branch, as builds have it: HEAD is what is meant.
    synced(trecho, dsn, repo, "--git", "--branch", "nova")
    assert documents(dsn, "nova") == {"a.md": "docs"}
    repo.git("checkout", "-q", "--detach", "feature")
    synced(trecho, dsn, repo, "--git", "--branch", "main")
    assert documents(dsn) == {"a.md": "docs", "f.md": "docs"}


def test_doctor__names_the_branch_that_is_behind_and_leaves_one_that_is_gone_as_it_is(
    repo: Repo, dsn: str, trecho: CLI
) -> None:
    where = ["--repo", str(repo.path), "--git"]
    repo.commit({"a.md": doc("A")})
    synced(trecho, dsn, repo, "--git")
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit({"f.md": doc("F")})
    last = repo.git("rev-parse", "HEAD")
    synced(trecho, dsn, repo, "--git")
    repo.git("checkout", "-q", "main")
    repo.commit({"b.md": doc("B")})
    repo.git("checkout", "-q", "feature")
    behind = trecho("doctor", *where, "--branch", "main", dsn=dsn)
    assert behind.code == 6 and "repair: trecho sync --git --branch main" in behind.out
    synced(trecho, dsn, repo, "--git", "--branch", "main")
    assert trecho("doctor", *where, "--branch", "main", dsn=dsn).code in (0, 6)
    assert documents(dsn) == {"a.md": "docs", "b.md": "docs"}

    repo.git("checkout", "-q", "main")
    repo.git("branch", "-D", "feature")
    for more in ([], ["--repair"]):
        gone = trecho("doctor", *where, "--branch", "feature", "--no-embed", *more, dsn=dsn)
        assert gone.code == 2 and "no branch feature" in gone.err, gone.err
        assert f"trecho sync --git {last[:12]}..{ZERO} --branch feature" in gone.err
    assert documents(dsn, "feature") == {"a.md": "docs", "f.md": "docs"}
    synced(trecho, dsn, repo, "--git", f"{last[:12]}..{ZERO}", "--branch", "feature")
    assert documents(dsn, "feature") == {}
