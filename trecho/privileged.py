"""The layer that needs a superuser: what the database has of it, what is missing, the script for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row

from trecho.db import server_name
from trecho.drift import OURS, made_by, note_objects
from trecho.resources import CHUNKER_FILE, Release
from trecho.statements import parse, quote_name, quote_text, resolve

MIN_SERVER = 160000
ROLES = OURS
MEMBERSHIPS = (("trecho_reader", "trecho_writer"), ("trecho_writer", "trecho_operator"))
# Extension -> lowest version that will do, and the Debian package that brings its files.
EXTENSIONS: dict[str, tuple[tuple[int, ...], str]] = {
    "vector": ((0, 8), "postgresql-{major}-pgvector"),
    "unaccent": ((1, 1), "postgresql-contrib"),
    "plpython3u": ((1, 0), "postgresql-plpython3-{major}"),
}
DEFAULT_SCHEMA = "public"
CLIENT_ADVICE = "or keep the chunkers out of the server: trecho migrate --chunking client"


@dataclass(frozen=True)
class Need:
    """Something that is missing.

    code: stable name for programs. operator: only somebody with more rights, or with access to the machine,
    can do it. file: the file of the privileged layer that makes it; empty when no SQL can.
    """

    code: str
    message: str
    hint: str
    operator: bool
    file: str = ""
    sql: str = ""

    def as_json(self) -> dict[str, object]:
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "operator": self.operator,
            "sql": self.sql,
        }


@dataclass(frozen=True)
class Extension:
    """State of one extension. installed and available are versions, None where it is not."""

    name: str
    installed: str | None
    schema: str | None
    available: str | None
    trusted: bool


@dataclass
class Facts:
    """What the server says about itself and about the role, read at once."""

    version: int
    version_text: str
    server: str
    database: str
    role: str
    superuser: bool
    can_create_roles: bool
    can_create_in_database: bool
    read_only: bool
    encoding: str
    extensions: dict[str, Extension]
    roles: set[str]
    memberships: set[tuple[str, str]]
    owns: bool  # may act as trecho_owner
    schema_owner: str | None
    unusable_schemas: list[str]  # of the extensions, for trecho_owner or trecho_reader
    schema_grants: bool
    stamp: str | None
    chunker_version: int | None
    foreign_functions: list[str]  # PL/Python functions that a non-superuser owns
    chunking: str | None
    extension: str | None = None  # version of the extension trecho, where the database was set up with it
    extension_available: str | None = None  # the one that ALTER EXTENSION trecho UPDATE would bring
    needs: list[Need] = field(default_factory=list)

    @property
    def major(self) -> int:
        return self.version // 10000

    @property
    def schemas(self) -> dict[str, str]:
        """Schema of each extension: where it is, else where it will be made."""
        return {name: ext.schema or DEFAULT_SCHEMA for name, ext in self.extensions.items()}

    @property
    def place(self) -> str:
        return f"server {self.server} (PostgreSQL {self.version_text})"


_FACTS = """
SELECT pg_catalog.current_setting('server_version_num')::int AS version,
       pg_catalog.split_part(pg_catalog.current_setting('server_version'), ' ', 1) AS version_text,
       pg_catalog.current_database() AS database,
       r.rolname AS role,
       r.rolsuper AS superuser,
       r.rolsuper OR r.rolcreaterole AS can_create_roles,
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS can_create_in_database,
       pg_catalog.pg_is_in_recovery() AS read_only,
       pg_catalog.current_setting('server_encoding') AS encoding,
       (SELECT o.rolname FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_roles AS o ON o.oid = n.nspowner
         WHERE n.nspname = 'trecho') AS schema_owner,
       (SELECT e.extversion FROM pg_catalog.pg_extension AS e WHERE e.extname = 'trecho') AS extension,
       (SELECT a.default_version FROM pg_catalog.pg_available_extensions AS a
         WHERE a.name = 'trecho') AS extension_available
  FROM pg_catalog.pg_roles AS r
 WHERE r.rolname = current_user
