"""trecho.metrics: figures that agree with the rows, for whoever may see them, at a cost that does not grow with chunks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row
from support import ROOT, Connection, as_role


def text_of(path: str) -> str:
    return f"# Guia\n\n## Backup\n\nO backup de {path}.\n\n## Réplica\n\nA réplica de {path}.\n"


@contextmanager
def session(dsn: str) -> Iterator[Connection]:
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, autocommit=True) as conn:
        yield conn


def metrics(conn: Connection) -> dict[tuple[str, str], float]:
    """(name, labels) -> value."""
    rows = conn.execute("SELECT name, labels, value, help FROM trecho.metrics").fetchall()
    found = {(r["name"], json.dumps(r["labels"], sort_keys=True)): r["value"] for r in rows}
    assert len(found) == len(rows)  # no series twice
    for row in rows:
        assert re.fullmatch(r"trecho_[a-z_]+", row["name"]) and row["help"].endswith(".")
        assert row["value"] is not None and row["value"] == row["value"]
    return found


def series(name: str, **labels: object) -> tuple[str, str]:
    return name, json.dumps(labels, sort_keys=True)


def put(conn: Connection, path: str, project: str = "default") -> None:
    conn.execute(
        "SELECT trecho.put_document('docs', %s, source_path => %s, project => %s)",
        (text_of(path), path, project),
    )


def value(conn: Connection, query: str, *args: object) -> Any:
    row = conn.execute(query.encode(), args or None).fetchone()
    assert row is not None
    return next(iter(row.values()))


def test_new_database__has_figures_and_nothing_in_it(shared_db: Connection) -> None:
    found = metrics(shared_db)
    assert found["trecho_usable", "{}"] == found["trecho_recipe_drift", "{}"] == 0
    assert found[series("trecho_indexes_not_usable", index_version=1)] == 0


def test_figures__agree_with_the_rows(dsn: str) -> None:
    with session(dsn) as conn:
        for path in ("a.md", "b.md"):
            put(conn, path)
        put(conn, "c.md", "outro")
        conn.execute(
            "SELECT trecho.quarantine_text(text_hash, 'teste') FROM trecho.chunks WHERE source_path = 'a.md' ORDER BY chunk_key LIMIT 1"
        )
        conn.execute(
            "INSERT INTO trecho.embedding_attempts (index_version, text_hash, attempt_count, last_error, last_attempt_at)"
            " SELECT 1, text_hash, 5, 'x', now() FROM trecho.chunks WHERE NOT quarantined ORDER BY chunk_key LIMIT 1"
        )
        pass_id = value(conn, "SELECT trecho.begin_pass('default', 'main', 's', '{docs}')")
        during = metrics(conn)
        conn.execute("SELECT trecho.stage_document(%s, 'docs', 'd.md', %s)", (pass_id, text_of("d.md")))
        value(conn, "SELECT trecho.plan_pass(%s)", pass_id)
        conn.execute("SELECT trecho.publish_pass(%s, allow_pending => true)", (pass_id,))
        conn.execute("SELECT trecho.release_pass()")
        conn.execute("SELECT trecho.refresh_lexeme_stats()")
        conn.execute('SELECT trecho.configure(\'{"model_version": "9"}\')')
        found = metrics(conn)
        place = {"project": "default", "branch": "main", "scope": "docs"}
        assert during[series("trecho_pass_running", project="default")] == 1
        assert found[series("trecho_pass_running", project="default")] == 0
        assert found[series("trecho_pass_last_outcome", project="default", outcome="published")] == 1
        assert found[series("trecho_documents", **place)] == 3
        assert found[series("trecho_documents_put", **place)] == 2
        assert found[series("trecho_documents_missing", **place)] == 0
        assert found[series("trecho_chunks", **place)] == value(
            conn, "SELECT count(*) FROM trecho.placements WHERE project = 'default'"
        )
        health = conn.execute("SELECT * FROM trecho.index_health()").fetchone()
        pending = conn.execute("SELECT * FROM trecho.pending_embeddings()").fetchone()
        assert health is not None and pending is not None
        counted = {
            kind: sum(
                v
                for (name, labels), v in found.items()
                if name == f"trecho_texts_{kind}" and json.loads(labels)["index_version"] == 1
            )
            for kind in ("pending", "failed", "quarantined")
        }
        assert counted["failed"] == health["failed_embeddings"] == pending["failed"] == 1
        assert counted["quarantined"] == health["quarantined"] == pending["quarantined"] == 1
        assert counted["pending"] > 0
        assert found["trecho_recipe_drift", "{}"] == 1
        assert found["trecho_usable", "{}"] == 1
        assert 0 <= found[series("trecho_pass_completed_age_seconds", project="default", branch="main")] < 600
        assert found[series("trecho_branch_current", project="default", branch="main")] == 1
        assert found[series("trecho_word_statistics_lag", index_version=1)] == 0
        sizes = {
            json.loads(text)["relation"]: v for (n, text), v in found.items() if n == "trecho_relation_bytes"
        }
        assert sizes.keys() >= {"chunks_1", "chunks_1_words", "chunks_1_vectors", "placements_1_pkey"}
        assert min(sizes.values()) > 0


def test_killed_pass__is_told_from_one_that_runs(dsn: str) -> None:
    with session(dsn) as conn:
        with session(dsn) as other:
            value(other, "SELECT trecho.begin_pass('default', 'main', 's', '{docs}')")
            pid = other.info.backend_pid
            put(conn, "a.md")
            assert series("trecho_pass_last_outcome", project="default", outcome="running") in metrics(conn)
            value(conn, "SELECT pg_terminate_backend(%s, 10000)", pid)
        assert series("trecho_pass_last_outcome", project="default", outcome="killed") in metrics(conn)


def test_index_that_is_lost__is_counted(dsn: str) -> None:
    with session(dsn) as conn:
        conn.execute("DROP INDEX trecho.chunks_1_words")
        assert metrics(conn)[series("trecho_indexes_not_usable", index_version=1)] == 1


def test_rights__monitors_and_operators_see_every_project_readers_theirs_and_others_nothing(
    dsn: str, make_role: Callable[..., str]
) -> None:
    reader = make_role("trecho_reader")
    with session(dsn) as conn:
        put(conn, "a.md")
        put(conn, "b.md", "outro")
        conn.execute("SELECT trecho.revoke_project('trecho_reader', '*')")
        conn.execute("SELECT trecho.grant_project(%s, 'outro')", (reader,))
    for role, projects in (
        (make_role("pg_monitor"), {"default", "outro"}),
        (make_role("trecho_operator"), {"default", "outro"}),
        (reader, {"outro"}),
        (make_role("trecho_reader"), set()),
    ):
        with session(as_role(dsn, role)) as conn:
            labels = [json.loads(labels) for _, labels in metrics(conn)]
            assert {each["project"] for each in labels if "project" in each} == projects
    with (
        session(as_role(dsn, make_role())) as conn,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        metrics(conn)


def test_cost__chunks_that_have_their_vector_are_not_read(dsn: str) -> None:
    with session(dsn) as conn:
        put(conn, "a.md")
        conn.execute("DROP INDEX trecho.chunks_1_vectors")
        vector = value(
            conn, "SELECT extnamespace::regnamespace || '.vector' FROM pg_extension WHERE extname = 'vector'"
        )
        conn.execute(
            "INSERT INTO trecho.chunks (index_version, project, scope, source_path, kind, content, content_hash, text_hash, embedding)"
            " SELECT 1, 'default', 'docs', 'x.md', 'section', 'palavra ' || n, sha256(n::text::bytea), sha256(n::text::bytea),"
            f"       ('[' || repeat('0.1,', 767) || '0.1]')::{vector} FROM generate_series(1, 3000) AS n".encode()
        )
        conn.execute("VACUUM (ANALYZE) trecho.chunks_1")
        with conn.transaction():
            assert len(metrics(conn)) > 20
            row = conn.execute(
                "SELECT seq_scan, seq_tup_read, idx_scan FROM pg_stat_xact_all_tables WHERE relid = 'trecho.chunks_1'::regclass"
            ).fetchone()
        assert row is not None and (row["seq_scan"], row["seq_tup_read"]) == (0, 0)
        assert row["idx_scan"] > 0


def test_docs__the_query_for_exporters_runs_for_a_monitor_and_every_name_is_explained(
    dsn: str, make_role: Callable[..., str]
) -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    found = re.search(r"    query: \|\n((?:      .*\n)+)", page)
    assert found is not None
    with session(dsn) as conn:
        put(conn, "a.md")
        pass_id = value(conn, "SELECT trecho.begin_pass('default', 'main', 's', '{docs}')")
        conn.execute("SELECT trecho.publish_pass(%s, allow_pending => true)", (pass_id,))
        conn.execute("SELECT trecho.refresh_lexeme_stats()")
        names = {name for name, _ in metrics(conn)}
    with session(as_role(dsn, make_role("pg_monitor"))) as conn:
        rows = conn.execute(found[1].encode()).fetchall()
    assert {row["figure"] for row in rows} == names
    assert all(v is not None for row in rows for v in row.values())
    table = page.split("## Metrics")[1].split("**Prometheus")[0]
    explained: set[str] = set()
    for line in re.findall(r"^\| (`trecho_.*?) \|", table, re.M):
        first, *others = re.findall(r"`(\w+)`", line)
        explained.add(first)
        for other in others:
            explained.add(other if other.startswith("trecho_") else first[: first.rindex("_")] + other)
            explained.add(first + other)
    assert names <= explained, names - explained
