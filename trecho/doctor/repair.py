"""Mend what `trecho doctor` found: texts, indexes, vectors, passages, and sets that differ from their sources."""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Iterable

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from trecho import sync
from trecho.console import note, print_error
from trecho.db import Connection, connection
from trecho.doctor.findings import EVERY_PROJECT, Finding, Report
from trecho.doctor.sources import ZERO, documents, revision_of, visit_sources
from trecho.doctor.vectors import RESAMPLED
from trecho.errors import TrechoError
from trecho.reconcile import Target
from trecho.sources import SourceFile

# Rounds of repair: mending one thing may bring another to light (a restored text, and then its passages).
_ROUNDS = 50
_REPAIR_ROWS = 1000


def repair(args: argparse.Namespace, dsn: str, report: Report) -> dict[str, int]:
    """Mend what can be mended, the database first.

    Returns: check -> how many; what a sync mends shows when one looks again.
    """
    checks = {finding.check for finding in report.findings if finding.severity != "skipped"}
    project = None if report.project == EVERY_PROJECT else report.project
    repaired: Counter[str] = Counter()
    with connection(dsn, application_name="trecho doctor", autocommit=True) as conn:
        if "texts" in checks:
            repaired["texts"] += _restore_texts(args, dsn, conn)
        if checks & {"indexes", "other indexes"}:
            repaired["indexes"] += _reindex(conn)
        for version, keys in report.wrong_vectors.items():
            conn.execute("SELECT trecho.forget_vectors(%s, %s)", (version, keys))
            repaired[RESAMPLED] += len(keys)
        for _ in range(_ROUNDS):
            rows = conn.execute(
                "SELECT * FROM trecho.repair_index(%s, NULL, %s)", (project, _REPAIR_ROWS)
            ).fetchall()
            for row in rows:
                repaired[row["check_name"]] += row["repaired"]
            recut = _recut_here(conn, project)
            repaired["passages"] += recut
            if not rows and not recut:
                break
    if checks & {"changed sources", "new sources", "removed sources", "commits behind"}:
        try:
            _sync(args, dsn)
        except TrechoError as error:  # is told, and what is left shows when one looks again
            print_error(error)
    if not args.no_embed:
        _embed(dsn, project)
    return dict(+repaired)


def _restore_texts(args: argparse.Namespace, dsn: str, conn: Connection) -> int:
    """Put texts back from their files: a file whose hash is the recorded one holds what the database lost."""
    count = 0

    def restore(target: Target, files: Iterable[SourceFile]) -> list[Finding]:
        nonlocal count
        damaged = {row["blob_sha"] for row in documents(conn, target).values() if row["damaged"]}
        for file in files:
            if damaged and file.data is not None and hashlib.sha256(file.data).digest() in damaged:
                row = conn.execute("SELECT trecho.restore_text(%s) AS done", (file.data.decode(),)).fetchone()
                count += bool(row and row["done"])
        return []

    visit_sources(args, dsn, conn, restore)
    return count


def _reindex(conn: Connection) -> int:
    """Rebuild what is not valid beside readers and writers, where this role may; repair_index does the rest."""
    row = conn.execute(
        "SELECT pg_catalog.pg_has_role(current_user, 'trecho_owner', 'MEMBER') AS may"
    ).fetchone()
    if not row or not row["may"]:
        note("note: this role is no member of trecho_owner: indexes are rebuilt while writers wait")
        return 0
    names = conn.execute(
        "SELECT c.relname AS name FROM pg_catalog.pg_index AS i"
        "  JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid"
        "  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'trecho' AND NOT (i.indisvalid AND i.indisready) ORDER BY 1"
    ).fetchall()
    count = 0
    for name in names:
        statement = sql.SQL("REINDEX INDEX CONCURRENTLY {}").format(sql.Identifier("trecho", name["name"]))
        note(statement.as_string(conn))
        try:
            conn.execute(statement)
            count += 1
        except psycopg.Error as error:
            # What is left of it is not valid either; repair_index takes its turn.
            note(f"warning: {error.diag.message_primary or error}")
    return count


def _recut_here(conn: Connection, project: str | None) -> int:
    """Where the server has no chunkers, cut damaged documents in this process."""
    row = conn.execute("SELECT trecho.chunking() AS chunking").fetchone()
    if not row or row["chunking"] != "client":
        return 0
    from trecho.client_chunking import cut

    count = 0
    for row in conn.execute("SELECT * FROM trecho.documents_to_recut(%s)", (project,)).fetchall():
        made = cut(
            row["path"], row["content"], row["scope"], {"it": row["chunk_settings"]}, row["project_name"]
        )
        if made.chunks is None:
            note(f"warning: {row['path']}: {made.error}")
            continue
        done = conn.execute(
            "SELECT trecho.recut_document(%s, %s, %s) AS done",
            (row["index_version"], row["document_id"], Jsonb(made.chunks["it"])),
        ).fetchone()
        count += bool(done and done["done"])
    return count


def _sync(args: argparse.Namespace, dsn: str) -> None:
    """What `trecho sync` does for the same sources."""
    words: list[str] = []
    if args.folder is not None:
        words.append(str(args.folder))
    for option, value in (
        ("--scope", args.scope),
        ("--set", args.set_name),
        ("--config", args.config),
        ("--project", args.project),
        ("--branch", args.branch),
    ):
        if value is not None:
            words += [option, str(value)]
    if args.git is not None:
        # No commit before it: sync reads the whole tree, since what differs may be in no commit.
        from trecho.git import Repository

        revision = revision_of(args, Repository(args.repo))
        words += ["--git", f"{ZERO}..{revision}", "--repo", str(args.repo)]
    if args.no_embed:
        words.append("--no-embed")
    parser = argparse.ArgumentParser()
    sync.configure(parser)
    sync.run(parser.parse_args(words, argparse.Namespace(dsn=dsn, json=False, debug=args.debug)))


def _embed(dsn: str, project: str | None) -> None:
    """Give what waits its vector; a provider that is down leaves it waiting, and the report says so."""
    with connection(dsn, application_name="trecho doctor", autocommit=True) as conn:
        row = conn.execute(
            "SELECT sum(pending + staged) AS waiting FROM trecho.pending_embeddings(project => %s)",
            (project,),
        ).fetchone()
    if not row or not row["waiting"]:
        return
    from trecho.embed import Only, embed_pending

    for problem in embed_pending(dsn, raise_problems=False, only=Only(project=project)).problems:
        note(f"warning: {problem}")