"""

_EXTENSIONS = """
SELECT w.name, e.extversion AS installed, n.nspname AS schema, a.default_version AS available,
       coalesce((SELECT v.trusted OR NOT v.superuser FROM pg_catalog.pg_available_extension_versions AS v
                  WHERE v.name = w.name AND v.version = a.default_version), false) AS trusted
  FROM pg_catalog.unnest(%s::text[]) AS w (name)
  LEFT JOIN pg_catalog.pg_extension AS e ON e.extname = w.name
  LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
  LEFT JOIN pg_catalog.pg_available_extensions AS a ON a.name = w.name
"""

_MEMBERSHIPS = """
SELECT g.rolname AS granted, m.rolname AS member
  FROM pg_catalog.pg_auth_members AS a
  JOIN pg_catalog.pg_roles AS g ON g.oid = a.roleid
  JOIN pg_catalog.pg_roles AS m ON m.oid = a.member
 WHERE g.rolname = ANY (%s)
"""

# Two one-line functions are read from the catalog: no right to call them is needed, and no code runs.
_CHUNKERS = """
SELECT p.proname AS name, p.prosrc AS body, p.oid::pg_catalog.regprocedure::text AS signature,
       r.rolsuper AS superuser, l.lanname AS language
  FROM pg_catalog.pg_proc AS p
  JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
  JOIN pg_catalog.pg_roles AS r ON r.oid = p.proowner
  JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
 WHERE n.nspname = 'trecho'
   AND (l.lanname = 'plpython3u' OR p.proname IN ('chunker_stamp', 'chunker_version'))
"""


def read_facts(conn: psycopg.Connection[Any]) -> Facts:
    """Read the facts in the caller's transaction; every table named is in pg_catalog."""
    cur = conn.cursor(row_factory=dict_row)
    row = cur.execute(_FACTS).fetchone()
    assert row is not None
    extensions = {
        item["name"]: Extension(**item) for item in cur.execute(_EXTENSIONS, (list(EXTENSIONS),)).fetchall()
    }
    roles = {
        item["rolname"]
        for item in cur.execute(
            "SELECT rolname FROM pg_catalog.pg_roles WHERE rolname = ANY (%s)", (list(ROLES),)
        )
    }
    memberships = {(item["granted"], item["member"]) for item in cur.execute(_MEMBERSHIPS, (list(ROLES),))}
    chunkers = cur.execute(_CHUNKERS).fetchall()
    bodies = {item["name"]: item["body"] for item in chunkers if item["superuser"]}
    stamp = bodies.get("chunker_stamp", "").removeprefix("SELECT '").removesuffix("'::text") or None
    version = bodies.get("chunker_version", "").removeprefix("SELECT ")
    present = all(role in roles for role in ROLES)
    owns = False
    unusable: list[str] = []
    grants = False
    if present:
        owned = cur.execute(
            "SELECT pg_catalog.pg_has_role(current_user, 'trecho_owner', 'SET') AS owns"
        ).fetchone()
        owns = bool(owned and owned["owns"])
        used = [ext.schema for name, ext in extensions.items() if ext.schema and name != "plpython3u"]
        unusable = [
            item["schema"]
            for item in cur.execute(
                "SELECT DISTINCT s.name AS schema FROM pg_catalog.unnest(%s::text[]) AS s (name)"
                " WHERE NOT (pg_catalog.has_schema_privilege('trecho_owner', s.name, 'USAGE')"
                "        AND pg_catalog.has_schema_privilege('trecho_reader', s.name, 'USAGE'))",
                (used,),
            )
        ]
        if row["schema_owner"]:
            granted = cur.execute(
                "SELECT pg_catalog.bool_and("
                "         pg_catalog.has_schema_privilege(r.name, 'trecho', 'USAGE')) AS granted"
                "  FROM pg_catalog.unnest(%s::text[]) AS r (name)",
                (list(ROLES),),
            ).fetchone()
            grants = bool(granted and granted["granted"])
    return Facts(
        version=row["version"],
        version_text=row["version_text"],
        server=server_name(conn),
        database=row["database"],
        role=row["role"],
        superuser=row["superuser"],
        can_create_roles=row["can_create_roles"],
        can_create_in_database=row["can_create_in_database"],
        read_only=row["read_only"],
        encoding=row["encoding"],
        extensions=extensions,
        roles=roles,
        memberships=memberships,
        owns=owns,
        schema_owner=row["schema_owner"],
        unusable_schemas=unusable,
        schema_grants=grants,
        stamp=stamp,
        chunker_version=int(version) if version.isdigit() else None,
        foreign_functions=[
            i["signature"] for i in chunkers if i["language"] == "plpython3u" and not i["superuser"]
        ],
        chunking=_chunking(cur),
        extension=row["extension"],
        extension_available=row["extension_available"],
    )


