"""Random histories of edits, renames, removals, puts, passes, crashes and gc: after each pass the index is what the sources say.

What the sources say is computed from nothing, by the chunkers in this process.
"""

from __future__ import annotations

import uuid
from collections import Counter
from hashlib import sha1
from typing import Any

import psycopg
import pytest
import trecho_chunkers
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from psycopg.rows import DictRow, dict_row
from support import Connection
from trecho_chunkers.describe import describe

SETS = {"manual": "docs", "decisoes": "adr"}
BRANCHES = ("main", "ramo")
WORDS = st.sampled_from(["backup", "réplica", "índice", "vácuo", "ação"])
NAMES = {
    "manual": st.sampled_from(["m/a.md", "m/b.md", "m/c d.md", "m/é.txt"]),
    "decisoes": st.sampled_from(["d/0001-um.md", "d/0001-dois.md", "d/0002-três.md"]),
}
SET_AND_PATH = st.sampled_from(sorted(SETS)).flatmap(lambda s: st.tuples(st.just(s), NAMES[s]))
TEXTS = st.lists(WORDS, min_size=0, max_size=3).map(
    lambda words: "".join(f"## {word}\n\nTexto sobre {word}.\n\n" for word in words)
)
Files = dict[tuple[str, str], dict[str, str]]


