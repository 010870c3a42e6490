"""Functions and views that are no longer as their file made them: dropped or altered by hand."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from trecho.resources import Release, sha256
from trecho.statements import Statement, quote_text

OURS = ("trecho_owner", "trecho_reader", "trecho_writer", "trecho_operator")

# What a hand could alter, as one hash an object: what it does, who owns it, who of ours may use it. From columns of
# the catalog and not from pg_get_functiondef, whose text another major version may write in another way. Rights of
# roles that are not ours are the operator's affair. Needs search_path = pg_catalog, as every run has.
CATALOG_OBJECTS = f"""
SELECT p.oid::pg_catalog.regprocedure::text AS object, p.proname AS name,
       pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.jsonb_build_array(
           p.prokind::text, l.lanname, p.prosrc, pg_catalog.pg_get_function_sqlbody(p.oid),
           pg_catalog.pg_get_function_arguments(p.oid), pg_catalog.pg_get_function_result(p.oid), p.provolatile::text,
           p.proparallel::text, p.proisstrict, p.prosecdef, p.proleakproof, p.procost, p.prorows, p.proconfig,
           CASE WHEN r.rolsuper THEN 'superuser' ELSE r.rolname END, pg_catalog.obj_description(p.oid, 'pg_proc'),
           (SELECT pg_catalog.array_agg(pg_catalog.concat(g.rolname, '=', a.privilege_type)
                                        ORDER BY g.rolname, a.privilege_type)
              FROM pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) AS a
              LEFT JOIN pg_catalog.pg_roles AS g ON g.oid = a.grantee
             WHERE a.grantee = 0 OR g.rolname IN {OURS!r}))::text, 'UTF8')), 'hex') AS fingerprint
  FROM pg_catalog.pg_proc AS p
  JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
  JOIN pg_catalog.pg_roles AS r ON r.oid = p.proowner
 WHERE p.pronamespace = 'trecho'::pg_catalog.regnamespace
UNION ALL
SELECT c.oid::pg_catalog.regclass::text, c.relname,
       pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.jsonb_build_array(
           pg_catalog.pg_get_viewdef(c.oid), c.reloptions, r.rolname, pg_catalog.obj_description(c.oid, 'pg_class'),
           (SELECT pg_catalog.array_agg(pg_catalog.concat(g.rolname, '=', a.privilege_type)
                                        ORDER BY g.rolname, a.privilege_type)
              FROM pg_catalog.aclexplode(c.relacl) AS a
              LEFT JOIN pg_catalog.pg_roles AS g ON g.oid = a.grantee
             WHERE a.grantee = 0 OR g.rolname IN {OURS!r}))::text, 'UTF8')), 'hex')
  FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_roles AS r ON r.oid = c.relowner
 WHERE c.relnamespace = 'trecho'::pg_catalog.regnamespace AND c.relkind = 'v'
"""

# files: JSON text, as constant or parameter, of {{file: [names of its functions and views]}}.
FORGET_SCHEMA_OBJECTS = """
DELETE FROM trecho.schema_objects AS o
 WHERE o.file IN (SELECT f.file FROM pg_catalog.jsonb_object_keys({files}::pg_catalog.jsonb) AS f (file))
"""
FILL_SCHEMA_OBJECTS = f"""
INSERT INTO trecho.schema_objects AS o (object, file, fingerprint)
SELECT DISTINCT ON (c.object) c.object, f.file, c.fingerprint
  FROM pg_catalog.jsonb_each({{files}}::pg_catalog.jsonb) AS f (file, names)
  JOIN ({CATALOG_OBJECTS.strip()}) AS c ON f.names OPERATOR(pg_catalog.?) c.name::text
 ORDER BY c.object, f.file DESC