def _chunking(cur: psycopg.Cursor[dict[str, Any]]) -> str | None:
    """How this database was set up to chunk; None where that is not known or not readable."""
    found = cur.execute(
        # Naming a table of a schema that this role may not use is an error.
        "SELECT CASE WHEN pg_catalog.has_schema_privilege(pg_catalog.to_regnamespace('trecho')::oid, 'USAGE')"
        "            THEN coalesce(pg_catalog.has_table_privilege("
        "                   pg_catalog.to_regclass('trecho.installation')::oid, 'SELECT'), false)"
        "            ELSE false END AS readable"
    ).fetchone()
    if not found or not found["readable"]:
        return None
    row = cur.execute("SELECT chunking FROM trecho.installation").fetchone()
    return row["chunking"] if row else None


def version_tuple(text: str) -> tuple[int, ...]:
    """'0.8.0' as (0, 8, 0); what follows the first part that is not a number is left out."""
    parts = []
    for part in text.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


def find_needs(
    facts: Facts, release: Release, chunking: str, conn: psycopg.Connection[Any] | None = None
) -> list[Need]:
    """What the privileged layer lacks, in the order in which it is made.

    conn: where given and the catalog says that the role may not create an extension, creating it is tried and
    rolled back (some managed servers allow it by other means); the caller must be in a transaction.
    """
    if facts.version < MIN_SERVER:
        return [
            Need(
                "server_too_old",
                f"server {facts.server} runs PostgreSQL {facts.version_text}, and trecho needs 16 or newer",
                "Upgrade the server (pg_upgrade), or use a database on another one.",
                operator=True,
            )
        ]
    if facts.encoding != "UTF8":
        return [
            Need(
                "encoding",
                f"database {facts.database!r} has encoding {facts.encoding}, and trecho needs UTF8",
                "Create another database: createdb --encoding UTF8 --template template0 NAME.",
                operator=True,
            )
        ]
    needs: list[Need] = []
    names = [name for name in EXTENSIONS if name != "plpython3u" or chunking == "server"]
    for name in names:
        need = _extension_need(facts, name, conn)
        if need:
            needs.append(need)
    needs += _role_needs(facts)
    if chunking == "server":
        needs += _chunker_needs(facts, release)
    return needs