class Index(RuleBasedStateMachine):
    """files: what the sources hold; published: what the index must hold."""

    dsn = ""

    @initialize()
    def start(self) -> None:
        self.project = f"p-{uuid.uuid4().hex}"
        self.files: Files = {(b, s): {} for b in BRANCHES for s in SETS}
        self.published: Files = {(b, s): {} for b in BRANCHES for s in SETS}
        self.put: dict[str, dict[str, str]] = {b: {} for b in BRANCHES}
        self.conn = psycopg.Connection[DictRow].connect(self.dsn, row_factory=dict_row, autocommit=True)

    def teardown(self) -> None:
        if hasattr(self, "conn"):
            self.conn.execute("SELECT trecho.drop_project(%s)", (self.project,))
            self.conn.close()

    @rule(
        branch=st.sampled_from(BRANCHES),
        edits=st.dictionaries(SET_AND_PATH, st.none() | TEXTS | TEXTS, min_size=1),
        and_publish=st.booleans(),
    )
    def edit(self, branch: str, edits: dict[tuple[str, str], str | None], and_publish: bool) -> None:
        """Some files are written, some (None) deleted; half of the time a pass over both sets follows."""
        for (source_set, path), text in edits.items():
            if text is None:
                self.files[branch, source_set].pop(path, None)
            else:
                self.files[branch, source_set][path] = text
        if and_publish:
            for source_set in SETS:
                self.reconcile(branch, source_set)

    @rule(branch=st.sampled_from(BRANCHES), source_set=st.sampled_from(sorted(SETS)), data=st.data())
    def rename(self, branch: str, source_set: str, data: st.DataObject) -> None:
        files = self.files[branch, source_set]
        if files:
            old = data.draw(st.sampled_from(sorted(files)))
            files[data.draw(NAMES[source_set])] = files.pop(old)

    @rule(branch=st.sampled_from(BRANCHES), name=st.sampled_from(["app/1.md", "app/2.md"]), text=TEXTS)
    def put_document(self, branch: str, name: str, text: str) -> None:
        self.conn.execute(
            "SELECT trecho.put_document('docs', %s, source_path => %s, project => %s, branch => %s)",
            (text, name, self.project, branch),
        )
        self.put[branch][name] = text

    @rule(branch=st.sampled_from(BRANCHES), name=st.sampled_from(["app/1.md", "app/2.md"]))
    def remove_document(self, branch: str, name: str) -> None:
        row = self.conn.execute(
            "SELECT trecho.remove_document('docs', %s, project => %s, branch => %s) AS gone",
            (name, self.project, branch),
        ).fetchone()
        assert row == {"gone": self.put[branch].pop(name, None) is not None}

    @rule(branch=st.sampled_from(BRANCHES), source_set=st.sampled_from(sorted(SETS)))
    def publish(self, branch: str, source_set: str) -> None:
        self.reconcile(branch, source_set)

    def reconcile(self, branch: str, source_set: str) -> None:
        pass_id = self._stage(self.conn, branch, source_set)
        while self._value("SELECT trecho.plan_pass(%s, 2)", pass_id):
            pass
        counts = self.conn.execute(
            "SELECT * FROM trecho.publish_pass(%s, allow_pending => true, allow_mass_delete => true)",
            (pass_id,),
        ).fetchone()
        self.conn.execute("SELECT trecho.release_pass(%s)", (self.project,))
        assert counts is not None and counts["documents_failed"] == 0
        before, after = self.published[branch, source_set], self.files[branch, source_set]
        if before == after:
            assert (counts["chunks_computed"], counts["chunks_written"], counts["placements_written"]) == (
                0,
                0,
                0,
            )
        assert counts["documents_removed"] == len(before.keys() - after.keys())
        assert counts["documents_written"] == len([p for p in after if before.get(p) != after[p]])
        self.published[branch, source_set] = dict(after)

    @rule(branch=st.sampled_from(BRANCHES), source_set=st.sampled_from(sorted(SETS)), steps=st.integers(0, 3))
    def crash(self, branch: str, source_set: str, steps: int) -> None:
        """A pass whose backend dies after some steps."""
        with psycopg.Connection[DictRow].connect(self.dsn, row_factory=dict_row, autocommit=True) as conn:
            pass_id = self._stage(conn, branch, source_set)
            for _ in range(steps):
                conn.execute("SELECT trecho.plan_pass(%s, 1)", (pass_id,))
            pid = conn.info.backend_pid
            self.conn.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))

    @rule(branch=st.sampled_from(BRANCHES), what=st.sampled_from(["gc", "gc", "gc", "drop"]))
    def clean(self, branch: str, what: str) -> None:
        if what == "gc":
            self.gc()
        else:
            self.drop_branch(branch)

    def gc(self) -> None:
        with self.conn.transaction():
            self.conn.execute("SET LOCAL trecho.grace = '0'")
            self.conn.execute("SELECT trecho.gc()")

    def drop_branch(self, branch: str) -> None:
        self.conn.execute("SELECT trecho.drop_branch(%s, %s)", (self.project, branch))
        self.put[branch] = {}
        for source_set in SETS:
            self.published[branch, source_set] = {}

    @invariant()
    def the_index_is_what_the_sources_say(self) -> None:
        for branch in BRANCHES:
            assert self._stored(branch) == self._expected(branch)

    def _value(self, query: str, *values: object) -> Any:
        row = self.conn.execute(query.encode(), values).fetchone()
        assert row is not None
        return next(iter(row.values()))

    def _stage(self, conn: Connection, branch: str, source_set: str) -> int:
        row = conn.execute(
            "SELECT trecho.begin_pass(%s, %s, %s, ARRAY[%s]::trecho.chunk_scope[]) AS id",
            (self.project, branch, source_set, SETS[source_set]),
        ).fetchone()
        assert row is not None and row["id"] is not None
        known = {
            r["path"]: r
            for r in conn.execute("SELECT * FROM trecho.pass_documents(%s)", (row["id"],)).fetchall()
        }
        published = self.published[branch, source_set]
        assert known.keys() == published.keys()
        files = self.files[branch, source_set]
        for path, text in files.items():
            if published.get(path) != text:
                conn.execute(
                    "SELECT trecho.stage_document(%s, %s::trecho.chunk_scope, %s, %s, %s)",
                    (
                        row["id"],
                        SETS[source_set],
                        path,
                        text,
                        known[path]["revision"] if path in known else None,
                    ),
                )
        gone = [r for path, r in known.items() if path not in files]
        conn.execute(
            "SELECT trecho.stage_removals(%s, %s, %s)",
            (row["id"], [r["source"] for r in gone], [r["revision"] for r in gone]),
        )
        return int(row["id"])

    def _stored(self, branch: str) -> dict[str, list[tuple[Any, ...]]]:
        documents: dict[str, list[tuple[Any, ...]]] = {
            r["source"]: []
            for r in self.conn.execute(
                "SELECT source FROM trecho.documents WHERE project = %s AND branch = %s",
                (self.project, branch),
            ).fetchall()
        }
        for r in self.conn.execute(
            "SELECT d.source, p.chunk_id, p.anchor, p.start_line, p.end_line, c.symbol, c.context, c.content"
            "  FROM trecho.placements AS p JOIN trecho.documents AS d USING (document_id)"
            "  JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key"
            " WHERE p.project = %s AND p.branch = %s ORDER BY d.source, p.ordinal",
            (self.project, branch),
        ).fetchall():
            documents[r.pop("source")].append(tuple(r.values()))
        return documents

    def _expected(self, branch: str) -> dict[str, list[tuple[Any, ...]]]:
        texts = {
            path: (scope, text)
            for s, scope in SETS.items()
            for path, text in self.published[branch, s].items()
        }
        texts |= {path: ("docs", text) for path, text in self.put[branch].items()}
        wanted = {
            path: describe(path, text, scope, self.project).doc_id for path, (scope, text) in texts.items()
        }
        claims = Counter(wanted.values())
        expected = {}
        for path, (scope, text) in texts.items():
            doc_id = wanted[path] if claims[wanted[path]] == 1 else path
            expected[path] = [
                (
                    f"{doc_id}:{c.ordinal}:{sha1(c.content.encode()).hexdigest()[:10]}",
                    f"{doc_id}#{c.anchor_path}" if c.anchor_path else doc_id,
                    c.start_line,
                    c.end_line,
                    c.symbol,
                    c.context,
                    c.content,
                )
                for c in trecho_chunkers.chunk(path, text, None, scope)
            ]
        return expected


@pytest.mark.parametrize(
    ("examples", "steps"), [(20, 20), pytest.param(40, 40, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_any_history__leaves_the_index_equal_to_one_built_from_nothing(
    dsn: str, examples: int, steps: int
) -> None:
    machine = type("IndexHere", (Index,), {"dsn": dsn})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
