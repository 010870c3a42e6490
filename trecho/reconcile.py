"""Drive one pass: begin, stage what differs, plan, embed, publish. The database decides; this reads and reports."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from trecho.db import Connection, connect
from trecho.errors import LockNotHeld, from_database
from trecho.sources import SourceFile

# Documents sent in one pipeline, and their most characters: few round trips, bounded memory.
_STAGE_BATCH = 100
_STAGE_SIZE = 4 << 20
# Characters that trecho.publish_pass keeps of an error.
_ERROR_CHARS = 2000
# Documents chunked in one transaction.
_PLAN_BATCH = 50
# A deadlock with an application that puts several documents in one transaction: plan again, this often at most.
_PLAN_TRIES = 5

# Embeds what a pass is about to place; gets its connection and its id, and tells progress.
# Returns (texts embedded, provider calls, texts given up).
Embedder = Callable[[Connection, int, Callable[[int, int], None]], tuple[int, int, int]]


@dataclass(frozen=True)
class Target:
    """Which documents a pass makes true. kind: full (what is not seen is removed) or difference."""

    project: str
    branch: str
    source_set: str
    scope: str
    kind: str = "full"


@dataclass(frozen=True)
class Options:
    """How a pass works.

    embed: None publishes without vectors. removed: for a difference, the paths that are gone. last_commit,
    rules: recorded for the branch. jobs: connections that
    chunk at once, 0 for one per core up to 4.
    """

    embed: Embedder | None = None
    client_chunking: bool = False
    allow_mass_delete: bool = False
    removed: frozenset[str] | None = None
    last_commit: str | None = None
    rules: str | None = None
    jobs: int = 0


@dataclass
class Outcome:
    """What a pass did.

    state: published, skipped (another pass runs; holder says which) or waiting (vectors are missing). counts: the row
    of trecho.passes. skipped: reason -> files left out. failed: one line per document that could not be published.
    quarantined: texts of its documents that the secret scan holds back. texts_failed: texts that the provider does not
    embed, where it was asked.
    """

    project: str
    branch: str
    source_set: str
    state: str = "published"
    holder: dict[str, Any] | None = None
    counts: dict[str, Any] = field(default_factory=dict)
    unchanged: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    skipped_files: list[tuple[str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    embedded: int = 0
    provider_calls: int = 0
    texts_failed: int = 0
    quarantined: int = 0


class Progress:
    """How far a pass is; this one says nothing."""

    def stage(self, done: int) -> None:
        """Files read so far."""

    def plan(self, done: int, total: int) -> None:
        """Documents chunked so far."""

    def embed(self, done: int, total: int) -> None:
        """Texts embedded so far."""

    def phase(self, name: str) -> None:
        """A step without a count begins."""


def run_pass(
    dsn: str,
    target: Target,
    files: Iterable[SourceFile],
    options: Options,
    progress: Progress | None = None,
    conn: Connection | None = None,
) -> Outcome:
    """Make the index equal to `files`: the whole source set, or for a difference what changed.

    conn: holds the lock, in autocommit mode and left open; without it one is opened. More are opened to chunk.
    Raises: TrechoError; the pass is abandoned then, and what searches see is unchanged.
    """
    with (
        nullcontext(conn) if conn else connect(dsn, application_name="trecho sync", autocommit=True) as holder
    ):
        refuse_pooler(holder)
        # An idle session must not lose the lock, and the server must notice when this client is gone.
        holder.execute("SET idle_session_timeout = 0")
        holder.execute("SET client_connection_check_interval = '10s'")
        return _Pass(dsn, holder, target, options, progress or Progress()).run(files)


def refuse_pooler(conn: Connection) -> None:
    """Through a pooler the session is not ours and its advisory lock means nothing. Raises: LockNotHeld."""
    if (
        os.environ.get("TRECHO_POOLER") != "session"
        and _value(conn, "SELECT pg_backend_pid()") != conn.info.backend_pid
    ):
        raise LockNotHeld(
            "this connection goes through a pooler (its backend is not the one that the server announced)",
            hint="Connect to PostgreSQL itself; if the pooler works in session mode, set TRECHO_POOLER=session.",
        )


class _CannotDescribe(Exception):
    """The chunkers of this process refuse a text."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.sqlstate: str = error.sqlstate