def _extension_need(facts: Facts, name: str, conn: psycopg.Connection[Any] | None) -> Need | None:
    ext = facts.extensions[name]
    least, package = EXTENSIONS[name]
    package = package.format(major=facts.major)
    least_text = ".".join(map(str, least))
    advice = f", {CLIENT_ADVICE}" if name == "plpython3u" else ""
    file = CHUNKER_FILE if name == "plpython3u" else "sql/privileged/00_extensions.sql"
    create = f"CREATE EXTENSION IF NOT EXISTS {name};"
    if ext.installed is None and ext.available is None:
        return Need(
            f"{name}_not_available",
            f"extension {name} is not installed on {facts.place}",
            f"Install it on the machine of the server (Debian: apt-get install {package};"
            f" no restart is needed){advice}.",
            operator=True,
            file=file,
            sql=create,
        )
    version = ext.installed or ext.available or ""
    if version_tuple(version) < least:
        newer = ext.available is not None and version_tuple(ext.available) >= least
        return Need(
            f"{name}_too_old",
            f"extension {name} {version} on {facts.place} is too old: trecho needs {least_text} or newer",
            f"Run ALTER EXTENSION {name} UPDATE in database {facts.database!r} as its owner or a superuser."
            if newer and ext.installed
            else f"Install a newer package on the machine of the server (Debian: {package})"
            + (f", then run ALTER EXTENSION {name} UPDATE." if ext.installed else "."),
            operator=True,
            sql=f"ALTER EXTENSION {name} UPDATE;" if ext.installed else create,
        )
    if ext.installed is not None:
        return None
    creatable = facts.superuser or (ext.trusted and facts.can_create_in_database) or _try_create(conn, name)
    reason = (
        f"it is not a trusted extension there and {facts.role!r} is not a superuser"
        if not ext.trusted
        else f"it needs the right CREATE on database {facts.database!r}"
    )
    return Need(
        f"{name}_not_created" if creatable else f"{name}_not_creatable",
        f"extension {name} {ext.available} is not created in database {facts.database!r}"
        if creatable
        else f"role {facts.role!r} may not create extension {name} on {facts.place}: {reason}",
        "trecho migrate creates it."
        if creatable
        else f"Have a superuser run the script below in database {facts.database!r}{advice}.",
        operator=not creatable,
        file=file,
        sql=create,
    )


def _try_create(conn: psycopg.Connection[Any] | None, name: str) -> bool:
    if conn is None:
        return False
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(f"CREATE EXTENSION {quote_name(name)} CASCADE")
    except psycopg.Error:
        return False
    return True


def _role_needs(facts: Facts) -> list[Need]:
    file = "sql/privileged/10_roles.sql"
    script = "Have a superuser run the script below."
    own = "trecho migrate makes it."
    needs = []

    def add(code: str, message: str, possible: bool, sql: str = "") -> None:
        needs.append(
            Need(code, message, own if possible else script, operator=not possible, file=file, sql=sql)
        )

    missing = [role for role in ROLES if role not in facts.roles]
    if missing:
        add(
            "roles_missing",
            f"roles {', '.join(missing)} do not exist on {facts.place}"
            + ("" if facts.can_create_roles else f", and role {facts.role!r} may not create roles"),
            facts.can_create_roles,
            " ".join(f"CREATE ROLE {role} NOLOGIN;" for role in missing),
        )
    else:
        for granted, member in MEMBERSHIPS:
            if (granted, member) not in facts.memberships:
                add(
                    "membership_missing",
                    f"role {granted} is not granted to {member}",
                    facts.superuser,
                    f"GRANT {granted} TO {member};",
                )
        if not facts.owns:
            add(
                "not_owner",
                f"role {facts.role!r} is not a member of trecho_owner, which owns what is migrated",
                False,
                f"GRANT trecho_owner TO {quote_name(facts.role)};",
            )
    if facts.schema_owner is None:
        add(
            "schema_missing",
            f"schema trecho does not exist in database {facts.database!r}"
            + (
                ""
                if facts.can_create_in_database
                else f", and role {facts.role!r} may not create schemas there"
            ),
            facts.superuser or (facts.can_create_in_database and (facts.owns or facts.can_create_roles)),
            "CREATE SCHEMA trecho AUTHORIZATION trecho_owner;",
        )
    elif facts.schema_owner != "trecho_owner":
        needs.append(
            Need(
                "schema_foreign",
                f"schema trecho in database {facts.database!r} belongs to {facts.schema_owner},"
                " not to trecho_owner",
                "If nothing else uses it: ALTER SCHEMA trecho OWNER TO trecho_owner;"
                " else use another database.",
                operator=True,
                sql="ALTER SCHEMA trecho OWNER TO trecho_owner;",
            )
        )
    elif not facts.schema_grants and not missing:
        add("schema_grants", "the group roles may not use schema trecho", facts.superuser or facts.owns)
    for schema in facts.unusable_schemas:
        add(
            "extension_schema",
            f"the group roles may not use schema {schema}, where an extension lives",
            facts.superuser,
            f"GRANT USAGE ON SCHEMA {quote_name(schema)} TO {', '.join(ROLES)};",
        )
    return needs


