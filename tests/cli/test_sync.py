"""`trecho sync` over folders: what a stranger's folder becomes, and what a second run costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row
from support import Ran

CLI = Callable[..., Ran]


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def doc(title: str, word: str = "palavra") -> str:
    return f"# {title}\n\nAbertura.\n\n## Um\n\nTexto com {word}.\n\n## Dois\n\nFim de {title}.\n"


def rows(dsn: str, query: str, *values: object) -> list[dict[str, Any]]:
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row) as conn:
        return conn.execute(query.encode(), values).fetchall()


def sources(dsn: str) -> list[str]:
    return [r["source"] for r in rows(dsn, 'SELECT source FROM trecho.documents ORDER BY source COLLATE "C"')]


def failed_documents(dsn: str) -> int:
    return int(rows(dsn, "SELECT failed_documents FROM trecho.index_health()")[0]["failed_documents"])


def synced(trecho: CLI, dsn: str, *args: str, code: int = 0) -> list[dict[str, Any]]:
    ran = trecho("sync", *args, "--no-embed", "--json", dsn=dsn)
    assert ran.code == code, ran.err
    return list(json.loads(ran.out))


def test_folder__is_indexed_and_a_second_run_does_nothing(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, {"a.md": doc("A"), "sub dir/ção.md": doc("Ç"), "nota.txt": "só texto\n"})
    first = synced(trecho, dsn, str(tmp_path))[0]
    assert first["counts"]["documents_written"] == 3
    assert sources(dsn) == [f"{tmp_path.name}/{n}" for n in ("a.md", "nota.txt", "sub dir/ção.md")]
    again = synced(trecho, dsn, str(tmp_path))[0]
    assert (
        again["unchanged"],
        again["counts"]["chunks_computed"],
        again["counts"]["placements_written"],
    ) == (3, 0, 0)


def test_any_folder__each_refused_file_is_named_with_its_reason_and_the_rest_indexed(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    write(
        tmp_path,
        {
            "bom.md": "\ufeff" + doc("Com BOM").replace("\n", "\r\n"),
            "vazio.md": "",
            "latin.md": "ação".encode("latin-1"),
            "nulo.md": b"a\0b",
            "grande.md": "x" * 600_000,
            "uma-linha.md": "palavra " * 20_000,
            "node_modules/x.md": "# não\n",
            "gerado/x.md": "# não\n",
            ".trechoignore": "gerado/\n",
            "id-1.md": "---\nid: um\n---\n# Um\n",
            "id-2.md": "---\nid: um\n---\n# Outro um\n",
            "estranho.md": "---\n: [\n---\n# Cabeçalho torto\n\ntexto\n",
        },
    )
    (tmp_path / "ligado.md").symlink_to("/etc/hostname")
    (tmp_path / "quebrado.md").symlink_to(tmp_path / "não existe")
    outcome = synced(trecho, dsn, str(tmp_path), code=7)[0]
    reasons = {f["path"].partition("/")[2]: f["reason"] for f in outcome["skipped_files"]}
    assert reasons == {
        "node_modules/": "folder",
        "gerado/": "ignored",
        "latin.md": "not-utf-8",
        "nulo.md": "binary",
        "grande.md": "too-large",
        "ligado.md": "link-outside",
        "quebrado.md": "link-broken",
    }
    assert sorted(line.partition(":")[0].rpartition("/")[2] for line in outcome["failed"]) == [
        "id-1.md",
        "id-2.md",
    ]
    assert sources(dsn) == [
        f"{tmp_path.name}/{n}" for n in ("bom.md", "estranho.md", "uma-linha.md", "vazio.md")
    ]
    ran = trecho("sync", str(tmp_path), "--no-embed", "--verbose", dsn=dsn)
    assert "latin.md: not-utf-8" in ran.err and "id-1.md" in ran.err
    assert (
        "left out: 1 folder\n" in ran.err
        and "left out: 1 ignored\n" in ran.err
        and "gerado/: ignored" in ran.err
    )
    assert "0 written, 0 removed, 4 unchanged, 2 failed; " in ran.err


def test_edit_rename_and_delete__follow_the_files(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, {f"{n}.md": doc(str(n)) for n in range(5)})
    synced(trecho, dsn, str(tmp_path))
    write(tmp_path, {"1.md": doc("1", "mudança")})
    (tmp_path / "2.md").rename(tmp_path / "dois.md")
    (tmp_path / "3.md").unlink()
    outcome = synced(trecho, dsn, str(tmp_path))[0]
    assert (outcome["counts"]["documents_written"], outcome["counts"]["documents_removed"]) == (2, 2)
    assert [s.rpartition("/")[2] for s in sources(dsn)] == ["0.md", "1.md", "4.md", "dois.md"]


def test_two_folders_one_after_the_other__both_stay(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, {"um/a.md": doc("A"), "dois/b.md": doc("B")})
    synced(trecho, dsn, str(tmp_path / "um"))
    synced(trecho, dsn, str(tmp_path / "dois"))
    assert sources(dsn) == ["dois/b.md", "um/a.md"]


def test_adr_scope__gives_ids_from_numbers(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, {"adr/0079-usar-pgvector.md": doc("Usar pgvector")})
    synced(trecho, dsn, str(tmp_path / "adr"), "--scope", "adr")
    assert rows(dsn, "SELECT doc_id, scope::text FROM trecho.documents") == [
        {"doc_id": "adr-0079", "scope": "adr"}
    ]


def test_sessions__keep_their_identity_when_the_file_moves(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    sid = "0b3f6c3e-5f4e-4a57-9d0b-7f6f7f0d1a11"
    event = json.dumps({"role": "ana", "at": "2026-03-01T10:00:00Z", "text": "O disco da réplica encheu."})
    write(
        tmp_path,
        {
            "s/a.json": json.dumps({"session_id": sid, "events": [json.loads(event)]}),
            "s/ruim.json": "{",
            "s/t.txt": "ana: oi\nbeto: olá\n",
        },
    )
    synced(trecho, dsn, str(tmp_path / "s"), "--scope", "session")
    ids = {
        r["origin"]: r["id"]
        for r in rows(
            dsn, "SELECT session_id::text AS id, metadata ->> 'origin' AS origin FROM trecho.documents"
        )
    }
    assert ids["s/a.json"] == sid and "s/t.txt" in ids
    (tmp_path / "s" / "a.json").rename(tmp_path / "s" / "b.json")
    outcome = synced(trecho, dsn, str(tmp_path / "s"), "--scope", "session")[0]
    assert (outcome["failed"], outcome["counts"]["documents_failed"]) == ([], 0)
    found = rows(
        dsn, "SELECT metadata ->> 'origin' AS origin FROM trecho.documents WHERE session_id = %s", sid
    )
    assert found == [{"origin": "s/b.json"}]


def test_configuration__sources_scopes_and_patterns(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "trecho.toml": '[project]\nname = "p"\nbranch = "b"\n[[source]]\nset = "m"\npath = "m"\nexclude = ["rascunhos/"]\n'
            '[[source]]\nset = "d"\npath = "d"\nscope = "adr"\ninclude = ["*.md"]\n',
            "m/a.md": doc("A"),
            "m/rascunhos/x.md": doc("X"),
            "d/0001-x.md": doc("D"),
        },
    )
    outcomes = synced(trecho, dsn, "--config", str(tmp_path / "trecho.toml"))
    assert [(o["source_set"], o["counts"]["documents_written"]) for o in outcomes] == [("m", 1), ("d", 1)]
    found = rows(dsn, "SELECT project, branch, source FROM trecho.documents ORDER BY source")
    assert found == [
        {"project": "p", "branch": "b", "source": "d/0001-x.md"},
        {"project": "p", "branch": "b", "source": "m/a.md"},
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[source]]\npath = 'm'\nscop = 'docs'\n", "scop"),
        ("[[source]]\npath = 'm'\nscope = 'doc'\n", "'doc'"),
        ("[projet]\n", "projet"),
        ("[[source]]\npath = 'm'\n[[source]]\npath = 'm'\n", "set"),
        ("[[source]]\npath = 'falta'\n", "falta"),
        ("isto não é toml", "TOML"),
        ("", "source"),
        ("[[source]]\npath = 'm'\ninclude = '*.md'\n", "include"),
        ("[[source]]\npath = 'm'\nexclude = [1]\n", "exclude"),
        ("[source]\npath = 'm'\n", "[[source]]"),
        ("project = 'p'\n", "project must be a table"),
        ("[project]\nname = ''\n", "project.name"),
        ("[embedding]\npreset = 'nada'\n", "embedding.preset"),
        ("[chunking]\nwindow_lines = 'x'\n[[source]]\npath = 'm'\n", "window_lines"),
    ],
)
def test_wrong_configuration__is_a_usage_error_that_names_the_key(
    trecho: CLI, dsn: str, tmp_path: Path, text: str, says: str
) -> None:
    write(tmp_path, {"trecho.toml": text, "m/a.md": doc("A")})
    ran = trecho("sync", "--config", str(tmp_path / "trecho.toml"), dsn=dsn)
    assert says in ran.err and "\nhint: " in ran.err, ran.err
    if says != "window_lines":  # the database knows what a setting takes
        assert (ran.code, "trecho.toml" in ran.err) == (2, True), ran.err


def test_code_from_a_plain_folder__is_refused_with_the_reason(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, {"a.rs": "fn main() {}\n"})
    ran = trecho("sync", str(tmp_path), "--scope", "code", dsn=dsn)
    assert ran.code == 4 and "git" in ran.err


def test_missing_folder__is_a_usage_error_and_touches_nothing(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    ran = trecho("sync", str(tmp_path / "nada"), dsn=dsn)
    assert ran.code == 2 and "nada" in ran.err
    assert rows(dsn, "SELECT count(*) AS n FROM trecho.passes") == [{"n": 0}]


def test_emptied_folder__is_refused_by_the_guard_and_allowed_when_said(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    write(tmp_path, {"a.md": doc("A")})
    synced(trecho, dsn, str(tmp_path))
    (tmp_path / "a.md").unlink()
    ran = trecho("sync", str(tmp_path), "--no-embed", dsn=dsn)
    assert ran.code == 4 and "--allow-mass-delete" in ran.err
    assert len(sources(dsn)) == 1
    synced(trecho, dsn, str(tmp_path), "--allow-mass-delete")
    assert sources(dsn) == []


def test_while_another_pass_runs__it_is_skipped_says_who_and_exits_0(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    write(tmp_path, {"a.md": doc("A")})
    with psycopg.connect(dsn, autocommit=True) as holder:
        holder.execute("SELECT trecho.begin_pass('default', 'main', 'outro', '{docs}')")
        ran = trecho("sync", str(tmp_path), "--no-embed", dsn=dsn)
        assert ran.code == 0
        assert "skipped" in ran.err and str(holder.info.backend_pid) in ran.err
    assert sources(dsn) == []


def test_client_chunking__gives_the_same_index(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        {f"{n}.md": doc(str(n)) + "\n```sql\nSELECT 1;\n```\n" for n in range(3)} | {"x.md": "é" * 7000},
    )
    everything = (
        "SELECT d.source, d.title, d.language, p.chunk_id, p.anchor, p.start_line, p.end_line, c.content, c.context, c.symbol, c.kind,"
        "       c.content_hash, c.text_hash FROM trecho.placements AS p JOIN trecho.documents AS d USING (document_id)"
        "  JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key ORDER BY 1, p.ordinal"
    )
    synced(trecho, dsn, str(tmp_path))
    there = rows(dsn, everything)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT trecho.drop_project('default')")
    synced(trecho, dsn, str(tmp_path), "--chunking", "client")
    assert rows(dsn, everything) == there and len(there) >= 10


def test_status__check_tells_a_monitor_by_exit_code(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, {"a.md": doc("A")})
    assert trecho("status", "--check", dsn=dsn).code == 5
    synced(trecho, dsn, str(tmp_path))
    assert trecho("status", "--check", dsn=dsn).code == 6
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("UPDATE trecho.chunks SET embedding = array_fill(0.5::real, ARRAY[768])")
    ran = trecho("status", "--check", "--json", dsn=dsn)
    assert ran.code == 0 and json.loads(ran.out)["health"]["documents"] == 1
    assert "docs" in trecho("status", dsn=dsn).out


def session(sid: str, word: str) -> str:
    return json.dumps(
        {
            "session_id": sid,
            "events": [{"role": "ana", "at": "2026-03-01T10:00:00Z", "text": f"Fala de {word}."}],
        }
    )


SESSIONS = (
    "0b3f6c3e-5f4e-4a57-9d0b-7f6f7f0d1a11",
    "1b3f6c3e-5f4e-4a57-9d0b-7f6f7f0d1a22",
    "2b3f6c3e-5f4e-4a57-9d0b-7f6f7f0d1a33",
)


def spoken(dsn: str) -> dict[str, tuple[str, str]]:
    """Session -> its file and its word, of what is published."""
    found = rows(
        dsn,
        "SELECT d.source, d.path, c.content FROM trecho.documents AS d JOIN trecho.placements AS p USING (document_id)"
        "  JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key",
    )
    return {r["source"]: (r["path"], r["content"].rpartition("Fala de ")[2].rstrip(".\n")) for r in found}


def test_sessions__that_swap_files_change_their_id_or_their_text_are_followed(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    folder, (a, b, c) = tmp_path / "s", SESSIONS
    args = (str(folder), "--scope", "session", "--allow-mass-delete")
    write(folder, {"a.json": session(a, "abacaxi"), "b.json": session(b, "banana")})
    synced(trecho, dsn, *args)
    assert spoken(dsn) == {a: ("s/a.json", "abacaxi"), b: ("s/b.json", "banana")}
    write(folder, {"a.json": session(b, "banana"), "b.json": session(a, "abacaxi")})
    synced(trecho, dsn, *args)
    assert spoken(dsn) == {a: ("s/b.json", "abacaxi"), b: ("s/a.json", "banana")}
    write(folder, {"a.json": session(c, "caju")})
    synced(trecho, dsn, *args)
    assert spoken(dsn) == {a: ("s/b.json", "abacaxi"), c: ("s/a.json", "caju")}
    (folder / "b.json").unlink()
    synced(trecho, dsn, *args)
    assert spoken(dsn) == {c: ("s/a.json", "caju")}


def test_one_session_in_two_files__is_an_error_whenever_the_second_comes(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    write(folder, {"a.json": session(SESSIONS[0], "um")})
    synced(trecho, dsn, str(folder), "--scope", "session")
    write(folder, {"b.json": session(SESSIONS[0], "dois")})
    for _ in range(2):
        outcome = synced(trecho, dsn, str(folder), "--scope", "session", code=7)[0]
        assert "a.json" in outcome["failed"][0] and "b.json" in outcome["failed"][0]
        assert spoken(dsn) == {SESSIONS[0]: ("s/a.json", "um")}


def test_a_set_whose_scope_changes__is_written_anew(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, {"s/t.txt": "ana: Fala de um\n"})
    for scope in ("docs", "session", "docs"):
        synced(trecho, dsn, str(tmp_path / "s"), "--scope", scope, "--allow-mass-delete")
        assert rows(dsn, "SELECT scope::text FROM trecho.documents") == [{"scope": scope}]


def test_what_an_application_wrote_over_a_source__is_undone_by_the_next_sync(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    write(tmp_path, {"d/a.md": doc("A")})
    synced(trecho, dsn, str(tmp_path / "d"))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "SELECT trecho.put_document('docs', %s, 'd/a.md', title => 'Outro', metadata => '{\"x\": 1}')",
            (doc("A"),),
        )
    synced(trecho, dsn, str(tmp_path / "d"))
    assert rows(dsn, "SELECT title, metadata FROM trecho.documents") == [{"title": "A", "metadata": {}}]
    assert synced(trecho, dsn, str(tmp_path / "d"))[0]["unchanged"] == 1


def test_odd_entries__are_named_and_the_rest_indexed(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    import os

    write(tmp_path, {"d/a.md": doc("A"), "d/longo.md": "---\nid: " + "x" * 9000 + "\n---\n# L\n"})
    (tmp_path / "d" / "volta.md").symlink_to("volta.md")
    os.mkfifo(tmp_path / "d" / ".trechoignore")
    outcome = synced(trecho, dsn, str(tmp_path / "d"), code=7)[0]
    assert any("longo.md" in line and "1000" in line for line in outcome["failed"])
    assert sources(dsn) == ["d/a.md"]
    (tmp_path / "d" / ".trechoignore").unlink()
    write(tmp_path, {"d/.trechoignore": "!\n"})
    ran = trecho("sync", str(tmp_path / "d"), "--no-embed", dsn=dsn)
    assert ran.code == 2 and ".trechoignore" in ran.err


def test_a_file_that_cannot_be_read_now__keeps_what_the_index_has_of_it(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    write(tmp_path, {"d/a.md": doc("A"), "d/b.md": doc("B"), "d/sub/c.md": doc("C")})
    synced(trecho, dsn, str(tmp_path / "d"))
    whole, scandir = sources(dsn), os.scandir

    def failing(path: Any) -> Any:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("trecho.sources.os.scandir", failing)
    (tmp_path / "d" / "b.md").unlink()
    outcome = synced(trecho, dsn, str(tmp_path / "d"), code=7)[0]
    assert "d/sub/" in outcome["failed"][0]
    assert sources(dsn) == [s for s in whole if s != "d/b.md"]


def test_a_renamed_set__can_be_handed_over(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, {"d/a.md": doc("A")})
    synced(trecho, dsn, str(tmp_path / "d"), "--set", "velho")
    outcome = synced(trecho, dsn, str(tmp_path / "d"), "--set", "novo", code=7)[0]
    assert "rename_source_set" in outcome["failed"][0]
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert conn.execute("SELECT trecho.rename_source_set('velho', 'novo')").fetchone() == (1,)
    assert synced(trecho, dsn, str(tmp_path / "d"), "--set", "novo")[0]["unchanged"] == 1


def test_what_is_no_file__is_counted_with_its_reason(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    import os
    import socket

    folder = tmp_path / "d"
    write(folder, {"a.md": doc("A"), "sub/b.md": doc("B")})
    os.mkfifo(folder / "cano.md")
    (folder / "solto.md").symlink_to("nada.md")
    (folder / "volta.md").symlink_to("volta.md")
    (folder / "dispositivo.md").symlink_to("/dev/zero")
    (folder / "atalho").symlink_to("sub")
    (folder / "node_modules").symlink_to("sub")  # excluded by its name, whatever it is
    with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # the path of a socket is short
        listener.bind("tomada.md")
        patch.undo()
        outcome = synced(trecho, dsn, str(folder))[0]
    assert outcome["skipped"] == {"special": 3, "link-broken": 2, "link-to-folder": 1, "folder": 1}
    assert {f["path"].partition("/")[2]: f["reason"] for f in outcome["skipped_files"]} == {
        "node_modules/": "folder",
        "cano.md": "special",
        "tomada.md": "special",
        "dispositivo.md": "special",
        "solto.md": "link-broken",
        "volta.md": "link-broken",
        "atalho": "link-to-folder",
    }
    assert sources(dsn) == ["d/a.md", "d/sub/b.md"]


def test_odd_names__are_documents_like_others(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    names = [
        "com\nquebra.md",
        "Caso.md",
        "caso.md",
        "a'b\"c\\d.md",
        "-f.md",
        " .md",
        "é/õ.md",
        "%s {} $1.md",
        "📄.md",
    ]
    folder = tmp_path / "d"
    write(folder, {name: doc(f"N{number}") for number, name in enumerate(names)})
    assert synced(trecho, dsn, str(folder))[0]["counts"]["documents_written"] == len(names)
    assert sources(dsn) == sorted(f"d/{name}" for name in names)
    assert synced(trecho, dsn, str(folder))[0]["unchanged"] == len(names)
    (folder / "Caso.md").unlink()
    assert synced(trecho, dsn, str(folder))[0]["counts"]["documents_removed"] == 1
    assert "d/caso.md" in sources(dsn)


def test_a_path_too_long_to_be_indexed__is_named_and_the_rest_goes_on(
    trecho: CLI, dsn: str, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    deep = "/".join(["x" * 200] * 6)
    write(folder, {"a.md": doc("A"), "b.md": doc("B"), f"{deep}/c.md": doc("C")})
    outcome = synced(trecho, dsn, str(folder), code=7)[0]
    assert len(outcome["failed"]) == 1 and "at most 1000" in outcome["failed"][0]
    assert sources(dsn) == ["d/a.md", "d/b.md"]
    assert (outcome["counts"]["documents_failed"], outcome["counts"]["errors"]) == (1, outcome["failed"])


@pytest.mark.parametrize("jobs", ["-1", "65", "99999"])
def test_jobs__are_as_many_as_a_server_may_bear(trecho: CLI, dsn: str, tmp_path: Path, jobs: str) -> None:
    ran = trecho("sync", str(tmp_path), "--jobs", jobs, dsn=dsn)
    assert ran.code == 2 and f"--jobs must be between 0 and 64, got {jobs}" in ran.err


def test_a_file_that_cannot_be_read__counts_as_failed_until_it_can_be(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    folder = tmp_path / "d"
    write(folder, {"a.md": doc("A"), "b.md": doc("B")})
    synced(trecho, dsn, str(folder))
    opening = os.open

    def refusing(path: Any, *args: Any) -> int:
        if str(path).endswith("b.md"):
            raise PermissionError(13, "Permission denied")
        return opening(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr("trecho.sources.os.open", refusing)
        outcome = synced(trecho, dsn, str(folder), code=7)[0]
        assert outcome["failed"] == outcome["counts"]["errors"] == ["d/b.md: unreadable (Permission denied)"]
        assert failed_documents(dsn) == 1
    assert sources(dsn) == ["d/a.md", "d/b.md"]
    synced(trecho, dsn, str(folder))
    assert failed_documents(dsn) == 0


def test_a_file_that_goes_while_the_folder_is_read__is_gone(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    folder = tmp_path / "d"
    write(folder, {name: doc(name) for name in ("a.md", "b.md", "sub/c.md")})
    synced(trecho, dsn, str(folder))
    opening = os.open

    def removing(path: Any, *args: Any) -> int:
        if str(path).endswith("a.md"):
            (folder / "b.md").unlink()
        return opening(path, *args)

    monkeypatch.setattr("trecho.sources.os.open", removing)
    outcome = synced(trecho, dsn, str(folder))[0]
    assert (outcome["failed"], outcome["counts"]["documents_removed"]) == ([], 1)
    assert sources(dsn) == ["d/a.md", "d/sub/c.md"]


@pytest.mark.parametrize("when", ["a.md", "z.md"])
def test_a_folder_that_goes_while_it_is_read__changes_nothing(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    import os

    folder = tmp_path / "d"
    write(folder, {name: doc(name) for name in ("a.md", "sub/c.md", "sub/d.md", "z.md")})
    synced(trecho, dsn, str(folder))
    whole, opening = sources(dsn), os.open

    def leaving(path: Any, *args: Any) -> int:
        number = opening(path, *args)
        if str(path).endswith(when):
            folder.rename(tmp_path / "fora")
        return number

    monkeypatch.setattr("trecho.sources.os.open", leaving)
    ran = trecho("sync", str(folder), "--no-embed", "--allow-mass-delete", dsn=dsn)
    assert ran.code == 1 and "went away while it was read" in ran.err
    assert sources(dsn) == whole


def test_a_file_that_grows_while_it_is_read__is_too_large(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    folder = tmp_path / "d"
    write(folder, {"a.md": doc("A"), "b.md": doc("B")})
    measuring = os.fstat

    def growing(number: int) -> os.stat_result:
        info = measuring(number)
        if info.st_ino == (folder / "b.md").stat().st_ino:
            with open(folder / "b.md", "a") as file:
                file.write("x" * 600_000)
        return info

    monkeypatch.setattr("trecho.sources.os.fstat", growing)
    outcome = synced(trecho, dsn, str(folder))[0]
    assert outcome["skipped"] == {"too-large": 1}
    assert sources(dsn) == ["d/a.md"]


def test_syncs_of_two_sets_at_once__both_end_true(trecho: CLI, dsn: str, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from trecho.config import folder_source
    from trecho.reconcile import Options, Outcome, Target, run_pass
    from trecho.sources import read_folder

    for name in ("um", "dois"):
        write(tmp_path / name, {f"{n}.md": doc(f"{name} {n}") for n in range(30)})

    def sync(project: str, name: str) -> Outcome:
        source = folder_source(tmp_path / name, "docs", name)
        while True:
            outcome = run_pass(
                dsn, Target(project, "main", name, "docs"), read_folder(source, 1 << 19), Options()
            )
            if outcome.state == "published":
                return outcome
            assert outcome.state == "skipped" and outcome.holder is not None

    with ThreadPoolExecutor(4) as pool:
        ran = [
            pool.submit(sync, project, name) for project in ("default", "outro") for name in ("um", "dois")
        ]
        assert [f.result().counts["documents_written"] for f in ran] == [30, 30, 30, 30]
    assert len(sources(dsn)) == 120


def test_a_set_whose_removal_is_refused__does_not_keep_the_others_from_being_read(
    trecho: CLI, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "".join(f'[[source]]\nset = "{name}"\npath = "{name}"\n' for name in "mn")
    write(tmp_path, {"trecho.toml": config, "m/a.md": doc("A"), "n/b.md": doc("B")})
    monkeypatch.chdir(tmp_path)
    synced(trecho, dsn)
    (tmp_path / "m" / "a.md").unlink()
    write(tmp_path, {"n/c.md": doc("C")})
    ran = trecho("sync", "--no-embed", dsn=dsn)
    assert ran.code == 4 and "source set m" in ran.err and "--allow-mass-delete" in ran.err
    assert sources(dsn) == ["m/a.md", "n/b.md", "n/c.md"]
