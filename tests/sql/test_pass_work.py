"""How much a pass reads: rows that its statements touch, counted by the plans that the server ran; never seconds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row
from support import Connection

STEPS = ("first index", "every document changed", "every document removed")
# Measured: 40 to 110 rows for each chunk of a step. One plan that reads all documents for each of them makes that thousands.
ROWS_FOR_A_CHUNK = 200
# Twice the work is twice the rows, and a little more where a bitmap counts a row twice.
GROWTH = 2.6


def rows_touched(plan: dict[str, Any]) -> int:
    """Rows that the nodes of a plan gave or threw away."""
    kept = (
        "Actual Rows",
        "Rows Removed by Filter",
        "Rows Removed by Join Filter",
        "Rows Removed by Index Recheck",
    )
    own = sum(plan.get(key, 0) for key in kept) * plan.get("Actual Loops", 0)
    return int(own) + sum(rows_touched(below) for below in plan.get("Plans", []))


@contextmanager
def counting(conn: Connection) -> Iterator[Counter[str]]:
    """Statement -> rows that it touched, of all that run inside, however deep in functions."""
    work: Counter[str] = Counter()

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        head, mark, plan = (diagnostic.message_primary or "").partition("plan:\n")
        if mark and "duration:" in head:
            ran = json.loads(plan)
            work[ran["Query Text"]] += rows_touched(ran["Plan"])

    conn.add_notice_handler(note)
    conn.execute("SET auto_explain.log_min_duration = 0")
    yield work
    conn.execute("SET auto_explain.log_min_duration = -1")
    conn.remove_notice_handler(note)


def a_pass(conn: Connection, texts: dict[str, str]) -> None:
    row = conn.execute(
        "SELECT trecho.begin_pass('default', 'main', 'manual', '{docs}') AS pass_id"
    ).fetchone()
    assert row is not None
    begun = (row["pass_id"],)
    known = {r["path"]: r for r in conn.execute("SELECT * FROM trecho.pass_documents(%s)", begun).fetchall()}
    revisions = [known[path]["revision"] if path in known else None for path in texts]
    conn.execute(
        "SELECT trecho.stage_documents(%s, 'docs', %s, %s, %s::bigint[])",
        (*begun, list(texts), list(texts.values()), revisions),
    )
    gone = [r for path, r in known.items() if path not in texts]
    conn.execute(
        "SELECT trecho.stage_removals(%s, %s, %s)",
        (*begun, [r["source"] for r in gone], [r["revision"] for r in gone]),
    )
    conn.execute("SELECT trecho.plan_pass(%s, 1000)", begun)
    done = conn.execute(
        "SELECT * FROM trecho.publish_pass(%s, allow_pending => true, allow_mass_delete => true)", begun
    ).fetchone()
    assert done is not None and (done["documents_written"], done["documents_removed"]) == (
        len(texts),
        len(gone),
    )
    conn.execute("SELECT trecho.release_pass()")


def work_of(dsn: str, documents: int, sections: int) -> dict[str, Counter[str]]:
    """Step -> what its statements touched, in a database where autovacuum gathers no statistics."""
    texts = [
        {
            f"{n:04}.md": "".join(f"\n## Parte {s} de {n}\n\n{word} {s}.{n}.\n" for s in range(sections))
            for n in range(documents)
        }
        for word in ("Antes", "Depois")
    ]
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, autocommit=True) as conn:
        conn.execute("LOAD 'auto_explain'")
        # As from the sixth slice of a large pass on.
        conn.execute("SET plan_cache_mode = force_generic_plan")
        for setting, value in {
            "auto_explain.log_nested_statements": "on",
            "auto_explain.log_analyze": "on",
            "auto_explain.log_timing": "off",
            "auto_explain.log_format": "json",
            "auto_explain.log_level": "notice",
            "auto_explain.log_parameter_max_length": "0",
        }.items():
            conn.execute("SELECT set_config(%s, %s, false)", (setting, value))
        tables = conn.execute(
            "SELECT oid::regclass::text AS name FROM pg_class WHERE relnamespace = 'trecho'::regnamespace AND relkind = 'r'"
        ).fetchall()
        for table in tables:
            conn.execute(f"ALTER TABLE {table['name']} SET (autovacuum_enabled = off)".encode())
        work = {}
        for step, wanted in zip(STEPS, (*texts, {}), strict=True):
            with counting(conn) as work[step]:
                a_pass(conn, wanted)
        return work


@pytest.mark.parametrize(
    ("documents", "sections", "times"),
    [pytest.param(300, 2, (2, 1), id="documents"), pytest.param(60, 10, (1, 2), id="chunks of each")],
)
def test_a_pass_over_twice_as_much__touches_about_twice_the_rows(
    make_database: Callable[..., str], template: str, documents: int, sections: int, times: tuple[int, int]
) -> None:
    once = work_of(make_database(template_dbname=template), documents, sections)
    twice = work_of(make_database(template_dbname=template), documents * times[0], sections * times[1])
    for step in STEPS:
        most = twice[step].most_common(3)
        assert once[step].total() < ROWS_FOR_A_CHUNK * documents * sections, (step, once[step].most_common(3))
        assert twice[step].total() < GROWTH * once[step].total(), (step, most)