def _chunker_needs(facts: Facts, release: Release) -> list[Need]:
    if facts.foreign_functions:
        return [
            Need(
                "foreign_functions",
                "PL/Python functions of schema trecho belong to a role without superuser:"
                f" {', '.join(facts.foreign_functions)}",
                "Have a superuser look at them and drop them.",
                operator=True,
                sql=" ".join(f"DROP FUNCTION {name};" for name in facts.foreign_functions),
            )
        ]
    if facts.stamp == release.chunker_stamp:
        return []
    if facts.stamp is None:
        message = f"the chunk functions are not in database {facts.database!r}"
    else:
        message = (
            f"the chunk functions of database {facts.database!r} are those of another release"
            f" (version {facts.chunker_version}, stamp {facts.stamp}; this one ships version"
            f" {release.chunker_version}, stamp {release.chunker_stamp})"
        )
    if facts.superuser:
        return [
            Need(
                "chunkers_not_current",
                message,
                "trecho migrate makes them.",
                operator=False,
                file=CHUNKER_FILE,
            )
        ]
    return [
        Need(
            "chunkers_not_current",
            f"{message}, and only a superuser may create PL/Python functions, which {facts.role!r} is not",
            f"Have a superuser run the script below, {CLIENT_ADVICE}.",
            operator=True,
            file=CHUNKER_FILE,
        )
    ]


def privileged_sources(release: Release, facts: Facts, chunking: str) -> list[tuple[str, str]]:
    """(name, resolved text) of the files of this layer, in order; client chunking leaves the chunkers out."""
    return [
        (source.name, resolve(source.text, facts.schemas, source.name))
        for source in release.privileged
        if chunking == "server" or source.name != CHUNKER_FILE
    ]


def operator_script(release: Release, facts: Facts, chunking: str, needs: Iterable[Need]) -> str:
    """The SQL a superuser runs, whole: one transaction, safe to run again, safe while older clients work."""
    role = quote_name(facts.role)
    lines = [
        f"-- Privileged layer of trecho {release.version} (chunkers: version {release.chunker_version},"
        f" stamp {release.chunker_stamp}).",
        f"-- Run it as a superuser in database {facts.database} of server {facts.server}:",
        f"--   psql -v ON_ERROR_STOP=1 -d {facts.database} -f THIS_FILE",
        "-- It may be run again, and clients of the previous release go on working.",
    ]
    lines += [f"-- Missing now: {need.message}" for need in needs]
    lines += [f"-- First, on the machine: {n.hint}" for n in needs if n.code.endswith("_not_available")]
    # A name may hold a line end, which would end the comment.
    lines = [" ".join(line.split()) if line.lstrip("- ") else line for line in lines]
    lines += [
        "BEGIN;",
        "SET LOCAL search_path = pg_catalog, pg_temp;",
        "SET LOCAL client_min_messages = warning;",
        f"DO $do$ BEGIN IF pg_catalog.current_database() <> {quote_text(facts.database)} THEN"
        f" RAISE EXCEPTION 'this script is for database %, not for %', {quote_text(facts.database)},"
        " pg_catalog.current_database(); END IF; END $do$;",
    ]
    lines += [need.sql for need in needs if need.code.endswith("_too_old")]
    for name, text in privileged_sources(release, facts, chunking):
        lines += [f"-- {name}", text.rstrip("\n")]
        if name.endswith("10_roles.sql") and not facts.superuser:
            lines.append(f"GRANT trecho_owner TO {role};  -- the role that migrates")
    made = {name: made_by(parse(text, name)) for name, text in privileged_sources(release, facts, chunking)}
    lines += [
        # Else trecho migrate would take the new functions for altered ones. As the owner of the table: a trigger that
        # it put there must not run as a superuser.
        "SET LOCAL ROLE trecho_owner;",
        "DO $do$ BEGIN IF pg_catalog.to_regclass('trecho.schema_objects') IS NOT NULL THEN",
        note_objects(made, release) + ";",
        "END IF; END $do$;",
        "RESET ROLE;",
        "COMMIT;",
        "",
    ]
    return "\n".join(lines)
