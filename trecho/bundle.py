"""`trecho bundle`: this release as a PostgreSQL extension, with a script from every earlier one."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path

from trecho import resources
from trecho.console import print_json
from trecho.drift import made_by, note_objects
from trecho.errors import ExitCode, Refused, TrechoError, UsageError
from trecho.privileged import EXTENSIONS, version_tuple
from trecho.resources import Release, Source
from trecho.runner import RECORD, RUNNER_TABLES, SETTINGS, lone_statement
from trecho.statements import TOKEN, Markers, Statement, parse, quote_text, read_markers

HELP = "Write the files of the extension: trecho.control, trecho--VERSION.sql, scripts of upgrades."

# Filled in again by CREATE EXTENSION, so no dump carries their rows.
NOT_DUMPED = ("schema_migrations", "schema_objects", "installation")

CONTROL = """\
# {comment}
comment = '{comment}'
default_version = '{version}'
requires = '{requires}'
# Everything stands in schema trecho, which the script makes so that it goes with the extension.
schema = pg_catalog
relocatable = false
superuser = true
encoding = 'UTF8'
"""
COMMENT = "searchable, embedded index of documents, decisions, sessions and source code"

# The checks of trecho migrate that a script can make.
OPENING = """\
DO $do$
DECLARE
    v_database text := pg_catalog.quote_ident(pg_catalog.current_database());
BEGIN
    IF pg_catalog.getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'database % has encoding %, and trecho needs UTF8', v_database, pg_catalog.getdatabaseencoding()
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Create another database: createdb --encoding UTF8 --template template0 NAME.';
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_extension AS e
                WHERE e.extname = 'vector'
                  AND pg_catalog.string_to_array(pg_catalog.substring(e.extversion, '^[0-9.]*[0-9]'), '.')::integer[]
                      < ARRAY[{vector}]) THEN
        RAISE EXCEPTION 'extension vector is too old: trecho needs {vector_text} or newer'
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Run ALTER EXTENSION vector UPDATE, after installing a newer package where one is needed.';
    END IF;
{check}END
$do$;
"""

NEW_ONLY = """\
    IF pg_catalog.to_regclass('trecho.schema_migrations') IS NOT NULL THEN
        RAISE EXCEPTION 'database % was set up with trecho migrate', v_database
            USING ERRCODE = 'duplicate_schema',
                  DETAIL = 'Its tables and functions cannot become members of an extension.',
                  HINT = 'Go on with trecho migrate, or remove it first: trecho uninstall --yes ' || v_database || '.';
    ELSIF pg_catalog.to_regnamespace('trecho') IS NOT NULL THEN
        RAISE EXCEPTION 'schema trecho exists in database % and is not of trecho', v_database
            USING ERRCODE = 'duplicate_schema', HINT = 'If nothing in it is needed: DROP SCHEMA trecho CASCADE.';
    END IF;
"""

# What an installation holds is data: a script that made these rows would put them back into every restored dump,
# a grant on all projects that an operator took away among them. The first write makes them.
NO_ROWS = """\
DELETE FROM trecho.project_grants;
DELETE FROM trecho.index_state;
INSERT INTO trecho.installation (chunking) VALUES ('server');
"""

# Partitions are no members: they are made at run time, and a dump carries them whole.
DUMP_ROWS = """\
DO $do$
DECLARE
    v_relation regclass;
BEGIN
    FOR v_relation IN
        SELECT c.oid FROM pg_catalog.pg_class AS c
         WHERE c.relnamespace = 'trecho'::pg_catalog.regnamespace AND c.relkind IN ('r', 'S') AND NOT c.relispartition
           AND c.relname <> ALL ('{{{names}}}'::name[])
         ORDER BY c.relname
    LOOP
        PERFORM pg_catalog.pg_extension_config_dump(v_relation, '');
    END LOOP;
