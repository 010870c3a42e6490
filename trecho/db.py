"""Connections: where the DSN comes from, how a connection is opened, why it could not be."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.rows import DictRow, dict_row

from trecho.errors import ConnectionFailed, NotMigrated, OtherRelease, TrechoError, UsageError, from_database

Connection = psycopg.Connection[DictRow]

# Where `make server` leaves the DSN of the private server of a checkout.
DSN_FILE = Path(".server") / "dsn"
# A dead network is noticed within about a minute, and a server that does not answer within ten seconds.
_CONNECTION_SETTINGS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
}


def find_dsn(given: str | None = None, start: Path | None = None) -> str:
    """The DSN to use: the argument, else TRECHO_DSN, else .server/dsn here or in a folder above.

    Raises: UsageError when none of them is there, or what is there is not a DSN.
    """
    origin = "--dsn"
    dsn = given
    if not dsn:
        origin = "TRECHO_DSN"
        dsn = os.environ.get("TRECHO_DSN")
    if not dsn:
        folder = (start or Path.cwd()).resolve()
        for parent in (folder, *folder.parents):
            path = parent / DSN_FILE
            if path.is_file():
                origin = str(path)
                dsn = _read_dsn_file(path)
                break
    if not dsn:
        raise UsageError(
            "no database given",
            hint="Pass --dsn postgresql://user@host:port/database, set TRECHO_DSN,"
            " or run make server in a checkout.",
        )
    _check_dsn(dsn, origin)
    return dsn


def _read_dsn_file(path: Path) -> str:
    try:
        dsn = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(
            f"{path} cannot be read: {reason}",
            hint="Run make server again as the user who made it, or set TRECHO_DSN.",
        ) from error
    if not dsn:
        raise UsageError(f"{path} is empty", hint="Run make server again, or set TRECHO_DSN.")
    return dsn


def _check_dsn(dsn: str, origin: str) -> None:
    """Raises: UsageError, which shows no part of a DSN that may be a password."""
    hint = "Write it as postgresql://user@host:port/database."
    try:
        dsn.encode("utf-8")
        stated = conninfo.conninfo_to_dict(dsn)
        conninfo.make_conninfo(dsn)
    except UnicodeEncodeError:
        raise UsageError(f"the DSN from {origin} is not UTF-8 text", hint=hint) from None
    except psycopg.Error as error:
        # The cause is left out, too: --debug would print what is masked here.
        raise UsageError(
            f"the DSN from {origin} is not one: {_masked(str(error).strip(), dsn)}", hint=hint
        ) from None
    is_uri = dsn.startswith(("postgresql://", "postgres://"))
    if is_uri and any("@" in str(stated.get(part, "")) for part in ("host", "port", "dbname")):
        raise UsageError(
            f"the DSN from {origin} has an @ in host, port or database",
            hint="In a password write @ as %40, / as %2F, : as %3A, ? as %3F, % as %25; or leave it to ~/.pgpass.",
        )
    for port in str(stated.get("port") or "").split(","):
        if port and not (port.isdecimal() and 0 < int(port) < 65536):
            raise UsageError(f"the DSN from {origin} has no port between 1 and 65535", hint=hint)


def _masked(message: str, dsn: str) -> str:
    """What libpq says without what it quotes, except the name of an option: the rest may be a password."""

    def mask(match: re.Match[str]) -> str:
        quoted = match[1]
        known = quoted == "=" or (re.fullmatch("[a-z_]+", quoted) and re.search(rf"\b{quoted}\s*=", dsn))
        return match[0] if known else '"…"'

    return re.sub(r'"([^"]*)"', mask, message)


def connect(
    dsn: str,
    *,
    application_name: str = "trecho",
    autocommit: bool = False,
    **settings: Any,
) -> Connection:
    """Open a connection whose rows come by name. What the DSN states wins over the defaults here.

    Raises: ConnectionFailed, which says whether the host, the port, the database or the password is wrong.
    """
    stated = conninfo.conninfo_to_dict(dsn)
    options = {
        key: value
        for key, value in {**_CONNECTION_SETTINGS, "application_name": application_name, **settings}.items()
        if key not in stated
    }
    try:
        conn = psycopg.Connection.connect(dsn, autocommit=autocommit, row_factory=dict_row, **options)
    except psycopg.OperationalError as error:
        raise explain(dsn, error) from error
    _speak_plainly(conn, autocommit)
    return conn


def _speak_plainly(conn: Connection, autocommit: bool) -> None:
    """Undo what a role or a database sets and no client of psycopg can read: the server announces both."""
    wanted = {"DateStyle": "ISO", "standard_conforming_strings": "on"}
    other = {k: v for k, v in wanted.items() if not (conn.info.parameter_status(k) or v).startswith(v)}
    for name, value in other.items():
        conn.execute("SELECT set_config(%s, %s, false)", (name, value))
    if other and not autocommit:
        conn.commit()


@contextmanager
def connection(dsn: str, **options: Any) -> Iterator[Connection]:
    """`connect`, closed at the end; an error of the server leaves as a TrechoError."""
    with connect(dsn, **options) as conn:
        try:
            yield conn
        except psycopg.Error as error:
            raise from_database(error) from error


def server_name(conn: psycopg.Connection[Any]) -> str:
    """Host and port as a person writes them."""
    info = conn.info
    host = info.host or info.hostaddr or "local"
    return f"{host} port {info.port}" if host.startswith("/") else f"{host}:{info.port}"


def explain(dsn: str, error: psycopg.OperationalError) -> ConnectionFailed:
    """Why a connection failed, found by trying: the text of the error is in the server's language."""
    stated = conninfo.conninfo_to_dict(dsn)
    host = str(stated.get("host") or stated.get("hostaddr") or os.environ.get("PGHOST") or "")
    port = str(stated.get("port") or os.environ.get("PGPORT") or "5432")
    user = str(stated.get("user") or os.environ.get("PGUSER") or "")
    database = str(stated.get("dbname") or os.environ.get("PGDATABASE") or user or "")
    detail = str(error).strip()
    where = f"{host or 'the local socket'}{' port ' if not host or host.startswith('/') else ':'}{port}"
    if "," in host:  # several hosts: libpq's own report names each
        return ConnectionFailed(
            f"no server of {host} can be used", detail=detail, hint="The detail says why."
        )
    unreachable = _unreachable(host, port)
    if unreachable:
        return ConnectionFailed(
            f"connection to {where} failed: {unreachable}",
            detail=detail,
            hint="Start the server (make server in a checkout), or correct host and port of the DSN.",
        )
    pgconn = error.pgconn
    if pgconn is not None and pgconn.needs_password:
        return ConnectionFailed(
            f"server {where} wants a password for role {user!r} and none was given",
            detail=detail,
            hint="Put it in the DSN, in PGPASSWORD, or better in ~/.pgpass.",
        )
    if (found := _of_the_database_alone(dsn, where, user, database, detail)) is not None:
        return found
    if pgconn is not None and pgconn.used_password:
        return ConnectionFailed(
            f"server {where} refused role {user!r} with the password given",
            detail=detail,
            hint="Correct the password in the DSN, PGPASSWORD or ~/.pgpass.",
        )
    return ConnectionFailed(
        f"connection to {where} failed", detail=detail, hint="The detail is the server's own answer."
    )


