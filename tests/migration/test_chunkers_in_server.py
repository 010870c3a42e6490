"""The chunkers as SQL functions: same chunks as in the client, errors with their SQLSTATE, upgrades under open sessions."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import trecho_chunkers
from psycopg.rows import dict_row
from support import ROOT, Connection, as_role
from trecho_chunkers.stability import chunk_stability

from trecho import resources, runner
from trecho.resources import Release

TEXTS = sorted((ROOT / "examples").glob("**/*.md")) + sorted((ROOT / "plpython").glob("**/*.py"))


def open_conn(dsn: str) -> Connection:
    return psycopg.Connection.connect(dsn, autocommit=True, row_factory=dict_row)


def upgrade(dsn: str, release: Release) -> None:
    with open_conn(dsn) as conn:
        runner.migrate(conn, release, runner.Options(), lambda text: None)


@pytest.fixture
def edited(tmp_path: Path, shipped: Release):
    """Function that gives the release with one chunker module replaced: edited("windows", lambda text: ...)."""

    def edit(module: str, change) -> Release:
        root = tmp_path / f"release{len(list(tmp_path.iterdir()))}"
        shutil.copytree(shipped.root, root)
        path = root / "plpython/trecho_chunkers" / f"{module}.py"
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
        return Release(root, path.parent)

    return edit


def test_chunk__server_and_client_give_identical_chunks(shared_db):
    assert len(TEXTS) > 20
    for path in TEXTS:
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        rows = shared_db.execute("SELECT * FROM trecho.chunk(%s, %s)", (name, text)).fetchall()
        assert rows == [chunk._asdict() for chunk in trecho_chunkers.chunk(name, text)]


def test_chunk__settings_and_scope_reach_the_chunker(shared_db):
    text = "\n".join(f"line {n}" for n in range(200))
    settings = {"window_lines": 20, "window_overlap_lines": 2}
    rows = shared_db.execute(
        "SELECT * FROM trecho.chunk('a.txt', %s, settings => %s)", (text, psycopg.types.json.Jsonb(settings))
    ).fetchall()
    assert rows == [c._asdict() for c in trecho_chunkers.chunk("a.txt", text, settings)]
    turn = "Ana: bom dia\n\nRui: bom dia"
    rows = shared_db.execute(
        "SELECT * FROM trecho.chunk('a.txt', %s, scope => 'session')", (turn,)
    ).fetchall()
    assert rows == [c._asdict() for c in trecho_chunkers.chunk_session(turn)]
    assert rows == shared_db.execute("SELECT * FROM trecho.chunk_session(%s)", (turn,)).fetchall()


def test_chunk_markdown__takes_text_alone(shared_db):
    text = "# Título\n\n## Seção\n\num\n\n## Outra\n\ndois\n"
    rows = shared_db.execute("SELECT * FROM trecho.chunk_markdown(%s)", (text,)).fetchall()
    assert rows == [c._asdict() for c in trecho_chunkers.chunk_markdown(text)]
    assert shared_db.execute("SELECT * FROM trecho.chunk_markdown(E'  \\n')").fetchall() == []


@pytest.mark.parametrize(
    ("query", "sqlstate", "message"),
    [
        ("SELECT * FROM trecho.chunk(NULL, 'x')", "22004", "path must not be null"),
        ("SELECT * FROM trecho.chunk('a.md', NULL)", "22004", "content must not be null"),
        ("SELECT * FROM trecho.chunk_markdown(NULL)", "22004", "content must not be null"),
        ("SELECT * FROM trecho.chunk_session(NULL)", "22004", "content must not be null"),
        ("SELECT * FROM trecho.chunk_stability('a.md', NULL)", "22004", "content must not be null"),
        ("SELECT * FROM trecho.describe('a.md', 'x', NULL)", "22004", "scope must not be null"),
        (
            """SELECT * FROM trecho.chunk('a.md', 'x', '{"nonsense": 1}')""",
            "22023",
            "unknown chunk setting 'nonsense'",
        ),
        ("SELECT * FROM trecho.chunk('a.md', 'x', '[1]')", "22023", "settings must be an object"),
        ("SELECT * FROM trecho.chunk('a.txt', repeat('x', 600000))", "TR008", "text of 600000 bytes is over"),
    ],
)
def test_chunk__errors_have_sqlstate_message_and_hint(shared_db, query, sqlstate, message):
    with pytest.raises(psycopg.Error) as caught:
        shared_db.execute(query)
    assert caught.value.sqlstate == sqlstate
    assert caught.value.diag.message_primary.startswith(f"plpy.Error: {message}")
    assert caught.value.diag.message_hint


def test_chunk__statement_timeout_ends_it_with_the_standard_code(dsn, edited):
    """PL/Python is not interrupted, so the deadline of the chunker stands in for the timeout."""
    slow = "\n    while True:\n        deadline.check()\n"
    release = edited("windows", lambda text: text + f"\n\ndef chunk_windows(text, settings, deadline):{slow}")
    upgrade(dsn, release)
    with open_conn(dsn) as conn:
        conn.execute("SET statement_timeout = '300ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("SELECT * FROM trecho.chunk('a.txt', 'x')")
        conn.execute("SET statement_timeout = 0")
        with pytest.raises(psycopg.Error) as caught:
            conn.execute("""SELECT * FROM trecho.chunk('a.txt', 'x', '{"timeout_ms": 50}')""")
        assert caught.value.sqlstate == "TR008"


# Texts that keep each chunker busy for longer than the timeout, also on a fast machine.
BUSY = [
    ("a.md", None, "## a\n\nb\n\n" * 400_000),
    ("a.unknown", None, "a\n" * 8_000_000),
    ("a.txt", "session", "Ana: oi\n\n" * 1_000_000),
    ("a.json", "session", '{"role": "u", "text": "a"}\n' * 400_000),
    ("a.rs", None, "fn a() { b(c, d); }\n" * 100_000),
    ("a.ts", None, "function a() { b(c, d); }\n" * 80_000),
    ("a.tsx", None, "const a = () => <b c={d} />;\n" * 70_000),
    ("a.toml", None, "[a.b]\nc = 1\n" * 160_000),
    ("a.yaml", None, "a: [b, {c: d}]\n" * 31_000),
    ("a.py", None, "def a(b):\n    return b\n" * 80_000),
    ("a.go", None, "func a() { b(c, d) }\n" * 90_000),
    ("a.sql", None, "SELECT a FROM b WHERE c = d;\n" * 70_000),
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "scope", "text"), BUSY, ids=[f"{path} {scope}" for path, scope, _ in BUSY])
def test_chunk__statement_timeout_stops_every_chunker_and_the_session_goes_on(shared_db, path, scope, text):
    settings = psycopg.types.json.Jsonb({"max_document_bytes": 100_000_000, "timeout_ms": 600_000})
    call = "SELECT count(*) AS n FROM trecho.chunk(%s, %s, %s, %s)"
    shared_db.execute(call, (path, "a: b", None, scope))  # loads what it needs
    with pytest.raises(psycopg.errors.QueryCanceled), shared_db.transaction():
        shared_db.execute("SET LOCAL statement_timeout = '50ms'")
        shared_db.execute(call, (path, text, settings, scope))
    assert shared_db.execute(call, (path, "a: b", None, scope)).fetchone()["n"] == 1


@pytest.mark.parametrize("busy", ["deadline.check()", "if deadline.expired(): deadline.check()"])
def test_chunk__cancel_is_obeyed_while_python_runs(dsn, edited, busy):
    """The chunker would go on for ten minutes: only the cancel can end it."""
    slow = f"\n    while True:\n        {busy}\n"
    release = edited("windows", lambda text: text + f"\n\ndef chunk_windows(text, settings, deadline):{slow}")
    upgrade(dsn, release)
    with open_conn(dsn) as conn, open_conn(dsn) as other, ThreadPoolExecutor(1) as pool:
        conn.execute("SELECT * FROM trecho.chunk('a.md', 'x')")
        call = """SELECT * FROM trecho.chunk('a.txt', 'x', '{"timeout_ms": 600000}')"""
        running = pool.submit(conn.execute, call)
        pid = conn.info.backend_pid
        active = "SELECT FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND query LIKE '%%a.txt%%'"
        while other.execute(active, (pid,)).fetchone() is None:
            assert not running.done()
        other.execute("SELECT pg_cancel_backend(%s)", (pid,))
        with pytest.raises(psycopg.errors.QueryCanceled):
            running.result(timeout=300)


def test_grammar__missing_on_the_server_is_an_error_that_says_how_to_install_it(dsn, edited):
    release = edited("languages", lambda text: text.replace('"tree_sitter_rust"', '"tree_sitter_absent"'))
    upgrade(dsn, release)
    with open_conn(dsn) as conn:
        with pytest.raises(psycopg.errors.UndefinedFile) as caught:
            conn.execute("SELECT * FROM trecho.chunk('a.rs', 'fn a() {}')")
        assert "no usable grammar for rust" in caught.value.diag.message_primary
        assert "Install tree-sitter and tree-sitter-rust" in caught.value.diag.message_hint
        assert kinds(conn) == ["window"]  # other texts go on
        (row,) = conn.execute("SELECT * FROM trecho.grammar_report() WHERE module LIKE '%(rust)'").fetchall()
        assert (row["ok"], row["module"]) == (False, "tree_sitter_absent (rust)")
        assert "tree-sitter-rust" in row["error"]


def test_chunk_stability__measures_every_chunker(shared_db):
    turns = "".join(f"Ana: palavra dita número {n} aqui mesmo agora. " * 40 + "\n\n" for n in range(9))
    for path, text, scope in [
        ("a.rs", "".join(f"fn f{n}() {{\n    // valor certo {n}\n}}\n\n" for n in range(9)), None),
        ("a.unknown", "".join(f"linha {n} de texto\n" for n in range(500)), None),
        ("s.txt", turns, "session"),
    ]:
        call = "SELECT * FROM trecho.chunk_stability(%s, %s, scope => %s)"
        rows = shared_db.execute(call, (path, text, scope)).fetchall()
        found = [edit._asdict() for edit in chunk_stability(path, text, None, scope)]
        assert rows == found and len(rows) == 4


def test_chunk__defect_shows_real_file_line_and_source_in_the_detail(dsn, edited):
    release = edited(
        "windows", lambda text: text + "\n\ndef chunk_windows(*_):\n    return 1 // 0  # a defect\n"
    )
    upgrade(dsn, release)
    source = release.chunker_sources["trecho_chunkers.windows"]
    with open_conn(dsn) as conn, pytest.raises(psycopg.errors.InternalError_) as caught:
        conn.execute("SELECT * FROM trecho.chunk('a.txt', 'x')")
    detail = caught.value.diag.message_detail
    line = source.count("\n")
    assert f'File "plpython/trecho_chunkers/windows.py", line {line}, in chunk_windows' in detail
    assert "return 1 // 0  # a defect" in detail
    assert "<string>" not in detail
    assert "ZeroDivisionError" in caught.value.diag.message_primary


def constant(kind: str):
    """A change of windows.py that makes every chunk of this kind."""
    return lambda text: text.replace('"window', f'"{kind}')


def kinds(conn: Connection) -> list[str]:
    return [row["kind"] for row in conn.execute("SELECT kind FROM trecho.chunk('a.txt', 'x')")]


def test_upgrade__open_session_runs_the_new_chunker_from_its_commit_on(dsn, edited):
    release = edited("windows", constant("novo"))
    with open_conn(dsn) as session:
        assert kinds(session) == ["window"]
        upgrade(dsn, release)
        assert kinds(session) == ["novo"]
        assert session.execute("SELECT trecho.chunker_stamp() AS s").fetchone() == {
            "s": release.chunker_stamp
        }


def test_upgrade__rolled_back_brings_the_old_chunker_back(dsn, edited):
    release = edited("windows", constant("novo"))
    text = next(s.text for s in release.privileged if s.name == resources.CHUNKER_FILE)
    with open_conn(dsn) as session:
        assert kinds(session) == ["window"]
        with session.transaction(force_rollback=True):
            session.execute(text.encode())
            assert kinds(session) == ["novo"]
        assert kinds(session) == ["window"]


def test_upgrade__half_applied_is_refused_and_not_reloaded_for_ever(dsn, edited):
    release = edited("windows", constant("novo"))
    text = next(s.text for s in release.privileged if s.name == resources.CHUNKER_FILE)
    start = text.index("CREATE OR REPLACE FUNCTION trecho.py_load()")
    loader = text[start : text.index("COMMENT ON FUNCTION trecho.py_load()")]
    with open_conn(dsn) as session:
        session.execute(loader.encode())
        with pytest.raises(psycopg.Error, match="different releases") as caught:
            session.execute("SELECT * FROM trecho.chunk('a.txt', 'x')")
    assert "20_chunkers.sql whole" in (caught.value.diag.message_hint or "")


def test_describe__answers_in_columns(shared_db):
    text = "---\nid: prazos\ntitle: Prazos\nrelated: [a, b]\n---\n# Outro\n"
    row = shared_db.execute("SELECT * FROM trecho.describe('x/a.md', %s, 'docs')", (text,)).fetchone()
    assert (row["title"], row["doc_id"], row["doc_id_claimed"], row["session_id"]) == (
        "Prazos",
        "prazos",
        True,
        None,
    )
    assert row["metadata"]["related"] == ["a", "b"]
    row = shared_db.execute("SELECT * FROM trecho.describe('adr/0079-banco.md', '# B', 'adr')").fetchone()
    assert (row["doc_id"], row["doc_id_claimed"]) == ("adr-0079", False)


def test_describe__session_without_id_depends_on_project_and_path(shared_db):
    query = "SELECT session_id FROM trecho.describe('s/a.txt', 'Ana: oi', 'session', %s)"
    first, again, other = (shared_db.execute(query, (p,)).fetchone()["session_id"] for p in ("p", "p", "q"))
    assert first == again != other


def test_chunk_stability__counts_are_consistent(shared_db):
    text = "# T\n\n" + "".join(f"## Seção {n}\n\ntexto número {n}\n\n" for n in range(9))
    rows = shared_db.execute("SELECT * FROM trecho.chunk_stability('a.md', %s)", (text,)).fetchall()
    assert len(rows) >= 2
    for row in rows:
        assert 1 <= row["really_changed"] <= row["hashes_changed"] <= row["ids_changed"] <= row["chunks"]


def test_versions__stamp_and_version_are_those_shipped(shared_db, shipped):
    row = shared_db.execute("SELECT trecho.chunker_version() AS v, trecho.chunker_stamp() AS s").fetchone()
    assert row == {"v": trecho_chunkers.CHUNKER_VERSION, "s": shipped.chunker_stamp}


def test_rights__writers_chunk_and_readers_and_strangers_do_not(dsn, make_role):
    query = "SELECT count(*) AS n FROM trecho.chunk('a.txt', 'x')"
    with open_conn(as_role(dsn, make_role("trecho_writer"))) as conn:
        assert conn.execute(query).fetchone() == {"n": 1}
    for groups in (("trecho_reader",), ()):
        with (
            open_conn(as_role(dsn, make_role(*groups))) as conn,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            conn.execute(query)


def test_rights__no_plpython_function_is_security_definer(shared_db):
    rows = shared_db.execute("""
        SELECT p.proname FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
         WHERE p.pronamespace = 'trecho'::regnamespace AND l.lanname = 'plpython3u' AND p.prosecdef
    """).fetchall()
    assert rows == []


def test_literal__sources_survive_whatever_they_hold():
    nasty = {
        "a.b": "x = '''\n\t$$ $py$ \\ \\n\n'''\r\ny = \"é 😀 \x00\x85\u2028 end\"  # {{chunker_stamp}}",
        "c": "",
    }
    text = resources.python_literal(nasty)
    assert text.isascii() and "\t" not in text
    tabbed = text.replace("\n", "\n\t")  # what PL/Python does to a body
    assert eval("(" + tabbed + ")") == nasty