@dataclass
class _Seen:
    """Paths that a source has. unreadable: what cannot be read now, where a folder ends in a slash."""

    changed: set[str] = field(default_factory=set)
    unchanged: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)


@dataclass
class _Pass:
    """One pass on the connection that holds its lock."""

    dsn: str
    conn: Connection
    target: Target
    options: Options
    progress: Progress
    pass_id: int = 0

    def run(self, files: Iterable[SourceFile]) -> Outcome:
        target = self.target
        outcome = Outcome(target.project, target.branch, target.source_set)
        begun = None
        # A holder that ended between the two questions is no reason to skip.
        for _ in range(100):
            begun = _value(
                self.conn,
                "SELECT trecho.begin_pass(%s, %s, %s, ARRAY[%s]::trecho.chunk_scope[], %s)",
                target.project,
                target.branch,
                target.source_set,
                target.scope,
                target.kind,
            )
            if begun is not None:
                break
            holder = self.conn.execute("SELECT * FROM trecho.pass_holder(%s)", (target.project,)).fetchone()
            if holder:
                outcome.holder = dict(holder)
                break
        if begun is None:
            outcome.state = "skipped"
            return outcome
        self.pass_id = begun
        self.conn.execute(
            "SELECT set_config('application_name', %s, false)", (f"trecho pass {self.pass_id}",)
        )
        try:
            self._reconcile(files, outcome)
        except BaseException as error:
            self._abandon(str(error).strip().partition("\n")[0] or type(error).__name__)
            if isinstance(error, psycopg.Error):
                raise from_database(error) from error
            raise
        finally:
            if not self.conn.closed:
                self.conn.execute("SELECT trecho.release_pass(%s)", (target.project,))
        if outcome.state == "published" and outcome.counts["placements_written"]:
            self.progress.phase("statistics")
            self.conn.execute("SELECT trecho._after_publish(%s)", (outcome.counts["index_version"],))
        return outcome

    def _reconcile(self, files: Iterable[SourceFile], outcome: Outcome) -> None:
        staged = self._stage(files, outcome)
        if staged:
            self.conn.execute("SELECT trecho.begin_bulk_load(%s, %s)", (self.pass_id, staged))
            self._plan(staged)
            self.progress.phase("secrets")
            # Here and below: a pass with nothing to do does not wait for what it does not use.
            from trecho.secrets_gate import hold_staged

            outcome.quarantined = hold_staged(self.conn, self.pass_id)
            if self.options.embed is not None:
                outcome.embedded, outcome.provider_calls, outcome.texts_failed = self.options.embed(
                    self.conn, self.pass_id, self.progress.embed
                )
        # Always: a bulk load that was killed leaves the indexes to whoever comes next.
        self.progress.phase("indexes")
        self.conn.execute("SELECT trecho.end_bulk_load()")
        if self.options.embed is not None and _value(
            self.conn, "SELECT trecho.pass_pending(%s)", self.pass_id
        ):
            outcome.state = "waiting"
            self._abandon("the embedding provider did not give every vector")
            return
        self.progress.phase("publish")
        row = self.conn.execute(
            "SELECT p.*, s.active_version AS index_version"
            "  FROM trecho.publish_pass(%s, allow_pending => %s, allow_mass_delete => %s, last_commit => %s,"
            "                           skipped => %s, rules => %s, errors => %s) AS p,"
            "       trecho.query_recipe() AS s (active_version)",
            (
                self.pass_id,
                self.options.embed is None,
                self.options.allow_mass_delete,
                self.options.last_commit,
                Jsonb(dict(outcome.skipped)),
                self.options.rules,
                outcome.failed,
            ),
        ).fetchone()
        outcome.counts = dict(row or {})
        told = {line[:_ERROR_CHARS] for line in outcome.failed}
        outcome.failed.extend(line for line in outcome.counts["errors"] if line not in told)

    def _abandon(self, reason: str) -> None:
        if self.conn.closed:
            return
        try:
            self.conn.execute("SELECT trecho.end_bulk_load()")
            self.conn.execute("SELECT trecho.abandon_pass(%s, %s)", (self.pass_id, reason))
        except psycopg.Error:
            return  # the first error is the one to tell; the next pass clears this one away

    def _stage(self, files: Iterable[SourceFile], outcome: Outcome) -> int:
        """Send what differs from the index, and what is gone. Returns documents staged."""
        rows = self.conn.execute("SELECT * FROM trecho.pass_documents(%s)", (self.pass_id,))
        known = {row["path"]: row for row in rows}
        seen = _Seen()
        staged = sum(
            self._send(batch, outcome) for batch in _batches(self._changed(files, known, seen, outcome))
        )
        folders = tuple(path for path in seen.unreadable if path.endswith("/"))
        present = seen.changed | seen.unchanged | seen.unreadable
        present |= {path for path in known if folders and path.startswith(folders)}
        if staged and self.target.scope == "session":
            self.conn.execute("SELECT trecho.refuse_twins(%s, %s)", (self.pass_id, sorted(seen.unchanged)))
        if self.options.removed is None:
            gone = [row for path, row in known.items() if path not in present]
        else:
            # A changed file that is left out now (a link, too large) is gone as well.
            named = self.options.removed.union(path for path, _ in outcome.skipped_files)
            gone = [row for path, row in known.items() if path in named and path not in present]
        if gone:
            self.conn.execute(
                "SELECT trecho.stage_removals(%s, %s, %s)",
                (self.pass_id, [row["source"] for row in gone], [row["revision"] for row in gone]),
            )
        return staged

    def _changed(
        self,
        files: Iterable[SourceFile],
        known: dict[str, Any],
        seen: _Seen,
        outcome: Outcome,
    ) -> Iterator[tuple[str, str, int | None]]:
        for count, file in enumerate(files, 1):
            self.progress.stage(count)
            if file.data is None and file.skip_reason.startswith("unreadable"):
                # It is there, so what the index has of it stays; nobody knows whether it changed.
                outcome.failed.append(f"{file.path}: {file.skip_reason}")
                seen.unreadable.add(file.path)
                continue
            if file.data is None:
                outcome.skipped[file.skip_reason.partition(" (")[0]] += 1
                outcome.skipped_files.append((file.path, file.skip_reason))
                continue
            row = known.get(file.path)
            digest = hashlib.sha256(file.data).digest()
            if row is not None and row["scope"] == self.target.scope and row["blob_sha"] == digest:
                outcome.unchanged += 1
                seen.unchanged.add(file.path)
                continue
            seen.changed.add(file.path)
            yield file.path, file.data.decode(), row["revision"] if row else None

    def _send(self, batch: list[tuple[str, str, int | None]], outcome: Outcome) -> int:
        """Stage a batch at once; one by one where something in it is refused, so that only that is left out."""
        try:
            with self.conn.transaction():
                self._send_all(batch)
            return len(batch)
        except (psycopg.DatabaseError, _CannotDescribe) as error:
            if len(batch) > 1 and not self.conn.closed:
                return sum(self._send([item], outcome) for item in batch)
            if not isinstance(error, psycopg.DataError) and error.sqlstate not in ("TR008", "22023", "XX000"):
                raise
            why = from_database(error) if isinstance(error, psycopg.Error) else error
            outcome.failed.append(f"{batch[0][0]}: {why}")
            return 0

    def _send_all(self, batch: list[tuple[str, str, int | None]]) -> None:
        if len(batch) > 1 and self.target.scope != "session":
            paths, texts, revisions = zip(*batch, strict=True)
            self.conn.execute(
                "SELECT trecho.stage_documents(%s, %s::trecho.chunk_scope, %b, %b, %s::bigint[])",
                (self.pass_id, self.target.scope, list(paths), list(texts), list(revisions)),
            )
            return
        query = "SELECT trecho.stage_document(%s, %s::trecho.chunk_scope, %s, %s, %s, %s)"
        with self.conn.pipeline(), self.conn.cursor() as cursor:
            for path, text, revision in batch:
                session = self._session_id(path, text)
                cursor.execute(query, (self.pass_id, self.target.scope, path, text, revision, session))

    def _session_id(self, path: str, text: str) -> str | None:
        """What the server would ask its chunkers for, where it has none; None where it does that itself."""
        if self.target.scope != "session" or not self.options.client_chunking:
            return None
        from trecho_chunkers.describe import describe
        from trecho_chunkers.model import ChunkError

        try:
            return describe(path, text, "session", self.target.project).session_id
        except ChunkError as error:
            raise _CannotDescribe(error) from error

    def _plan(self, total: int) -> None:
        if self.options.client_chunking:
            self._plan_here(total)
        else:
            self._plan_there(total)

    def _plan_there(self, total: int) -> None:
        """Chunk inside the server, over several connections when there is enough for them."""
        done = 0
        lock = threading.Lock()

        def work(conn: Connection) -> None:
            nonlocal done
            while planned := plan_batch(conn, self.pass_id):
                with lock:
                    done += planned
                    self.progress.plan(done, total)

        def work_alone() -> None:
            with connect(self.dsn, application_name=f"trecho plan {self.pass_id}", autocommit=True) as conn:
                work(conn)

        batches = (total + _PLAN_BATCH - 1) // _PLAN_BATCH
        helpers = min(self.options.jobs or min(os.cpu_count() or 1, 4), batches) - 1
        if helpers > 0:
            with ThreadPoolExecutor(helpers) as pool:
                futures = [pool.submit(work_alone) for _ in range(helpers)]
                work(self.conn)
                for future in futures:
                    future.result()
        # Alone, or after the helpers: what one had locked when this connection saw nothing left.
        work(self.conn)

    def _plan_here(self, total: int) -> None:
        """Chunk in this process, with the package the server would run."""
        from trecho.client_chunking import cut

        done = 0
        query = "SELECT * FROM trecho.unplanned_documents(%s, %s)"
        while rows := self.conn.execute(query, (self.pass_id, _PLAN_BATCH)).fetchall():
            for row in rows:
                made = cut(
                    row["path"], row["content"], row["scope"], row["chunk_settings"], self.target.project
                )
                self.conn.execute(
                    "SELECT trecho.plan_document(%s, %s, %s, %s, %s)",
                    (self.pass_id, row["source"], Jsonb(made.description), Jsonb(made.chunks), made.error),
                )
            done += len(rows)
            self.progress.plan(done, total)


def plan_batch(conn: Connection, pass_id: int) -> int:
    """Chunk one batch of a pass; again when it lost a deadlock. Returns documents, 0 when none is left."""
    for _ in range(_PLAN_TRIES - 1):
        try:
            return int(_value(conn, "SELECT trecho.plan_pass(%s, %s)", pass_id, _PLAN_BATCH))
        except psycopg.errors.DeadlockDetected:
            continue
    return int(_value(conn, "SELECT trecho.plan_pass(%s, %s)", pass_id, _PLAN_BATCH))


def _batches(items: Iterable[tuple[str, str, int | None]]) -> Iterator[list[tuple[str, str, int | None]]]:
    batch: list[tuple[str, str, int | None]] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(item[1])
        if len(batch) >= _STAGE_BATCH or size >= _STAGE_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _value(conn: Connection, query: str, *values: object) -> Any:
    row = conn.execute(query.encode(), values or None).fetchone()
    return next(iter(row.values())) if row else None
