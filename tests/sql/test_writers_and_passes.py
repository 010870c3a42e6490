"""Writers of single documents and passes over two projects, all at once for a minute: no deadlock, nothing lost."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row
from support import Connection

SECONDS = 60.0
PROJECTS = ("um", "dois")


def text_of(source: random.Random) -> str:
    """Few words, so that texts, and passages of different texts, are often equal."""
    return "".join(
        f"## {w}\n\nTexto de {w} {source.randrange(4)}.\n\n"
        for w in source.sample(["backup", "índice", "réplica", "vácuo"], 3)
    )


def connect(dsn: str) -> Connection:
    return psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, autocommit=True)


@pytest.mark.slow
def test_eight_writers_and_two_passes__no_deadlock_and_nothing_lost(dsn: str) -> None:
    end = time.monotonic() + SECONDS
    errors: list[str] = []
    put: list[dict[tuple[str, str], str]] = [{} for _ in range(8)]
    files: dict[str, dict[str, str]] = {p: {} for p in PROJECTS}
    published = dict.fromkeys(PROJECTS, 0)

    def write(number: int) -> None:
        """Puts and removes documents of its own."""
        source = random.Random(number)
        with connect(dsn) as conn:
            while time.monotonic() < end:
                project, path, text = (
                    source.choice(PROJECTS),
                    f"app/{number}/{source.randrange(20)}.md",
                    text_of(source),
                )
                if source.random() < 0.2:
                    conn.execute("SELECT trecho.remove_document('docs', %s, project => %s)", (path, project))
                    put[number].pop((project, path), None)
                else:
                    conn.execute(
                        "SELECT trecho.put_document('docs', %s, source_path => %s, project => %s)",
                        (text, path, project),
                    )
                    put[number][project, path] = text

    def reconcile(project: str) -> None:
        source = random.Random(project)
        with connect(dsn) as conn:
            while time.monotonic() < end or published[project] < 2:
                texts = {f"m/{n}.md": text_of(source) for n in range(60) if source.random() < 0.9}
                row = conn.execute(
                    "SELECT trecho.begin_pass(%s, 'main', 'm', '{docs}') AS id", (project,)
                ).fetchone()
                assert row is not None and row["id"] is not None
                known = {
                    r["path"]: r
                    for r in conn.execute("SELECT * FROM trecho.pass_documents(%s)", (row["id"],)).fetchall()
                }
                for path, text in texts.items():
                    seen = known.get(path)
                    if seen is None or seen["blob_sha"] != hashlib.sha256(text.encode()).digest():
                        conn.execute(
                            "SELECT trecho.stage_document(%s, 'docs', %s, %s, %s)",
                            (row["id"], path, text, seen["revision"] if seen else None),
                        )
                gone = [r for p, r in known.items() if p not in texts]
                conn.execute(
                    "SELECT trecho.stage_removals(%s, %s, %s)",
                    (row["id"], [r["source"] for r in gone], [r["revision"] for r in gone]),
                )
                while (conn.execute("SELECT trecho.plan_pass(%s, 10) AS n", (row["id"],)).fetchone() or {})[
                    "n"
                ]:
                    pass
                conn.execute(
                    "SELECT trecho.publish_pass(%s, allow_pending => true, allow_mass_delete => true)",
                    (row["id"],),
                )
                conn.execute("SELECT trecho.release_pass(%s)", (project,))
                files[project] = texts
                published[project] += 1

    def guarded(work: Any, *args: Any) -> None:
        try:
            work(*args)
        except BaseException as error:
            errors.append(f"{work.__name__}{args}: {error}")

    threads = [threading.Thread(target=guarded, args=(write, n)) for n in range(8)]
    threads += [threading.Thread(target=guarded, args=(reconcile, p)) for p in PROJECTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert min(published.values()) >= 2
    with connect(dsn) as conn:
        stored = {
            (r["project"], r["source"]): r["content"]
            for r in conn.execute(
                "SELECT d.project, d.source, b.content FROM trecho.documents AS d JOIN trecho.blobs AS b USING (blob_sha)"
            ).fetchall()
        }
        wrong = conn.execute(
            """
            SELECT d.source, i.chunk_count, count(p.*) AS placed FROM trecho.documents AS d
              JOIN trecho.indexed_documents AS i ON i.document_id = d.document_id AND i.blob_sha = d.blob_sha
              LEFT JOIN trecho.placements AS p ON p.document_id = d.document_id AND p.index_version = i.index_version
                   AND EXISTS (SELECT FROM trecho.chunks AS c WHERE c.index_version = p.index_version AND c.chunk_key = p.chunk_key)
             GROUP BY d.source, d.document_id, i.chunk_count HAVING count(p.*) <> i.chunk_count OR i.chunk_count <> 3
            """
        ).fetchall()
        deadlocks = conn.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    expected = {key: text for mine in put for key, text in mine.items()}
    expected |= {(project, path): text for project, texts in files.items() for path, text in texts.items()}
    assert stored == expected
    assert wrong == []
    assert deadlocks == {"deadlocks": 0}