END
$do$;
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `trecho bundle`."""
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="where to write (default: here)"
    )
    parser.add_argument(
        "--freeze",
        action="store_true",
        help="also keep this release's list of migrations, from which later releases make upgrade scripts",
    )


def run(args: argparse.Namespace) -> int:
    """Exit codes: 0 done, 4 refused."""
    release = resources.current()
    if args.freeze and not (release.root / "pyproject.toml").is_file():
        raise UsageError(
            "--freeze writes into a checkout, and this is an installed trecho", hint="Run it in a checkout."
        )
    written = write(release, args.folder)
    if args.freeze:
        written.append(freeze(release))
    if args.json:
        print_json({"release": release.version, "files": [str(path) for path in written]})
    else:
        for path in written:
            print(f"{path} ({path.stat().st_size} bytes)")
    return ExitCode.DONE


def write(release: Release, folder: Path) -> list[Path]:
    """Write the files of the extension. Raises: Refused for a release that cannot be one."""
    files = bundle(release)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in files.items():
        path = folder / name
        aside = path.with_name(path.name + ".new")
        aside.write_text(text, encoding="utf-8")
        aside.chmod(0o644)
        aside.replace(path)  # a server may be reading
        written.append(path)
    return written


def bundle(release: Release) -> dict[str, str]:
    """File name to text: the control file, the script of this release, one from each earlier release."""
    version = release.version
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", version):
        raise Refused(
            f"version {version} is not one of a release",
            hint="An extension has a version such as 0.1.0; ours stands in pyproject.toml and trecho/__init__.py.",
        )
    files = {
        "trecho.control": CONTROL.format(
            comment=COMMENT, version=version, requires="vector, plpython3u, unaccent"
        ),
        f"trecho--{version}.sql": install_script(release),
    }
    for earlier, migrations in sorted(release.earlier.items(), key=lambda item: version_tuple(item[0])):
        if earlier != version:
            files[f"trecho--{earlier}--{version}.sql"] = upgrade_script(release, earlier, migrations)
        else:
            _check_frozen(release, earlier, migrations)
    return files


def freeze(release: Release) -> Path:
    """Keep the list of this release's migrations. Raises: Refused when it is kept and another one."""
    if release.version in release.earlier:
        _check_frozen(release, release.version, release.earlier[release.version])
    path = release.root / "migrations" / "releases" / f"{release.version}.json"
    path.parent.mkdir(exist_ok=True)
    frozen = {source.name: source.checksum for source in release.migrations}
    path.write_text(
        json.dumps({"release": release.version, "migrations": frozen}, indent=2) + "\n", encoding="utf-8"
    )
    return path


def _check_frozen(release: Release, version: str, frozen: dict[str, str]) -> None:
    """Refuse migrations of a release that have changed since."""
    now = {source.name: source.checksum for source in release.migrations}
    for name, checksum in frozen.items():
        if now.get(name) != checksum:
            raise Refused(
                f"{name} is {'another one' if name in now else 'missing'}, and release {version} has it",
                hint="Restore the file as it was released and put the change into a new migration.",
            )
    if version == release.version and len(now) != len(frozen):
        (first, *_) = sorted(now.keys() - frozen.keys())
        raise Refused(
            f"{first} is not in release {version}, which is frozen",
            hint="Raise the version in pyproject.toml and trecho/__init__.py.",
        )


def install_script(release: Release) -> str:
    """What CREATE EXTENSION runs."""
    lines = _head(release, "CREATE EXTENSION trecho CASCADE", NEW_ONLY)
    for source in release.privileged:
        lines += _privileged(source)
    lines += ["SET LOCAL ROLE trecho_owner;", RUNNER_TABLES.strip(), *_load_pgvector()]
    for source in release.migrations:
        lines += _migration(source, release)
    for source in release.behaviour:
        lines += _behaviour(source, release)
    lines += _tail(release, NO_ROWS)
    return "\n".join(lines)


def upgrade_script(release: Release, earlier: str, frozen: dict[str, str]) -> str:
    """What ALTER EXTENSION trecho UPDATE runs: the migrations since, then all functions again."""
    _check_frozen(release, earlier, frozen)
    last = max(frozen, default="")
    late = [source.name for source in release.migrations if source.name not in frozen and source.name < last]
    if late:
        raise Refused(
            f"{late[0]} is out of order: release {earlier} has a later one", hint="Give it the next number."
        )
    lines = _head(release, "ALTER EXTENSION trecho UPDATE", "")
    for source in release.privileged:
        lines += _privileged(source)
    lines += ["SET LOCAL ROLE trecho_owner;", RUNNER_TABLES.strip(), *_load_pgvector()]
    for source in release.migrations:
        if source.name not in frozen:
            lines += _migration(source, release)
    for source in release.behaviour:
        lines += _behaviour(source, release)
    lines += _tail(release, "")
    return "\n".join(lines)


