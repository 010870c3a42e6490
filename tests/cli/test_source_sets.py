"""Source sets: those that a configuration names no more, folders that become part of one, folders of one name."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row
from support import Ran
from test_sync_git import Repo, doc

CLI = Callable[..., Ran]


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def toml(*sources: str, project: str = "default") -> str:
    """A configuration with a source for each 'set=path'."""
    lines = [f'[project]\nname = "{project}"\n']
    for source in sources:
        name, _, path = source.partition("=")
        lines.append(f'[[source]]\nset = "{name}"\npath = "{path}"\n')
    return "\n".join(lines)


def sync(trecho: CLI, dsn: str, *args: str | Path, code: int = 0) -> Ran:
    ran = trecho("sync", *map(str, args), "--no-embed", dsn=dsn)
    assert ran.code == code, ran.err
    return ran


def documents(dsn: str) -> dict[str, list[str]]:
    """source set -> its sources."""
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row) as conn:
        found = conn.execute(
            'SELECT source_set, array_agg(source ORDER BY source COLLATE "C") AS sources FROM trecho.documents GROUP BY 1'
        ).fetchall()
    return {row["source_set"]: row["sources"] for row in found}


def notes(ran: Ran) -> list[str]:
    return [line for line in ran.err.splitlines() if line.startswith("note: source set ")]


def command_of(line: str) -> list[str]:
    """The command that a note gives, as a shell would read it."""
    return shlex.split(line.partition(": trecho ")[2].partition(", then ")[0])


def status(trecho: CLI, dsn: str) -> dict[str, Any]:
    ran = trecho("status", "--json", dsn=dsn)
    return dict(json.loads(ran.out))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, {"p/guia/a.md": doc("A"), "p/wiki/b.md": doc("B"), "p/wiki/c.md": doc("C")})
    return tmp_path / "p"


def test_a_set_that_leaves_the_configuration__is_named_with_the_command_that_removes_it(
    trecho: CLI, dsn: str, folder: Path
) -> None:
    config = folder / "trecho.toml"
    config.write_text(toml("guia=guia", "a wiki=wiki"))
    assert notes(sync(trecho, dsn, "--config", config)) == []
    config.write_text(toml("guia=guia"))
    for _ in range(2):
        (line,) = notes(sync(trecho, dsn, "--config", config))
        assert "a wiki (default/main)" in line and str(config) in line and "keeps 2 documents" in line
    assert documents(dsn)["a wiki"] == ["wiki/b.md", "wiki/c.md"]
    page = trecho("status", dsn=dsn).out
    assert f"not in {config} any more" in page
    ran = trecho(*command_of(line), dsn=dsn)
    assert (ran.code, "2 documents of a wiki removed" in ran.err) == (0, True)
    assert list(documents(dsn)) == ["guia"]
    assert notes(sync(trecho, dsn, "--config", config)) == []
    assert "any more" not in trecho("status", dsn=dsn).out


def test_a_set_that_leaves_the_commit__is_named_and_removing_it_reads_no_whole_tree(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    repo = Repo(tmp_path / "repo")
    files = {"guia/a.md": doc("A"), "wiki/b.md": doc("B"), "trecho.toml": toml("guia=guia", "wiki=wiki")}
    repo.commit({**files})
    git = ("--git", "--repo", repo.path)
    assert notes(sync(trecho, dsn, *git)) == []
    repo.commit({"trecho.toml": toml("guia=guia")})
    (line,) = notes(sync(trecho, dsn, *git))
    assert "wiki (default/main) is not in trecho.toml any more and keeps 1 document;" in line
    trecho(*command_of(line), dsn=dsn)
    assert documents(dsn) == {"guia": ["guia/a.md"]}
    repo.commit({"guia/d.md": doc("D")})
    ran = sync(trecho, dsn, *git)
    assert notes(ran) == [] and "1 written, 0 removed, 0 unchanged" in ran.err
    # A set that the configuration names again is read whole.
    repo.commit({"trecho.toml": files["trecho.toml"]})
    sync(trecho, dsn, *git)
    assert documents(dsn) == {"guia": ["guia/a.md", "guia/d.md"], "wiki": ["wiki/b.md"]}


def test_sets_removed_though_the_configuration_names_them__come_back(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit({"a.md": doc("A"), "adr/0001-x.md": doc("X")})
    sync(trecho, dsn, "--git", "--repo", repo.path)
    assert trecho("set", "remove", "git:docs", dsn=dsn).code == 0
    assert documents(dsn) == {"git:adr": ["adr/0001-x.md"]}
    ran = sync(trecho, dsn, "--git", "--repo", repo.path)
    assert "reading every file of git:docs:" in ran.err and "git:adr (default/main): 0 written" in ran.err
    assert documents(dsn) == {"git:adr": ["adr/0001-x.md"], "git:docs": ["a.md"]}
    assert "reading" not in sync(trecho, dsn, "--git", "--repo", repo.path).err


def test_sets_of_others__are_nobodys_orphans(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    """Another configuration, a folder of its own, an application, another project, another branch."""
    write(
        tmp_path,
        {
            "um/docs/a.md": doc("A"),
            "um/trecho.toml": toml("um=docs"),
            "dois/guia/b.md": doc("B"),
            "dois/trecho.toml": toml("dois=guia"),
            "notas/n.md": doc("N"),
            "outros/o.md": doc("O"),
        },
    )
    config = tmp_path / "um" / "trecho.toml"
    alone = [
        ("--config", config),
        ("--config", tmp_path / "dois" / "trecho.toml"),
        (tmp_path / "notas",),
        (tmp_path / "outros", "--set", "meu"),
        ("--config", config, "--branch", "outro"),
    ]
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT trecho.put_document('docs', 'texto', 'app.md')")
    for _ in range(2):
        for args in alone:
            assert notes(sync(trecho, dsn, *args)) == []
    # A set that the configuration named once, and another brings now, is the other's.
    write(tmp_path, {"um/trecho.toml": toml("um=docs", "meu=docs/nada"), "um/docs/nada/x.txt": "x\n"})
    sync(trecho, dsn, "--config", config, code=7)
    sync(trecho, dsn, tmp_path / "outros", "--set", "meu")
    write(tmp_path, {"um/trecho.toml": toml("um=docs")})
    assert notes(sync(trecho, dsn, "--config", config)) == []


def test_a_folder_that_gets_a_configuration__is_named_with_the_command_that_ends_the_doubling(
    trecho: CLI, dsn: str, folder: Path
) -> None:
    sync(trecho, dsn, folder)
    config = folder / "trecho.toml"
    config.write_text(toml("guia=guia", "wiki=wiki"))
    (line,) = notes(sync(trecho, dsn, "--config", config))
    assert f"{folder} (default/main), synced without" in line
    assert f"keeps 3 documents, 3 of them also in {config};" in line
    assert trecho(*command_of(line), dsn=dsn).code == 0
    assert notes(sync(trecho, dsn, "--config", config)) == []
    assert documents(dsn) == {"guia": ["guia/a.md"], "wiki": ["wiki/b.md", "wiki/c.md"]}


def test_a_folder_that_a_configuration_reads__is_said_to_be_its(trecho: CLI, dsn: str, folder: Path) -> None:
    config = folder / "trecho.toml"
    config.write_text(toml("guia=guia", "as notas=wiki"))
    sync(trecho, dsn, "--config", config)
    ran = sync(trecho, dsn, folder / "wiki", code=7)
    assert "0 written, 0 removed, 0 unchanged, 2 failed;" in ran.err
    line = next(line for line in ran.err.splitlines() if line.startswith("note: "))
    assert f"{config} reads this folder as source set as notas;" in line
    again = trecho(*command_of(line), "--no-embed", dsn=dsn)
    assert again.code == 0 and "0 written, 0 removed, 2 unchanged;" in again.err
    assert set(documents(dsn)) == {"guia", "as notas"}


def test_a_folder_beside_a_configuration__is_not_named_where_no_file_is_in_both(
    trecho: CLI, dsn: str, folder: Path
) -> None:
    write(folder, {"guia/adr/0001-x.md": doc("X")})
    sync(trecho, dsn, folder / "guia" / "adr", "--scope", "adr")
    config = folder / "trecho.toml"
    config.write_text(toml("guia=guia") + 'exclude = ["adr/"]\n')
    for _ in range(2):
        assert notes(sync(trecho, dsn, "--config", config)) == []
    assert set(documents(dsn)) == {str(folder / "guia" / "adr"), "guia"}


def test_a_folder_that_git_claims__is_handed_over_by_the_command_that_the_note_gives(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit(
        {"docs/a.md": doc("A"), "docs/b.md": doc("B"), "docs/adr/0001-x.md": doc("X"), "outro/c.md": doc("C")}
    )
    sync(trecho, dsn, repo.path / "docs")
    ran = sync(trecho, dsn, "--git", "--repo", repo.path, code=7)
    folder = str(repo.path / "docs")
    assert f"SELECT trecho.rename_source_set('{folder}', 'git:docs', 'default', 'main')" in ran.err
    (line,) = notes(ran)
    command = command_of(line)
    assert command[:3] == ["set", "rename", folder]
    assert trecho(*command, dsn=dsn).code == 0
    for _ in range(2):  # what went to the wrong one of several sets is given up by it, then taken
        trecho("sync", "--git", "--repo", str(repo.path), "--no-embed", dsn=dsn)
    sync(trecho, dsn, "--git", "--repo", repo.path)
    assert documents(dsn) == {
        "git:adr": ["docs/adr/0001-x.md"],
        "git:docs": ["docs/a.md", "docs/b.md", "outro/c.md"],
    }


def test_a_folder__is_the_same_documents_wherever_the_command_is_run(
    trecho: CLI, dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    sync(trecho, dsn, "p/wiki")
    before = documents(dsn)
    assert before == {str(folder / "wiki"): ["wiki/b.md", "wiki/c.md"]}
    for here, name in ((folder, "wiki"), (folder / "wiki", "."), (folder / "guia", "../wiki")):
        monkeypatch.chdir(here)
        assert "0 written, 0 removed, 2 unchanged" in sync(trecho, dsn, name).err
        assert trecho("doctor", name, "--quick", dsn=dsn).out.count("sources (set") == 0
    assert documents(dsn) == before


def test_folders_of_one_name__both_stay_with_paths_of_their_own(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    write(tmp_path, {f"{n}/docs/README.md": doc(n) for n in ("um", "dois", "x/um")})
    first, second, third = (tmp_path / n / "docs" for n in ("um", "dois", "x/um"))
    sync(trecho, dsn, first)
    ran = sync(trecho, dsn, second)
    assert f"paths of {second} begin with dois/docs/, since {first} has documents below docs/" in ran.err
    sync(trecho, dsn, third)
    expected = {
        str(first): ["docs/README.md"],
        str(second): ["dois/docs/README.md"],
        str(third): ["um/docs/README.md"],
    }
    assert documents(dsn) == expected
    for path in (third, first, second):
        ran = sync(trecho, dsn, path)
        assert "0 written, 0 removed, 1 unchanged" in ran.err and "note: paths" not in ran.err
        assert trecho("doctor", str(path), "--quick", dsn=dsn).out.count("sources (set") == 0
    # One that goes and comes back begins anew; the others keep theirs.
    trecho("set", "remove", str(first), dsn=dsn)
    sync(trecho, dsn, second)
    sync(trecho, dsn, first)
    assert documents(dsn) == expected


def test_set__lists_renames_and_removes_and_a_wrong_name_is_said(trecho: CLI, dsn: str, folder: Path) -> None:
    sync(trecho, dsn, folder / "wiki", "--set", "wiki")
    config = folder / "trecho.toml"
    config.write_text(toml("guia=guia"))
    sync(trecho, dsn, "--config", config)
    page = trecho("set", "list", dsn=dsn).out
    assert "source set" in page and "(no configuration)" in page and str(config) in page
    listed = {
        row["source_set"]: row for row in json.loads(trecho("set", "list", "--json", dsn=dsn).out)["sets"]
    }
    assert listed["wiki"] == {
        "branch": "main",
        "source_set": "wiki",
        "documents": 2,
        "configuration": None,
        "named": None,
    }
    assert (listed["guia"]["configuration"], listed["guia"]["named"]) == (str(config), True)
    wrong = trecho("set", "remove", "wikki", dsn=dsn)
    assert (
        wrong.code == 0
        and "wikki has no documents in default/main; sets that have some: guia, wiki" in wrong.err
    )
    assert trecho("set", "rename", "wiki", dsn=dsn).code == 2
    same = trecho("set", "rename", "wiki", "wiki", dsn=dsn)
    assert same.code == 2 and "wiki is its own name already" in same.err
    assert trecho("set", "remove", "", dsn=dsn).code == 2
    assert "2 documents of wiki handed over to nova" in trecho("set", "rename", "wiki", "nova", dsn=dsn).err
    assert set(documents(dsn)) == {"guia", "nova"}


def test_what_a_removed_set_left_out__counts_no_more(trecho: CLI, dsn: str, folder: Path) -> None:
    write(folder, {"wiki/x.md": "---\nid: um\n---\n# X\n", "wiki/y.md": "---\nid: um\n---\n# Y\n"})
    sync(trecho, dsn, folder / "wiki", "--set", "wiki", code=7)
    assert status(trecho, dsn)["health"]["failed_documents"] == 2
    trecho("set", "remove", "wiki", dsn=dsn)
    health = status(trecho, dsn)["health"]
    assert (health["failed_documents"], health["documents"]) == (0, 0)


def test_failed_documents__make_git_read_only_their_own_set_again(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    repo = Repo(tmp_path / "repo")
    claim = "---\nid: um\n---\n# {}\n"
    files = {f"docs/{n}.md": doc(str(n)) for n in range(5)}
    repo.commit({**files, "adr/a.md": claim.format("A"), "adr/b.md": claim.format("B"), "adr/c.md": doc("C")})
    git = ("--git", "--repo", repo.path)
    sync(trecho, dsn, *git, code=7)
    for change, written in (({}, 0), ({"docs/novo.md": doc("N")}, 1)):
        repo.commit({**change})
        ran = sync(trecho, dsn, *git, code=7)
        assert "reading every file of git:adr:" in ran.err
        assert "git:adr (default/main): 0 written, 0 removed, 1 unchanged, 2 failed" in ran.err
        assert f"git:docs (default/main): {written} written, 0 removed, 0 unchanged;" in ran.err
    repo.commit({"adr/a.md": None})
    sync(trecho, dsn, *git)
    assert set(documents(dsn)["git:adr"]) == {"adr/b.md", "adr/c.md"}
    assert "reading every file" not in sync(trecho, dsn, *git).err


def test_a_sync_that_died_between_two_sets__still_restores_what_an_application_removed(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    """The branch was completed since, but not the set."""
    repo = Repo(tmp_path / "repo")
    repo.commit({"a.md": doc("A"), "adr/b.md": doc("B")})
    git = ("--git", "--repo", repo.path)
    sync(trecho, dsn, *git)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT trecho.remove_document('docs', 'a.md')")
        # What is left of a sync that published git:adr and then died.
        conn.execute("SELECT trecho.begin_pass('default', 'main', 'git:adr', '{adr}', 'difference')")
        conn.execute("SELECT trecho.publish_pass((SELECT max(pass_id) FROM trecho.passes))")
    sync(trecho, dsn, *git)
    assert documents(dsn) == {"git:adr": ["adr/b.md"], "git:docs": ["a.md"]}
