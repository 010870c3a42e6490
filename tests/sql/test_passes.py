"""Passes, through the public SQL: what they write, what they refuse, what beats them."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import DictRow, dict_row
from support import Connection


def text_of(name: str, word: str = "palavra") -> str:
    return f"# {name}\n\nAbertura de {name}.\n\n## Um\n\nTexto com {word} aqui.\n\n## Dois\n\nOutro texto de {name}.\n"


@contextmanager
def session(dsn: str) -> Iterator[Connection]:
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, autocommit=True) as conn:
        yield conn


def value(conn: Connection, query: str, *args: object) -> Any:
    row = conn.execute(query.encode(), args).fetchone()
    assert row is not None
    return next(iter(row.values()))


def begin(
    conn: Connection,
    source_set: str = "manual",
    kind: str = "full",
    scope: str = "docs",
    branch: str = "main",
) -> int | None:
    found = value(
        conn,
        "SELECT trecho.begin_pass('default', %s, %s, ARRAY[%s]::trecho.chunk_scope[], %s)",
        branch,
        source_set,
        scope,
        kind,
    )
    return None if found is None else int(found)


def stage(conn: Connection, pass_id: int, texts: dict[str, str], scope: str = "docs") -> None:
    """What a client does with a whole source set: compare, stage, name what is gone."""
    import hashlib

    known = {
        r["path"]: r for r in conn.execute("SELECT * FROM trecho.pass_documents(%s)", (pass_id,)).fetchall()
    }
    for path, text in texts.items():
        row = known.get(path)
        if row is None or row["blob_sha"] != hashlib.sha256(text.encode()).digest():
            conn.execute(
                "SELECT trecho.stage_document(%s, %s::trecho.chunk_scope, %s, %s, %s)",
                (pass_id, scope, path, text, row["revision"] if row else None),
            )
    gone = [r for path, r in known.items() if path not in texts]
    conn.execute(
        "SELECT trecho.stage_removals(%s, %s, %s)",
        (pass_id, [r["source"] for r in gone], [r["revision"] for r in gone]),
    )


def publish(conn: Connection, pass_id: int, **options: object) -> dict[str, Any]:
    while value(conn, "SELECT trecho.plan_pass(%s)", pass_id):
        pass
    names = "".join(f", {name} => %({name})s" for name in options)
    row = conn.execute(
        f"SELECT * FROM trecho.publish_pass(%(id)s, allow_pending => true{names})".encode(),
        {"id": pass_id, **options},
    ).fetchone()
    conn.execute("SELECT trecho.release_pass()")
    assert row is not None
    return row


def reconcile(
    conn: Connection, texts: dict[str, str], source_set: str = "manual", **options: Any
) -> dict[str, Any]:
    pass_id = begin(conn, source_set, branch=options.pop("branch", "main"))
    assert pass_id is not None
    stage(conn, pass_id, texts)
    return publish(conn, pass_id, **options)


def contents(conn: Connection, branch: str = "main") -> dict[str, str]:
    """source -> the text of its placed chunks."""
    rows = conn.execute(
        "SELECT d.source, string_agg(c.content, '|' ORDER BY p.ordinal) AS text FROM trecho.documents AS d"
        "  JOIN trecho.placements AS p USING (document_id) JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key"
        " WHERE d.branch = %s GROUP BY d.source",
        (branch,),
    ).fetchall()
    return {r["source"]: r["text"] for r in rows}


TEXTS = {f"m/{n}.md": text_of(f"Doc {n}") for n in range(6)}


def test_nothing_is_visible_before_publication_and_everything_after(dsn: str) -> None:
    with session(dsn) as conn, session(dsn) as reader:
        pass_id = begin(conn)
        assert pass_id is not None
        stage(conn, pass_id, TEXTS)
        while value(conn, "SELECT trecho.plan_pass(%s, 2)", pass_id):
            assert contents(reader) == {}
        assert value(reader, "SELECT count(*) FROM trecho.chunks") > 0
        publish(conn, pass_id)
        assert set(contents(reader)) == set(TEXTS)


def test_no_change__writes_no_row_and_cuts_no_chunk(dsn: str) -> None:
    with session(dsn) as conn:
        first = reconcile(conn, TEXTS)
        assert (first["documents_written"], first["chunks_written"]) == (6, first["chunks_computed"])
        again = reconcile(conn, TEXTS)
        keys = (
            "documents_written",
            "documents_removed",
            "chunks_computed",
            "chunks_written",
            "placements_written",
            "documents_staged",
        )
        assert {k: again[k] for k in keys} == dict.fromkeys(keys, 0)


def test_one_word__writes_the_chunk_that_holds_it(dsn: str) -> None:
    with session(dsn) as conn:
        reconcile(conn, TEXTS)
        edited = {**TEXTS, "m/3.md": text_of("Doc 3", "mudança")}
        counts = reconcile(conn, edited)
        assert (counts["documents_written"], counts["chunks_written"], counts["placements_written"]) == (
            1,
            1,
            1,
        )
        assert "mudança" in contents(conn)["m/3.md"]


def test_deleted_source__is_gone_and_its_set_alone_is_touched(dsn: str) -> None:
    with session(dsn) as conn:
        reconcile(conn, TEXTS)
        reconcile(conn, {"n/a.md": text_of("A")}, "notas")
        conn.execute("SELECT trecho.put_document('docs', %s, source_path => 'app.md')", (text_of("App"),))
        counts = reconcile(conn, {k: v for k, v in TEXTS.items() if k != "m/0.md"})
        assert counts["documents_removed"] == 1
        assert set(contents(conn)) == {*TEXTS, "n/a.md", "app.md"} - {"m/0.md"}
        assert value(conn, "SELECT pass_id FROM trecho.tombstones") == counts["pass_id"]


def test_second_pass__is_told_who_holds_the_lock_and_nothing_waits(dsn: str) -> None:
    with session(dsn) as one, session(dsn) as two:
        pass_id = begin(one)
        assert pass_id is not None and begin(two) is None
        holder = two.execute("SELECT * FROM trecho.pass_holder()").fetchone()
        assert holder is not None
        assert (holder["pass_id"], holder["backend_pid"], holder["source_set"]) == (
            pass_id,
            one.info.backend_pid,
            "manual",
        )
        with pytest.raises(psycopg.errors.ObjectInUse):
            begin(one)
        with pytest.raises(psycopg.Error) as caught:
            two.execute("SELECT trecho.publish_pass(%s)", (pass_id,))
        assert caught.value.sqlstate == "TR005"
        one.execute("SELECT trecho.abandon_pass(%s)", (pass_id,))
        one.execute("SELECT trecho.release_pass()")
        assert begin(two) is not None


def test_killed_holder__frees_the_lock_and_the_next_pass_says_so(dsn: str) -> None:
    with session(dsn) as one, session(dsn) as two:
        pass_id = begin(one)
        assert pass_id is not None
        stage(one, pass_id, TEXTS)
        value(one, "SELECT trecho.plan_pass(%s, 3)", pass_id)
        two.execute("SELECT pg_terminate_backend(%s)", (one.info.backend_pid,))
        while value(two, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", one.info.backend_pid):
            two.execute("SELECT pg_sleep(0.01)")
        counts = reconcile(two, TEXTS)
        assert counts["documents_written"] == 6
        assert value(two, "SELECT outcome FROM trecho.passes WHERE pass_id = %s", pass_id) == "abandoned"
        assert value(two, "SELECT count(*) FROM trecho.staged_documents") == 0
        # chunks that the dead pass had cut are used again
        assert counts["chunks_written"] < counts["chunks_computed"]


def claimed(conn: Connection) -> list[str]:
    """Every text that a worker would embed now."""
    rows = conn.execute("SELECT text FROM trecho.claim_embeddings('w', 1000)").fetchall()
    conn.execute("SELECT trecho.release_embeddings('w')")
    return [r["text"] for r in rows]


def pending(conn: Connection) -> int:
    return int(value(conn, "SELECT sum(pending) FROM trecho.pending_embeddings()"))


def test_what_a_killed_pass_cut__is_embedded_only_once_a_pass_wants_it_again(dsn: str) -> None:
    with session(dsn) as one, session(dsn) as two:
        pass_id = begin(one)
        assert pass_id is not None
        stage(one, pass_id, TEXTS)
        while value(one, "SELECT trecho.plan_pass(%s)", pass_id):
            pass
        everything = claimed(two)
        assert len(everything) == pending(two) == 18

        two.execute("SELECT pg_terminate_backend(%s, 10000)", (one.info.backend_pid,))
        assert (claimed(two), pending(two)) == ([], 0)
        pass_id = begin(two)
        assert pass_id is not None
        stage(two, pass_id, {"m/3.md": TEXTS["m/3.md"]})
        while value(two, "SELECT trecho.plan_pass(%s)", pass_id):
            pass
        wanted = claimed(two)
        assert len(wanted) == pending(two) == 3
        assert all("Doc 3" in text for text in wanted)
        publish(two, pass_id)
        assert sorted(claimed(two)) == sorted(wanted)


def test_gc__clears_away_what_a_killed_pass_staged_and_leaves_a_running_one(dsn: str) -> None:
    with session(dsn) as one, session(dsn) as two:
        pass_id = begin(one)
        assert pass_id is not None
        stage(one, pass_id, TEXTS)
        value(one, "SELECT trecho.plan_pass(%s)", pass_id)
        for conn in (one, two):  # the very session of the pass may call it, too
            assert value(conn, "SELECT trecho.gc()") == 0
            assert value(two, "SELECT count(*) FROM trecho.staged_documents") == 6
        two.execute("SELECT pg_terminate_backend(%s, 10000)", (one.info.backend_pid,))
        left = [value(two, "SELECT trecho.gc(4)")]
        while left[-1]:
            left.append(value(two, "SELECT trecho.gc(4)"))
        assert left == [2, 0]
        assert value(two, "SELECT count(*) FROM trecho.staged_placements") == 0
        row = two.execute("SELECT outcome, error FROM trecho.passes").fetchone()
        assert row == {"outcome": "abandoned", "error": "its connection ended before it was published"}


@pytest.mark.parametrize("how", ["removed", "edited", "abandoned"])
def test_a_text_that_nothing_places_any_more__is_not_embedded(dsn: str, how: str) -> None:
    with session(dsn) as conn:
        reconcile(conn, {"m/0.md": TEXTS["m/0.md"], "m/1.md": TEXTS["m/1.md"]})
        if how == "removed":
            conn.execute("SELECT trecho.remove_document('docs', 'm/1.md')")
        elif how == "edited":
            reconcile(conn, {"m/0.md": TEXTS["m/0.md"], "m/1.md": "# Doc 0\n\nAbertura de Doc 0.\n"})
        else:
            pass_id = begin(conn)
            assert pass_id is not None
            stage(conn, pass_id, {"m/0.md": TEXTS["m/0.md"], "m/2.md": TEXTS["m/2.md"]})
            value(conn, "SELECT trecho.plan_pass(%s)", pass_id)
            conn.execute("SELECT trecho.abandon_pass(%s)", (pass_id,))
        placed = conn.execute(
            "SELECT DISTINCT trecho.embedding_text(1, c.context, c.content) AS text FROM trecho.chunks AS c"
            " JOIN trecho.placements AS p ON p.index_version = 1 AND p.chunk_key = c.chunk_key"
        ).fetchall()
        assert sorted(claimed(conn)) == sorted(r["text"] for r in placed)
        assert pending(conn) == len(placed)


def test_put_during_a_pass__beats_it(dsn: str) -> None:
    with session(dsn) as conn, session(dsn) as app:
        reconcile(conn, TEXTS)
        pass_id = begin(conn)
        assert pass_id is not None
        stage(
            conn,
            pass_id,
            {**{k: text_of(k, "do arquivo") for k in TEXTS}, "m/novo.md": text_of("Novo", "do arquivo")},
        )
        for path in ("m/1.md", "m/novo.md"):
            app.execute(
                "SELECT trecho.put_document('docs', %s, source_path => %s)",
                (text_of("x", "da aplicação"), path),
            )
        app.execute("SELECT trecho.remove_document('docs', 'm/2.md')")
        counts = publish(conn, pass_id)
        found = contents(conn)
        assert "da aplicação" in found["m/1.md"] and "da aplicação" in found["m/novo.md"]
        assert "m/2.md" not in found
        assert "do arquivo" in found["m/0.md"]
        assert counts["documents_superseded"] == 3


def test_put_in_flight_while_a_pass_publishes__is_not_overwritten(dsn: str) -> None:
    """The put has written and not committed: publication waits for it, and leaves it alone."""
    with session(dsn) as conn, psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row) as app:
        reconcile(conn, TEXTS)
        pass_id = begin(conn)
        assert pass_id is not None
        stage(conn, pass_id, {k: text_of(k, "do arquivo") for k in TEXTS})
        while value(conn, "SELECT trecho.plan_pass(%s)", pass_id):
            pass
        app.execute(
            "SELECT trecho.put_document('docs', %s, source_path => 'm/1.md')", (text_of("x", "da aplicação"),)
        )
        done: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: done.append(publish(conn, pass_id)))
        thread.start()
        with session(dsn) as watcher:
            while not value(
                watcher, "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", conn.info.backend_pid
            ):
                watcher.execute("SELECT pg_sleep(0.01)")
        app.commit()
        thread.join()
        assert done[0]["documents_superseded"] == 1
        assert "da aplicação" in contents(conn)["m/1.md"] and "do arquivo" in contents(conn)["m/0.md"]


def test_steady_writers_of_the_same_documents__do_not_keep_a_pass_from_publishing(dsn: str) -> None:
    paths = [f"m/{n}.md" for n in range(12)]
    done, starved = threading.Event(), threading.Event()
    errors: list[str] = []

    def write(number: int) -> None:
        count = 0
        try:
            with session(dsn) as app:
                while not done.is_set():
                    count += 1
                    app.execute(
                        "SELECT trecho.put_document('docs', %s, source_path => %s)",
                        (f"# {number}\n\nPut {count}.\n", paths[(number + count) % len(paths)]),
                    )
                    if count > 5000:
                        starved.set()
                        return
        except psycopg.Error as error:
            errors.append(str(error))

    with session(dsn) as conn:
        reconcile(conn, {path: text_of(path) for path in paths})
        writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for writer in writers:
            writer.start()
        try:
            for word in ("um", "dois", "três"):
                counts = reconcile(conn, {path: text_of(path, word) for path in paths})
                # Each is published, or what an application wrote since it was read stays.
                assert counts["documents_written"] + counts["documents_superseded"] == len(paths)
        finally:
            done.set()
            for writer in writers:
                writer.join()
        assert errors == []
        assert not starved.is_set()
        # Once nobody writes, the next pass makes them what the source says.
        reconcile(conn, {path: text_of(path, "fim") for path in paths})
        assert all("fim" in text for text in contents(conn).values())


def test_a_renamed_file__names_the_successor_of_each_passage(dsn: str) -> None:
    """A passage that somebody cited is found at its new path; what only went, or only came, has no successor."""
    same = text_of("Igual")
    with session(dsn) as conn:
        old = {
            **{f"antes/{n}.md": text_of(f"D{n}") for n in range(3)},
            "vai.md": text_of("Vai"),
            "com-id.md": "---\nid: fixo\n---\n" + text_of("Fixo"),
            "copia.md": same,
            "fica.md": text_of("Fica"),
        }
        reconcile(conn, old)
        before = conn.execute("SELECT chunk_id FROM trecho.placements ORDER BY 1").fetchall()
        new = {path.replace("antes/", "depois/"): text for path, text in old.items() if path != "vai.md"}
        new |= {"novo-id.md": new.pop("com-id.md"), "copia-1.md": same, "copia-2.md": new.pop("copia.md")}
        counts = reconcile(conn, new)
        assert counts["chunks_written"] > 0 and counts["documents_removed"] == 6
        seen = set()
        for row in before:
            chunk_id = row["chunk_id"]
            doc_id = chunk_id.partition(":")[0]
            resolved = conn.execute("SELECT * FROM trecho.resolve(%s)", (chunk_id,)).fetchone()
            assert resolved is not None
            expected = {
                "vai.md": ("retired", None),
                "fixo": ("live", None),
                "fica.md": ("live", None),
                "copia.md": ("retired", chunk_id.replace("copia.md", "copia-1.md")),
            }.get(doc_id, ("retired", chunk_id.replace("antes/", "depois/")))
            assert (resolved["state"], resolved["successor"]) == expected
            seen.add(doc_id)
            if resolved["successor"]:
                after = conn.execute("SELECT * FROM trecho.resolve(%s)", (resolved["successor"],)).fetchone()
                assert after is not None and (after["state"], after["content"]) == (
                    "live",
                    resolved["content"],
                )
        assert len(seen) == 7
        # And back: the old ids live again.
        reconcile(conn, old)
        assert {value(conn, "SELECT state FROM trecho.resolve(%s)", row["chunk_id"]) for row in before} == {
            "live"
        }


def test_two_sets_that_claim_one_source__are_an_error_naming_both(dsn: str) -> None:
    with session(dsn) as conn:
        reconcile(conn, TEXTS)
        counts = reconcile(conn, {"m/0.md": "# Outro\n\ntexto\n", "z.md": text_of("Z")}, "notas")
        assert counts["documents_failed"] == 1
        assert (
            "manual" in counts["errors"][0]
            and "notas" in counts["errors"][0]
            and "m/0.md" in counts["errors"][0]
        )
        assert "Doc 0" in contents(conn)["m/0.md"] and "z.md" in contents(conn)


def test_a_text_that_chunkers_refuse__is_named_without_a_prefix_of_their_language(dsn: str) -> None:
    with session(dsn) as conn:
        counts = reconcile(conn, {"grande.md": "x" * 600_000, "z.md": text_of("Z")}, "notas")
        assert counts["errors"][0].startswith("grande.md: text of 600000 bytes is over")
        assert (counts["documents_failed"], counts["documents_written"]) == (1, 1)


def test_two_claims_to_one_id_in_a_pass__fail_those_two_and_publish_the_rest(dsn: str) -> None:
    claim = "---\nid: politica\n---\n# {}\n\ntexto\n"
    with session(dsn) as conn:
        counts = reconcile(conn, {"a.md": claim.format("A"), "b.md": claim.format("B"), "c.md": text_of("C")})
        assert counts["documents_failed"] == 2 and set(contents(conn)) == {"c.md"}
        assert all("a.md" in e and "b.md" in e for e in counts["errors"])
        counts = reconcile(conn, {"a.md": claim.format("A"), "b.md": text_of("B"), "c.md": text_of("C")})
        assert counts["documents_failed"] == 0 and set(contents(conn)) == {"a.md", "b.md", "c.md"}
        # an id may move from one document to another in one pass
        counts = reconcile(conn, {"a.md": text_of("A"), "b.md": claim.format("B"), "c.md": text_of("C")})
        assert counts["documents_failed"] == 0
        assert value(conn, "SELECT source FROM trecho.documents WHERE doc_id = 'politica'") == "b.md"


# Documents of the pass after which a next one begins, and the id each claims: none, a plain one, or the path of another.
PATHS = ("a.md", "b.md", "c.md", "d.md")
SOURCE_SETS = st.dictionaries(st.sampled_from(PATHS), st.sampled_from((None, "um", "dois", *PATHS)))


def clashes(
    staged: dict[str, str | None], standing: dict[str, str | None]
) -> dict[str, set[tuple[str, str]]]:
    """What the design asks for, the plain way: staged path in error -> the (id, other path) that may be named."""
    errors: dict[str, set[tuple[str, str]]] = {}
    while True:
        sound = {path: claim for path, claim in staged.items() if path not in errors}
        future = {**{path: claim for path, claim in standing.items() if path not in sound}, **sound}
        found: dict[str, set[tuple[str, str]]] = {}
        for path in sound:
            for other in future.keys() - {path}:
                mine, theirs = future[path], future[other]
                if mine is not None and mine in (theirs, other):
                    found.setdefault(path, set()).add((mine, other))
                if theirs == path:
                    found.setdefault(path, set()).add((path, other))
        if not found:
            return errors
        errors |= found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(passes=st.lists(SOURCE_SETS, min_size=1, max_size=3))
def test_claims_to_one_id__are_refused_as_the_plain_rule_says(
    dsn: str, passes: list[dict[str, str | None]]
) -> None:
    branch = uuid.uuid4().hex
    published: dict[str, str | None] = {}
    with session(dsn) as conn:
        for round_, wanted in enumerate(passes):
            texts = {
                path: (f"---\nid: {claim}\n---\n" if claim else "") + f"# {path}\n\nTexto {round_}.\n"
                for path, claim in wanted.items()
            }
            counts = reconcile(conn, texts, branch=branch, allow_mass_delete=True)
            expected = clashes(wanted, {path: claim for path, claim in published.items() if path in wanted})
            told = {}
            for error in counts["errors"]:
                match = re.fullmatch(r"(\S+): doc_id (\S+) is also claimed by (\S+)", error)
                assert match is not None, error
                told[match[1]] = (match[2], match[3])
            assert told.keys() == expected.keys()
            assert all(told[path] in expected[path] for path in told)
            published = {
                path: published.get(path) if path in expected else claim
                for path, claim in wanted.items()
                if path in published or path not in expected
            }
            stands = conn.execute(
                "SELECT source, CASE WHEN doc_id_claimed THEN wanted_doc_id END AS claim FROM trecho.documents WHERE branch = %s",
                (branch,),
            ).fetchall()
            assert {row["source"]: row["claim"] for row in stands} == published


def test_stage_documents__stages_what_stage_document_does_one_by_one(dsn: str) -> None:
    uuid = "11111111-1111-4111-8111-111111111111"
    session_text = f'{{"session_id": "{uuid}", "role": "user", "content": "Olá."}}\n'
    cases: list[tuple[str, list[tuple[str, str]]]] = [
        ("docs", [(p, text_of(p)) for p in ("m/novo.md", "m/0.md", "app/1.md", "x/outro.md", "s/1.jsonl")]),
        (
            "docs",
            [("m/2.md", "um"), ("m/2.md", "dois"), ("m/3.md", "um")],
        ),  # a path twice: the last one counts
        ("session", [("s/1.jsonl", session_text), ("s/2.jsonl", session_text.replace("1111-", "2222-"))]),
    ]
    staged = (
        "SELECT source, action, scope::text, source_path, session_id::text, base_revision, encode(blob_sha, 'hex') AS sha, metadata, error"
        "  FROM trecho.staged_documents ORDER BY source"
    )
    with session(dsn) as conn:
        reconcile(conn, TEXTS)
        reconcile(conn, {"x/outro.md": "de outro"}, source_set="outro")
        conn.execute("SELECT trecho.put_document('docs', 'app', source_path => 'app/1.md')")
        pass_id = begin(conn, scope="session")
        assert pass_id is not None
        stage(conn, pass_id, {**TEXTS, "s/1.jsonl": session_text}, scope="session")
        publish(conn, pass_id)
        for scope, documents in cases:
            got = []
            for many in (True, False):
                pass_id = begin(conn)
                assert pass_id is not None
                found = conn.execute("SELECT * FROM trecho.pass_documents(%s)", (pass_id,)).fetchall()
                known = {r["path"]: r["revision"] for r in found}
                if many:
                    count = value(
                        conn,
                        "SELECT trecho.stage_documents(%s, %s::trecho.chunk_scope, %s, %s, %s::bigint[])",
                        pass_id,
                        scope,
                        [path for path, _ in documents],
                        [text for _, text in documents],
                        [known.get(path) for path, _ in documents],
                    )
                    assert count == len(documents)
                else:
                    for path, text in documents:
                        conn.execute(
                            "SELECT trecho.stage_document(%s, %s::trecho.chunk_scope, %s, %s, %s)",
                            (pass_id, scope, path, text, known.get(path)),
                        )
                got.append(conn.execute(staged).fetchall())
                conn.execute("SELECT trecho.abandon_pass(%s)", (pass_id,))
                conn.execute("SELECT trecho.release_pass()")
            assert got[0] == got[1] != []


@pytest.mark.parametrize(
    ("sqlstate", "scope", "paths", "contents", "revisions"),
    [
        ("2202E", "docs", ["a.md"], ["a", "b"], [None]),
        ("2202E", "docs", ["a.md"], ["a"], [None, None]),
        ("22004", "docs", ["a.md", "b.md"], ["a", None], [None, None]),
        ("22004", "docs", ["a.md", ""], ["a", "b"], [None, None]),
        ("22004", None, ["a.md"], ["a"], [None]),
        ("22023", "docs", ["a.md", "x" * 1001], ["a", "b"], [None, None]),
    ],
)
def test_stage_documents__a_bad_batch_is_refused_and_nothing_of_it_staged(
    dsn: str, sqlstate: str, scope: str | None, paths: list[str], contents: list[Any], revisions: list[Any]
) -> None:
    with session(dsn) as conn:
        pass_id = begin(conn)
        with pytest.raises(psycopg.DatabaseError) as caught:
            conn.execute(
                "SELECT trecho.stage_documents(%s, %s::trecho.chunk_scope, %s, %s, %s::bigint[])",
                (pass_id, scope, paths, contents, revisions),
            )
        assert caught.value.sqlstate == sqlstate
        assert value(conn, "SELECT count(*) FROM trecho.staged_documents") == 0


def test_mass_delete__is_refused_and_allowed_when_said(dsn: str) -> None:
    many = {f"{n:02}.md": text_of(str(n)) for n in range(40)}
    with session(dsn) as conn:
        reconcile(conn, many)
        pass_id = begin(conn)
        assert pass_id is not None
        stage(conn, pass_id, dict(list(many.items())[:15]))
        with pytest.raises(psycopg.Error) as caught:
            conn.execute("SELECT trecho.publish_pass(%s)", (pass_id,))
        assert caught.value.sqlstate == "TR009" and "25" in str(caught.value) and "40" in str(caught.value)
        assert len(contents(conn)) == 40
        counts = publish(conn, pass_id, allow_mass_delete=True)
        assert counts["documents_removed"] == 25 and len(contents(conn)) == 15
        # a source that turns out empty is refused whatever its size
        reconcile(conn, {"so.md": text_of("só")}, "pequeno")
        with pytest.raises(psycopg.Error) as caught:
            reconcile(conn, {}, "pequeno")
        assert caught.value.sqlstate == "TR009"
        # half is not over half
        conn.execute("SELECT trecho.abandon_pass(pass_id) FROM trecho.passes WHERE outcome = 'running'")
        conn.execute("SELECT trecho.release_pass()")


def test_publishing_what_is_not_planned_or_embedded__is_refused(dsn: str) -> None:
    with session(dsn) as conn:
        pass_id = begin(conn)
        assert pass_id is not None
        stage(conn, pass_id, TEXTS)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="6 documents"):
            conn.execute("SELECT trecho.publish_pass(%s)", (pass_id,))
        while value(conn, "SELECT trecho.plan_pass(%s)", pass_id):
            pass
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="vectors"):
            conn.execute("SELECT trecho.publish_pass(%s)", (pass_id,))
        conn.execute("UPDATE trecho.chunks SET embedding = array_fill(0.5::real, ARRAY[768])::vector")
        row = conn.execute("SELECT * FROM trecho.publish_pass(%s)", (pass_id,)).fetchone()
        assert row is not None and row["documents_written"] == 6
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="already published"):
            conn.execute("SELECT trecho.plan_pass(%s)", (pass_id,))


def test_a_text_that_cannot_be_chunked__is_named_and_the_rest_published(dsn: str) -> None:
    with session(dsn) as conn:
        counts = reconcile(conn, {"ok.md": text_of("ok"), "grande.md": "x" * 600_000})
        assert set(contents(conn)) == {"ok.md"}
        assert counts["documents_failed"] == 1 and counts["errors"][0].startswith("grande.md: ")


def test_branch_that_differs_in_one_file__adds_the_rows_of_that_file(dsn: str) -> None:
    with session(dsn) as conn:
        reconcile(conn, TEXTS)
        before = value(conn, "SELECT count(*) FROM trecho.chunks")
        counts = reconcile(conn, {**TEXTS, "m/5.md": text_of("Doc 5", "ramo")}, branch="ramo")
        assert counts["chunks_written"] == 1
        assert value(conn, "SELECT count(*) FROM trecho.chunks") == before + 1
        assert "ramo" in contents(conn, "ramo")["m/5.md"] and "ramo" not in contents(conn)["m/5.md"]
        assert value(conn, "SELECT trecho.drop_branch('default', 'ramo')") == 6
        assert contents(conn, "ramo") == {} and set(contents(conn)) == set(TEXTS)


def test_planning_by_several_connections__cuts_each_document_once(dsn: str) -> None:
    many = {f"{n:03}.md": text_of(f"Doc {n}") for n in range(60)}
    with session(dsn) as conn:
        pass_id = begin(conn)
        assert pass_id is not None
        stage(conn, pass_id, many)
        planned: list[int] = []

        def plan() -> None:
            with session(dsn) as own:
                while n := value(own, "SELECT trecho.plan_pass(%s, 7)", pass_id):
                    planned.append(n)

        threads = [threading.Thread(target=plan) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(planned) == 60
        counts = publish(conn, pass_id)
        assert (
            counts["chunks_computed"]
            == counts["chunks_written"]
            == sum(t.count("|") + 1 for t in contents(conn).values())
        )


def test_a_document_whose_placements_were_lost__heals_on_the_next_pass(dsn: str) -> None:
    with session(dsn) as conn:
        reconcile(conn, TEXTS)
        whole = contents(conn)
        conn.execute(
            "DELETE FROM trecho.placements WHERE document_id = (SELECT document_id FROM trecho.documents WHERE source = 'm/1.md')"
        )
        conn.execute(
            "DELETE FROM trecho.indexed_documents WHERE document_id = (SELECT document_id FROM trecho.documents WHERE source = 'm/1.md')"
        )
        counts = reconcile(conn, TEXTS)
        assert counts["documents_written"] == 1 and contents(conn) == whole


def test_bulk_load__builds_the_indexes_again_and_only_on_an_empty_version(dsn: str) -> None:
    indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'trecho' AND indexname IN ('chunks_1_words', 'chunks_1_vectors')"
    with session(dsn) as conn:
        pass_id = begin(conn)
        assert pass_id is not None
        assert value(conn, "SELECT trecho.begin_bulk_load(%s, 19)", pass_id) is False
        assert value(conn, indexes) == 2
        assert value(conn, "SELECT trecho.begin_bulk_load(%s, 20)", pass_id) is True
        assert value(conn, indexes) == 0
        stage(conn, pass_id, TEXTS)
        while value(conn, "SELECT trecho.plan_pass(%s)", pass_id):
            pass
        conn.execute("SELECT trecho.end_bulk_load()")
        assert value(conn, indexes) == 2
        publish(conn, pass_id)
        pass_id = begin(conn)
        assert value(conn, "SELECT trecho.begin_bulk_load(%s, 20)", pass_id) is False
        assert value(conn, indexes) == 2


def test_bulk_load__puts_vectors_on_their_chunks_without_staging_them(dsn: str) -> None:
    with session(dsn) as conn:
        pass_id = begin(conn)
        assert pass_id is not None
        assert value(conn, "SELECT trecho.begin_bulk_load(%s)", pass_id) is True
        stage(conn, pass_id, TEXTS | {"m/copy.md": TEXTS["m/0.md"]})
        while value(conn, "SELECT trecho.plan_pass(%s)", pass_id):
            pass
        rows = conn.execute("SELECT text_hash FROM trecho.claim_embeddings('w', 1000)").fetchall()
        stored = value(
            conn,
            "SELECT trecho.store_embeddings('w', 1, %s, ARRAY(SELECT (array_fill(0.05::real, '{384}')"
            " || array_fill(0::real, '{384}'))::vector FROM generate_series(1, %s)))",
            [r["text_hash"] for r in rows],
            len(rows),
        )
        assert stored == len(rows) == 18
        assert value(conn, "SELECT count(*) FROM trecho.staged_embeddings") == 0
        assert value(conn, "SELECT count(*) FROM trecho.embedding_attempts") == 0
        assert value(conn, "SELECT count(*) FROM trecho.chunks WHERE embedding IS NULL") == 0
        conn.execute("SELECT trecho.end_bulk_load()")
        publish(conn, pass_id)
        health = conn.execute("SELECT current, chunks FROM trecho.index_health()").fetchone()
        assert health == {"current": True, "chunks": 21}


def store_all(conn: Connection, version: int) -> int:
    """Give every text that waits a vector. Returns how many did."""
    rows = conn.execute(
        "SELECT text_hash FROM trecho.claim_embeddings('w', 10000, 100000000, index_version => %s)",
        (version,),
    ).fetchall()
    stored = value(
        conn,
        "SELECT trecho.store_embeddings('w', %s, %s, ARRAY(SELECT (array_fill(0.05::real, '{384}')"
        " || array_fill(0::real, '{384}'))::vector FROM generate_series(1, %s)))",
        version,
        [r["text_hash"] for r in rows],
        len(rows),
    )
    while value(conn, "SELECT trecho.apply_embeddings(%s)", version):
        pass
    return int(stored)


def test_a_new_version_of_much__is_loaded_without_search_indexes_and_no_writer_waits_for_them(
    dsn: str,
) -> None:
    indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'trecho' AND indexname IN ('chunks_2_words', 'chunks_2_vectors')"
    with session(dsn) as conn, session(dsn) as app:
        reconcile(conn, {f"m/{n}.md": f"# Doc {n}\n\nTexto {n}.\n" for n in range(200)})
        assert value(conn, "SELECT trecho.begin_version_build(true)") == 2
        assert value(conn, indexes) == 0
        while value(conn, "SELECT trecho.backfill_version(2, 100)"):
            pass
        assert store_all(conn, 2) == 200
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="no search indexes"):
            conn.execute("SELECT trecho.activate_version(2)")

        with conn.transaction():
            assert value(conn, "SELECT trecho.end_bulk_load(2)") is True
            # Not committed: whoever wrote into the version now would wait.
            app.execute("SET lock_timeout = '10s'")
            app.execute("SELECT trecho.put_document('docs', 'Novo.', source_path => 'app/novo.md')")
            app.execute("SELECT trecho.remove_document('docs', 'm/3.md')")
            assert value(app, "SELECT count(*) FROM trecho.search('novo', mode => 'lexical')") == 1
        assert value(conn, indexes) == 2
        assert value(conn, "SELECT trecho.end_bulk_load(2)") is False
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="1 documents"):
            conn.execute("SELECT trecho.activate_version(2)")
        assert value(conn, "SELECT trecho.backfill_version(2)") == 0
        assert store_all(conn, 2) == 1
        assert value(conn, "SELECT trecho.activate_version(2)") is True
        assert value(conn, "SELECT count(*) FROM trecho.search('novo', mode => 'lexical')") == 1
        assert (
            value(
                conn,
                "SELECT count(*) FROM trecho.search('doc 3', mode => 'lexical', path_prefix => 'm/3.md')",
            )
            == 0
        )


def test_a_sync_beside_a_build__leaves_the_indexes_of_the_new_version_to_its_end(dsn: str) -> None:
    with session(dsn) as conn:
        texts = {f"m/{n}.md": f"# Doc {n}\n\nTexto {n}.\n" for n in range(200)}
        reconcile(conn, texts)
        value(conn, "SELECT trecho.begin_version_build(true)")
        reconcile(conn, texts | {"m/7.md": "# Doc 7\n\nOutro.\n"})
        assert value(conn, "SELECT trecho.end_bulk_load()") is False
        assert value(conn, "SELECT to_regclass('trecho.chunks_2_vectors') IS NULL") is True


def test_a_reader_in_a_loop__sees_one_generation_or_the_other(
    dsn: str, make_database: Callable[..., str]
) -> None:
    """Every document of a generation says its number; no reading may hold two numbers, or none."""
    stop = threading.Event()
    seen: list[set[str]] = []

    def read() -> None:
        with session(dsn) as reader:
            while not stop.is_set():
                seen.append(
                    {
                        word
                        for text in contents(reader).values()
                        for word in text.split()
                        if word.startswith("geração")
                    }
                )

    def generation(number: int) -> dict[str, str]:
        return {f"{n}.md": f"# {n}\n\ngeração{number}\n" for n in range(30)}

    with session(dsn) as conn:
        reconcile(conn, generation(0))
        thread = threading.Thread(target=read)
        thread.start()
        try:
            for number in range(1, 6):
                reconcile(conn, generation(number))
        finally:
            stop.set()
            thread.join()
    assert len(seen) > 5
    assert [s for s in seen if len(s) != 1] == []


def test_a_version_begun_after_the_plan__is_not_told_that_it_has_the_documents(dsn: str) -> None:
    """What was planned for the active version alone is left to the backfill of the new one."""
    with session(dsn) as conn, session(dsn) as other:
        reconcile(conn, TEXTS)
        pass_id = begin(conn)
        assert pass_id is not None
        edited = {**TEXTS, "m/1.md": text_of("Doc 1", "mudança"), "m/novo.md": text_of("Novo")}
        stage(conn, pass_id, edited)
        while value(conn, "SELECT trecho.plan_pass(%s)", pass_id):
            pass
        version = value(other, "SELECT trecho.begin_version_build(true)")
        while value(other, "SELECT trecho.backfill_version(%s)", version):
            pass
        publish(conn, pass_id)
        while value(other, "SELECT trecho.backfill_version(%s)", version):
            pass
        texts = (
            "SELECT string_agg(c.content, '|' ORDER BY d.source, p.ordinal) FROM trecho.placements AS p JOIN trecho.documents AS d USING (document_id)"
            "  JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key WHERE p.index_version = %s"
        )
        assert value(conn, texts, version) == value(conn, texts, 1)
        assert "mudança" in value(conn, texts, version)


@pytest.mark.parametrize("call", ["plan_pass", "unplanned_documents"])
def test_a_batch_of_a_plan__reads_what_it_takes_and_not_all_that_is_staged(dsn: str, call: str) -> None:
    """Else a plan costs the square of its documents. At the beginning, and when half of them are planned; no statistics, as in a first pass."""
    query = b"SELECT count(*) FROM trecho." + call.encode() + b"(%s, 10)"
    reads = b"""SELECT pg_stat_get_xact_tuples_returned('trecho.staged_documents'::regclass)
                     + (SELECT sum(pg_stat_get_xact_tuples_returned(i.indexrelid) + pg_stat_get_xact_tuples_fetched(i.indexrelid))
                          FROM pg_index AS i WHERE i.indrelid = 'trecho.staged_documents'::regclass)"""
    with session(dsn) as conn:
        pass_id = begin(conn)
        paths = [f"d/{i:04}.md" for i in range(2000)]
        conn.execute(
            "SELECT trecho.stage_documents(%s, 'docs', %s, %s, %s)",
            (pass_id, paths, paths, [None] * len(paths)),
        )
        for _ in range(2):
            read = 400
            for _ in range(60):
                with conn.transaction():
                    before = value(conn, reads.decode())
                    conn.execute(query, (pass_id,))
                    read = value(conn, reads.decode()) - before
                if read < 400:
                    break
                time.sleep(
                    0.5
                )  # an ANALYZE by the server holds a snapshot: what is planned is not forgotten before
            assert read < 400
            while (
                value(conn, "SELECT count(*) AS n FROM trecho.unplanned_documents(%s, 2000)", pass_id) > 1000
            ):
                conn.execute("SELECT trecho.plan_pass(%s, 200)", (pass_id,))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("session_id => gen_random_uuid()", "document e.md of scope docs has session_id"),
        ("metadata => '[1]'", "metadata of document e.md must be a JSON object, got array"),
        ("metadata => 'null'", "metadata of document e.md must be a JSON object, got null"),
    ],
)
def test_what_could_never_be_published__is_refused_when_it_is_staged(dsn: str, more: str, said: str) -> None:
    with session(dsn) as conn:
        pass_id = begin(conn)
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=said) as caught:
            conn.execute(
                f"SELECT trecho.stage_document(%s, 'docs', 'e.md', 'x', {more})".encode(), (pass_id,)
            )
        assert caught.value.diag.message_hint


@pytest.mark.parametrize(
    ("errors", "kept"),
    [
        ("ARRAY[NULL, 'x']", ["x"]),
        ("ARRAY[['a', 'b'], ['c', 'd']]", ["a", "b", "c", "d"]),
        ("'[1500:1501]={a,b}'", ["a", "b"]),
        ("NULL", []),
        ("'{}'", []),
    ],
)
def test_errors_of_the_client__are_counted_and_kept_in_any_shape(
    dsn: str, errors: str, kept: list[str]
) -> None:
    with session(dsn) as conn:
        pass_id = begin(conn)
        row = conn.execute(
            f"SELECT documents_failed, errors FROM trecho.publish_pass(%s, errors => {errors})".encode(),
            (pass_id,),
        ).fetchone()
        assert row == {"documents_failed": len(kept), "errors": kept}
        assert value(conn, "SELECT failed_documents FROM trecho.index_health()") == len(kept)


@pytest.mark.parametrize("wrong", ["skipped => '[1]'", "last_commit => ''"])
def test_what_would_spoil_the_record_of_a_pass__is_refused(dsn: str, wrong: str) -> None:
    with session(dsn) as conn:
        pass_id = begin(conn)
        with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
            conn.execute(f"SELECT trecho.publish_pass(%s, {wrong})".encode(), (pass_id,))
        assert caught.value.diag.message_hint