def _head(release: Release, command: str, check: str) -> list[str]:
    least = EXTENSIONS["vector"][0]
    opening = OPENING.format(
        vector=", ".join(map(str, least)), vector_text=".".join(map(str, least)), check=check
    )
    return [
        f'\\echo Use "{command}" to load this file. \\quit',
        f"-- trecho {release.version} (chunkers: version {release.chunker_version}, stamp {release.chunker_stamp}).",
        *(f"{setting};" for setting in SETTINGS),
        opening.rstrip(),
    ]


def _load_pgvector() -> list[str]:
    return [
        "-- Loads pgvector, without which SET hnsw.* on a function is refused.",
        "SELECT '[1]'::@extschema:vector@.vector;",
    ]


def _tail(release: Release, rows: str) -> list[str]:
    lines = [rows.rstrip()] if rows else []
    for source in release.privileged:
        lines.append(_record(source, "privileged", release))
    lines += [
        note_objects({source.name: made_by(_parse(source)) for source in _all(release)}, release) + ";",
        "RESET ROLE;",
        DUMP_ROWS.format(names=",".join(NOT_DUMPED)).rstrip(),
        "",
    ]
    return lines


def _all(release: Release) -> tuple[Source, ...]:
    return (*release.privileged, *release.migrations, *release.behaviour)


def _privileged(source: Source) -> list[str]:
    """A file of the privileged layer without its extensions, which the control file requires."""
    kept = [statement for statement in _parse(source) if statement.kind != "CreateExtensionStmt"]
    return [f"-- {source.name}", *map(_text, kept)] if kept else []


def _migration(source: Source, release: Release) -> list[str]:
    markers = read_markers(source.text, source.name)
    statements = _parse(source)
    lines = [f"-- {source.name}"]
    if not markers.transaction:
        lines += _in_transaction(source, markers, statements)
    elif markers.needs_operator:
        lines += ["RESET ROLE;", source.text.rstrip("\n"), "SET LOCAL ROLE trecho_owner;"]
    else:
        lines.append(source.text.rstrip("\n"))
    return [*lines, _record(source, "migration", release)]


def _in_transaction(source: Source, markers: Markers, statements: list[Statement]) -> list[str]:
    """An index that trecho migrate builds CONCURRENTLY: ALTER EXTENSION is a transaction, so it is built at once."""
    lone_statement(source.name, markers, statements)
    (statement,) = statements
    if statement.kind != "IndexStmt":
        raise Refused(
            f"{source.name} cannot run in a transaction, and the script of an extension is one",
            hint="Only CREATE INDEX CONCURRENTLY has another form there.",
        )
    return [re.sub(r"\bCONCURRENTLY\s+", "", statement.text, count=1, flags=re.I) + ";"]


def _behaviour(source: Source, release: Release) -> list[str]:
    _parse(source)
    return [f"-- {source.name}", source.text.rstrip("\n"), _record(source, "sql", release)]


def _parse(source: Source) -> list[Statement]:
    """The statements, tokens left alone. Raises: Refused for a token that the server would not replace."""
    for match in TOKEN.finditer(source.text):
        if match.group(1) not in EXTENSIONS:
            raise Refused(f"{source.name} uses {match.group(0)}, and no extension of that name is known")
    for word in ("@extschema@", "@extowner@", "MODULE_PATHNAME"):
        if word in source.text:
            raise TrechoError(f"{source.name} holds {word}, which CREATE EXTENSION replaces")
    quoted = parse(TOKEN.sub(r'"\g<0>"', source.text), source.name)  # not SQL before it is replaced
    return [replace(item, text=re.sub(rf'"({TOKEN.pattern})"', r"\1", item.text)) for item in quoted]


def _text(statement: Statement) -> str:
    """A statement as it stands in its file, with the comments in front of it."""
    return f"{statement.lead.removeprefix(';').lstrip()}{statement.text};"


def _record(source: Source, kind: str, release: Release) -> str:
    checksum = resources.sha256(source.text)
    values = [quote_text(value) for value in (source.name, kind, checksum, release.version)]
    return RECORD.strip().format(*values, "NULL") + ";"