def _of_the_database_alone(
    dsn: str, where: str, user: str, database: str, detail: str
) -> ConnectionFailed | None:
    """What is wrong with the database of a DSN, where its server and role are fine; None where they are not."""
    for other in ("postgres", "template1"):
        if other == database:
            continue
        try:
            with psycopg.connect(conninfo.make_conninfo(dsn, dbname=other, connect_timeout=5)) as conn:
                found = conn.execute(
                    "SELECT FROM pg_catalog.pg_database WHERE datname = %s", (database,)
                ).rowcount
        except psycopg.Error:
            continue
        if not found:
            return ConnectionFailed(
                f"database {database!r} does not exist on server {where}",
                detail=detail,
                hint=f"Create it (createdb {database}, encoding UTF8), or correct the DSN.",
            )
        return ConnectionFailed(
            f"server {where} lets role {user!r} into database {other}, and not into {database!r}",
            detail=detail,
            hint="The detail is the server's own answer: the database may take no connections, or none of this role.",
        )
    return None


def explain_missing(dsn: str, error: TrechoError) -> TrechoError:
    """Why a schema, table or function that the client calls is not there: found by looking, not by the text."""
    from trecho import __version__

    try:
        with connect(dsn, autocommit=True) as conn:
            row = conn.execute(
                """
                SELECT current_database() AS database, to_regnamespace('trecho') IS NOT NULL AS has_schema,
                       to_regclass('trecho.schema_migrations') IS NOT NULL AS is_ours,
                       coalesce(has_table_privilege(to_regclass('trecho.schema_migrations')::oid, 'SELECT'), false)
                           AS may_look
                """
            ).fetchone()
            release = ""
            if row and row["may_look"]:
                ran = conn.execute(
                    "SELECT release FROM trecho.schema_migrations ORDER BY applied_at DESC, name DESC LIMIT 1"
                ).fetchone()
                release = str(ran["release"]) if ran else ""
    except (TrechoError, psycopg.Error):
        return error
    if row is None or not row["has_schema"]:
        return NotMigrated(
            f"database {row['database'] if row else ''!r} has no schema trecho",
            hint="Run trecho migrate, or correct the DSN if this is not the database you meant.",
        )
    if not row["is_ours"]:
        return NotMigrated(
            f"schema trecho of database {row['database']!r} holds nothing that trecho migrate made",
            hint="Run trecho migrate.",
        )
    found = f"release {release}" if release else "another release, or damaged"
    result = OtherRelease(
        f"database {row['database']!r} lacks something that trecho {__version__} calls; it is of {found}",
        detail=f"{error}\n{error.detail}".strip(),
        hint="Run trecho migrate, which brings the database to this release, or says that the client is too old.",
    )
    result.sqlstate = error.sqlstate
    return result


def _unreachable(host: str, port: str) -> str:
    """Why no connection can be opened at all; empty when one can."""
    if not host or host.startswith("/"):
        folders = [host] if host else ["/var/run/postgresql", "/tmp"]
        sockets = [Path(folder) / f".s.PGSQL.{port}" for folder in folders]
        missing = not any(path.exists() for path in sockets)
        return f"no server listens there (no {' or '.join(map(str, sockets))})" if missing else ""
    reason = ""
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except socket.gaierror:
        reason = f"host {host!r} is not known"
    except ConnectionRefusedError:
        reason = "connection refused, no server listens there"
    except TimeoutError:
        reason = "no answer within 5 seconds"
    except (OSError, ValueError) as error:
        reason = str(error)
    return reason