ON CONFLICT ON CONSTRAINT schema_objects_pkey DO UPDATE SET file = EXCLUDED.file, fingerprint = EXCLUDED.fingerprint
"""
# A migration may have dropped what an earlier one made, and a release may leave a file of functions out.
FORGET_GONE_OBJECTS = f"""
DELETE FROM trecho.schema_objects AS o
 WHERE (o.file LIKE 'migrations/%' AND o.object NOT IN (SELECT c.object FROM ({CATALOG_OBJECTS.strip()}) AS c))
    OR (o.file LIKE 'sql/%' AND o.file <> ALL ({{shipped}}))
"""


@dataclass(frozen=True)
class Drift:
    """A function or view that is not as its file made it. what: missing or altered."""

    object: str
    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.object} {'is missing' if self.what == 'missing' else 'was altered'} ({self.file} makes it)"

    @property
    def name(self) -> str:
        """Without schema and arguments."""
        return self.object.split("(", 1)[0].rsplit(".", 1)[-1]

    @property
    def clearance(self) -> str:
        """SQL that makes way for the file: CREATE OR REPLACE would keep its owner, rights and result type."""
        # A superuser may run it, and the owner of the schema names what is in it: no name may end the quotation.
        tag = f"$do_{sha256(self.object)[:32]}$"
        function = self.object.endswith(")")
        kind, rights = (
            ("FUNCTION", f"ON FUNCTION {self.object}") if function else ("VIEW", f"ON {self.object}")
        )
        lines = [
            f"DO {tag} BEGIN DROP {kind} IF EXISTS {self.object};",
            "EXCEPTION WHEN dependent_objects_still_exist THEN  -- somebody's view uses it",
            f"    REVOKE ALL {rights} FROM PUBLIC, {', '.join(OURS[1:])};",
            *([f"    GRANT EXECUTE {rights} TO {OURS[0]};"] if function else []),
            f"END {tag}",
        ]
        return "\n".join(lines)


def made_by(statements: list[Statement]) -> list[str]:
    """Names of the functions and views of schema trecho that these statements make."""
    names = set()
    for statement in statements:
        node = statement.node
        if statement.kind == "CreateFunctionStmt":
            parts = [part.sval for part in node.funcname]
            if parts[:-1] == ["trecho"]:
                names.add(parts[-1])
        elif statement.kind == "ViewStmt" and node.view.schemaname == "trecho":
            names.add(node.view.relname)
    return sorted(names)


def made_again(statements: list[Statement], name: str) -> list[Statement]:
    """The statements of a migration about one function, to be run once more; none where it does not make it."""
    about = []
    for statement in statements:
        node = statement.node
        if statement.kind == "CreateFunctionStmt" and made_by([statement]) == [name]:
            text = re.sub(r"^CREATE\s+FUNCTION", "CREATE OR REPLACE FUNCTION", statement.text)
            about.append(replace(statement, text=text))
        elif ["trecho", name] in _functions_named(node):
            about.append(statement)
    return about if name in made_by(about) else []


def _functions_named(node: Any) -> list[list[str]]:
    """Names, in parts, of the functions that a COMMENT or a GRANT is about."""
    objects = [node.object] if type(node).__name__ == "CommentStmt" else getattr(node, "objects", None) or ()
    return [[part.sval for part in getattr(item, "objname", None) or ()] for item in objects]


def note_objects(files: dict[str, list[str]], release: Release) -> str:
    """SQL that keeps what these files have just made. files: name to what made_by says; search_path pg_catalog."""
    text = quote_text(json.dumps(files))
    statements = [FORGET_SCHEMA_OBJECTS.format(files=text), FILL_SCHEMA_OBJECTS.format(files=text)]
    if any(name.startswith("migrations/") for name in files):
        shipped = [source.name for source in (*release.privileged, *release.behaviour)]
        statements.append(
            FORGET_GONE_OBJECTS.format(shipped=f"ARRAY[{', '.join(map(quote_text, shipped))}]::text[]")
        )
    return ";\n".join(statement.strip() for statement in statements)
