"""`trecho lint`: what a migration asks of operators, readers and writers, read from PostgreSQL's own parse tree."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pglast
import pglast.parser
from pglast import enums

from trecho.console import print_json
from trecho.errors import ExitCode, TrechoError, UsageError
from trecho.statements import TOKEN, ParseFailed, Statement, parse

HELP = "Look through SQL files for what needs an operator, rewrites a table or blocks readers."

RULES: dict[str, str] = {
    "needs-operator": "only a superuser, or a role with rights over the whole server, may run it",
    "rewrites-table": "writes every row of a table anew, behind a lock that lets nobody read",
    "blocks-readers": "takes ACCESS EXCLUSIVE: readers wait, and queue behind it while it waits itself",
    "blocks-writers": "takes a lock that makes writers wait for as long as it works",
    "no-transaction": "cannot run in a transaction",
    "ends-transaction": "begins or ends a transaction inside a file that runs in one",
    "default-text-search": "depends on default_text_search_config: name the configuration as first argument",
    "search-path": "function without SET search_path: whoever calls it decides what its names mean",
    "not-checked": "could not be looked into; it may do anything",
}


@dataclass(frozen=True)
class Finding:
    """Something to look at. rule: a key of RULES; line: 1-based; found: what, in a few words."""

    file: str
    line: int
    rule: str
    found: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.found}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `trecho lint`."""
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="SQL files, of this project or of any other; - for stdin"
    )
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="RULE", help="leave a rule out (repeatable)"
    )
    parser.add_argument("--rules", action="store_true", help="list the rules")


def run(args: argparse.Namespace) -> int:
    """Exit codes: 0 nothing found, 1 something found or not checked, 3 an operator is needed."""
    if args.rules:
        if args.json:
            print_json(RULES)
        else:
            print("\n".join(f"{rule:<20}{text}" for rule, text in RULES.items()))
        return ExitCode.DONE
    if not args.files:
        raise UsageError("no file given", hint="trecho lint FILE…, or trecho lint --rules.")
    unknown = [rule for rule in args.ignore if rule not in RULES]
    if unknown:
        raise UsageError(f"unknown rule {unknown[0]!r}", hint="trecho lint --rules lists them.")
    findings: list[Finding] = []
    created: set[str] = set()
    for name in args.files:
        findings += lint_text(_read(name), name, created)
    findings = [finding for finding in findings if finding.rule not in args.ignore]
    code = exit_code(findings)
    if args.json:
        print_json({"findings": [asdict(finding) for finding in findings], "exit_code": int(code)})
        return code
    for finding in findings:
        print(f"{finding} ({RULES[finding.rule]})")
    dirty = {finding.file for finding in findings}
    for name in args.files:
        if name not in dirty:
            print(f"{name}: ok")
    return code


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """What findings mean to a script."""
    rules = {finding.rule for finding in findings}
    if "needs-operator" in rules:
        return ExitCode.OPERATOR
    return ExitCode.ERROR if rules else ExitCode.DONE


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrechoError(f"{name} cannot be read: {error}", hint="Give SQL files in UTF-8.") from error


def lint_text(text: str, file: str, created: set[str] | None = None) -> list[Finding]:
    """Findings of one file in order of lines.

    created: names of tables that are new (and so empty and unused); those that the file makes are added.
    """
    try:
        statements = parse(TOKEN.sub("public", text), file)
    except ParseFailed as error:
        line = int(str(error).split(":")[1]) if str(error).count(":") > 1 else 1
        return [Finding(file, line, "not-checked", str(error).split(": ", 1)[-1])]
    return lint_statements(statements, created)


def lint_statements(statements: Iterable[Statement], created: set[str] | None = None) -> list[Finding]:
    """The same for statements that are parsed already."""
    known = set() if created is None else created
    findings: list[Finding] = []
    for statement in statements:
        allowed = set(re.findall(r"--\s*lint: allow ([a-z-]+)", statement.lead + statement.text))
        for line, rule, found in [*_of_statement(statement, known), *_of_text(statement)]:
            if rule not in allowed:
                findings.append(Finding(statement.file, line, rule, found))
        known |= _created_by(statement.node)
    return findings


# A finding inside a statement: line in the file, rule, what.
Found = tuple[int, str, str]


def _name(relation: Any) -> str:
    return f"{relation.schemaname}.{relation.relname}" if relation.schemaname else str(relation.relname)


def _created_by(node: Any) -> set[str]:
    kind = type(node).__name__
    if kind == "CreateStmt":
        return {_name(node.relation)}
    if kind in ("CreateTableAsStmt", "SelectStmt") and getattr(node, "into", None) and node.into.rel:
        return {_name(node.into.rel)}
    if kind == "ViewStmt":
        return {_name(node.view)}
    if kind == "CreateSchemaStmt":
        return {_name(e.relation) for e in node.schemaElts or () if type(e).__name__ == "CreateStmt"}
    return set()


def _of_statement(statement: Statement, created: set[str]) -> Iterator[Found]:
    """What running the statement asks for."""
    node = statement.node
    kind = type(node).__name__
    line = statement.line
    if kind in _OPERATOR:
        yield line, "needs-operator", _OPERATOR[kind]
    if kind == "TransactionStmt" and node.kind not in _SAVEPOINTS:
        yield line, "ends-transaction", statement.summary
    if kind in _NO_TRANSACTION:
        yield line, "no-transaction", _NO_TRANSACTION[kind]
    rule = _BY_KIND.get(kind)
    if rule is not None:
        for name, found in rule(node, created):
            yield line, name, found
    if kind == "CreateFunctionStmt":
        yield from _of_function(statement)
    if kind == "AlterFunctionStmt":
        yield from _of_altered_function(statement)
    if kind == "DoStmt":
        yield from _of_do(statement, created)


_OPERATOR = {
    "CreateExtensionStmt": "CREATE EXTENSION",
    "AlterExtensionStmt": "ALTER EXTENSION",
    "AlterExtensionContentsStmt": "ALTER EXTENSION",
    "CreatePLangStmt": "CREATE LANGUAGE",
    "CreateRoleStmt": "CREATE ROLE",
    "AlterRoleStmt": "ALTER ROLE",
    "AlterRoleSetStmt": "ALTER ROLE … SET",
    "DropRoleStmt": "DROP ROLE",
    "GrantRoleStmt": "GRANT of a role",
    "AlterSystemStmt": "ALTER SYSTEM",
    "CreateEventTrigStmt": "CREATE EVENT TRIGGER",
    "AlterEventTrigStmt": "ALTER EVENT TRIGGER",
    "CreateTableSpaceStmt": "CREATE TABLESPACE",
    "DropTableSpaceStmt": "DROP TABLESPACE",
    "CreatedbStmt": "CREATE DATABASE",
    "DropdbStmt": "DROP DATABASE",
    "AlterDatabaseStmt": "ALTER DATABASE",
    "AlterDatabaseSetStmt": "ALTER DATABASE … SET",
    "CreateFdwStmt": "CREATE FOREIGN DATA WRAPPER",
    "CreateSubscriptionStmt": "CREATE SUBSCRIPTION",
    "CreateAmStmt": "CREATE ACCESS METHOD",
    "LoadStmt": "LOAD",
    "CreateOpClassStmt": "CREATE OPERATOR CLASS",
    "CreateOpFamilyStmt": "CREATE OPERATOR FAMILY",
    "AlterOpFamilyStmt": "ALTER OPERATOR FAMILY",
    "DropOwnedStmt": "DROP OWNED",
    "ReassignOwnedStmt": "REASSIGN OWNED",
    "CheckPointStmt": "CHECKPOINT",
}
_SAVEPOINTS = {
    enums.TransactionStmtKind.TRANS_STMT_SAVEPOINT,
    enums.TransactionStmtKind.TRANS_STMT_RELEASE,
    enums.TransactionStmtKind.TRANS_STMT_ROLLBACK_TO,
}
_NO_TRANSACTION = {
    "CreatedbStmt": "CREATE DATABASE",
    "DropdbStmt": "DROP DATABASE",
    "CreateTableSpaceStmt": "CREATE TABLESPACE",
    "DropTableSpaceStmt": "DROP TABLESPACE",
    "AlterSystemStmt": "ALTER SYSTEM",
    "CreateSubscriptionStmt": "CREATE SUBSCRIPTION",
    "DropSubscriptionStmt": "DROP SUBSCRIPTION",
}


def _option(node: Any, name: str) -> Any:
    for option in getattr(node, "params", None) or getattr(node, "options", None) or ():
        if option.defname == name:
            return option
    return None


def _switched_on(option: Any) -> bool:
    """Whether an option such as (FULL), (FULL true) or (FULL off) is on."""
    if option is None:
        return False
    value = getattr(option.arg, "sval", None)
    if value is None:
        value = getattr(option.arg, "ival", getattr(option.arg, "boolval", True))
    return str(value).lower() not in ("false", "off", "0")


Rule = Iterator[tuple[str, str]]


def _index(node: Any, created: set[str]) -> Rule:
    if node.concurrent:
        yield "no-transaction", "CREATE INDEX CONCURRENTLY"
    elif _name(node.relation) not in created:
        yield "blocks-writers", f"CREATE INDEX on {_name(node.relation)} without CONCURRENTLY"


def _reindex(node: Any, created: set[str]) -> Rule:
    whole = {
        enums.ReindexObjectType.REINDEX_OBJECT_SCHEMA: "SCHEMA",
        enums.ReindexObjectType.REINDEX_OBJECT_SYSTEM: "SYSTEM",
        enums.ReindexObjectType.REINDEX_OBJECT_DATABASE: "DATABASE",
    }.get(node.kind)
    if whole:
        yield "no-transaction", f"REINDEX {whole}"
    if _switched_on(_option(node, "concurrently")):
        if not whole:
            yield "no-transaction", "REINDEX CONCURRENTLY"
    else:
        yield "blocks-readers", "REINDEX without CONCURRENTLY"


def _drop(node: Any, created: set[str]) -> Rule:
    kind = node.removeType
    names = [".".join(part.sval for part in item) for item in node.objects if isinstance(item, tuple)]
    if kind == enums.ObjectType.OBJECT_INDEX:
        if node.concurrent:
            yield "no-transaction", "DROP INDEX CONCURRENTLY"
        else:
            yield "blocks-readers", f"DROP INDEX {', '.join(names)} without CONCURRENTLY"
    elif kind in (
        enums.ObjectType.OBJECT_TABLE,
        enums.ObjectType.OBJECT_MATVIEW,
        enums.ObjectType.OBJECT_VIEW,
    ):
        live = [name for name in names if name not in created]
        if live:
            yield "blocks-readers", f"DROP of {', '.join(live)}"
    elif kind in (enums.ObjectType.OBJECT_EXTENSION, enums.ObjectType.OBJECT_LANGUAGE):
        yield (
            "needs-operator",
            "DROP EXTENSION" if kind == enums.ObjectType.OBJECT_EXTENSION else "DROP LANGUAGE",
        )
    elif kind in (
        enums.ObjectType.OBJECT_TRIGGER,
        enums.ObjectType.OBJECT_POLICY,
        enums.ObjectType.OBJECT_RULE,
    ):
        table = ".".join(part.sval for part in node.objects[0][:-1])
        if table not in created:
            yield "blocks-readers", f"DROP of a trigger, policy or rule of {table}"
    elif node.behavior == enums.DropBehavior.DROP_CASCADE:
        yield "blocks-readers", "DROP … CASCADE, which takes tables, columns and views along"


def _truncate(node: Any, created: set[str]) -> Rule:
    live = [_name(relation) for relation in node.relations if _name(relation) not in created]
    if live:
        yield "blocks-readers", f"TRUNCATE {', '.join(live)}"


def _lock(node: Any, created: set[str]) -> Rule:
    if node.mode == 8:  # AccessExclusiveLock
        yield "blocks-readers", "LOCK TABLE … IN ACCESS EXCLUSIVE MODE"
    elif node.mode >= 5:  # ShareLock and stronger
        yield "blocks-writers", "LOCK TABLE"


def _vacuum(node: Any, created: set[str]) -> Rule:
    if node.is_vacuumcmd:
        yield "no-transaction", "VACUUM"
        if _switched_on(_option(node, "full")):
            yield "rewrites-table", "VACUUM FULL"


def _cluster(node: Any, created: set[str]) -> Rule:
    if node.relation is None:
        yield "no-transaction", "CLUSTER of every table"
    yield "rewrites-table", "CLUSTER"


def _refresh(node: Any, created: set[str]) -> Rule:
    if not node.concurrent:
        yield "blocks-readers", f"REFRESH MATERIALIZED VIEW {_name(node.relation)} without CONCURRENTLY"


def _create_table(node: Any, created: set[str]) -> Rule:
    parents = [_name(relation) for relation in node.inhRelations or ()]
    live = [name for name in parents if name not in created]
    if node.partbound is not None and live:
        yield "blocks-readers", f"CREATE TABLE … PARTITION OF {live[0]}: create it alone and ATTACH it"
    for constraint in [*_constraints(node.constraints), *_column_constraints(node.tableElts)]:
        target = getattr(constraint, "pktable", None)
        if target is not None and _name(target) not in created and _name(target) != _name(node.relation):
            yield "blocks-writers", f"foreign key to {_name(target)}"


def _constraints(items: Any) -> list[Any]:
    return [item for item in items or () if type(item).__name__ == "Constraint"]


def _column_constraints(elements: Any) -> list[Any]:
    found = _constraints(elements)
    for element in elements or ():
        if type(element).__name__ == "ColumnDef":
            found += _constraints(element.constraints)
    return found


def _trigger(node: Any, created: set[str]) -> Rule:
    if _name(node.relation) not in created:
        yield "blocks-writers", f"CREATE TRIGGER on {_name(node.relation)}"


def _rule(node: Any, created: set[str]) -> Rule:
    if _name(node.relation) not in created:
        yield "blocks-readers", f"CREATE RULE on {_name(node.relation)}"


def _policy(node: Any, created: set[str]) -> Rule:
    if _name(node.table) not in created:
        yield "blocks-readers", f"policy of {_name(node.table)}"


def _view(node: Any, created: set[str]) -> Rule:
    if node.replace and _name(node.view) not in created:
        yield "blocks-readers", f"CREATE OR REPLACE VIEW {_name(node.view)}"


def _set_schema(node: Any, created: set[str]) -> Rule:
    if node.relation is not None and _name(node.relation) not in created:
        yield "blocks-readers", f"SET SCHEMA of {_name(node.relation)}"


def _define(node: Any, created: set[str]) -> Rule:
    superuser = {
        enums.ObjectType.OBJECT_TYPE: "CREATE TYPE of a base type",
        enums.ObjectType.OBJECT_TSPARSER: "CREATE TEXT SEARCH PARSER",
        enums.ObjectType.OBJECT_TSTEMPLATE: "CREATE TEXT SEARCH TEMPLATE",
    }
    if node.kind in superuser:
        yield "needs-operator", superuser[node.kind]


# Parameters that only a superuser, or who was granted them, may set.
_SUPERUSER_SETTINGS = {"session_authorization", "session_replication_role", "allow_system_table_mods"}


def _set(node: Any, created: set[str]) -> Rule:
    if node.name and (node.name in _SUPERUSER_SETTINGS or node.name.startswith("log_")):
        yield "needs-operator", f"SET {node.name}"


def _grant(node: Any, created: set[str]) -> Rule:
    superuser = {
        enums.ObjectType.OBJECT_LANGUAGE: "a language",
        enums.ObjectType.OBJECT_PARAMETER_ACL: "a parameter",
        enums.ObjectType.OBJECT_FDW: "a foreign data wrapper",
        enums.ObjectType.OBJECT_TABLESPACE: "a tablespace",
    }
    if node.objtype in superuser:
        yield "needs-operator", f"GRANT or REVOKE on {superuser[node.objtype]}"


def _rename(node: Any, created: set[str]) -> Rule:
    if node.renameType == enums.ObjectType.OBJECT_INDEX:
        return  # SHARE UPDATE EXCLUSIVE: searches go on
    if node.relation is not None and _name(node.relation) not in created:
        yield "blocks-readers", f"RENAME of {_name(node.relation)} or of a part of it"


def _copy(node: Any, created: set[str]) -> Rule:
    if node.filename:
        yield "needs-operator", "COPY with a program or a file of the server"


def _alter_owner(node: Any, created: set[str]) -> Rule:
    if node.objectType in (enums.ObjectType.OBJECT_EVENT_TRIGGER, enums.ObjectType.OBJECT_DATABASE):
        yield "needs-operator", "ALTER … OWNER"


def _publication(node: Any, created: set[str]) -> Rule:
    if node.for_all_tables:
        yield "needs-operator", "CREATE PUBLICATION … FOR ALL TABLES"
    elif any(
        item.pubobjtype == enums.PublicationObjSpecType.PUBLICATIONOBJ_TABLES_IN_SCHEMA
        for item in node.pubobjects or ()
    ):
        yield "needs-operator", "CREATE PUBLICATION … FOR TABLES IN SCHEMA"


# Forms of ALTER TABLE that let readers and writers go on (SHARE UPDATE EXCLUSIVE or less).
_AT = enums.AlterTableType
_GENTLE = {
    _AT.AT_ValidateConstraint,
    _AT.AT_SetStatistics,
    _AT.AT_ClusterOn,
    _AT.AT_DropCluster,
    _AT.AT_AttachPartition,
    _AT.AT_DetachPartitionFinalize,
    _AT.AT_SetOptions,
    _AT.AT_ResetOptions,
    _AT.AT_SetRelOptions,
    _AT.AT_ResetRelOptions,
    _AT.AT_ReplaceRelOptions,
}
# Forms that stop writers and not readers (SHARE ROW EXCLUSIVE).
_WRITERS = {
    _AT.AT_EnableTrig,
    _AT.AT_EnableAlwaysTrig,
    _AT.AT_EnableReplicaTrig,
    _AT.AT_EnableTrigAll,
    _AT.AT_EnableTrigUser,
    _AT.AT_DisableTrig,
    _AT.AT_DisableTrigAll,
    _AT.AT_DisableTrigUser,
}
_REWRITES = {
    _AT.AT_AlterColumnType: "ALTER COLUMN … TYPE",
    _AT.AT_SetLogged: "SET LOGGED",
    _AT.AT_SetUnLogged: "SET UNLOGGED",
    _AT.AT_SetAccessMethod: "SET ACCESS METHOD",
    _AT.AT_SetTableSpace: "SET TABLESPACE",
    _AT.AT_SetExpression: "SET EXPRESSION",
}
_SERIAL = {"serial", "bigserial", "smallserial", "serial4", "serial8", "serial2"}
# Functions of pg_catalog that give one value for a whole statement, so that a default needs no rewrite.
_STEADY = {"now", "current_setting", "statement_timestamp", "transaction_timestamp", "to_timestamp"}


def _alter_other(node: Any, name: str) -> Rule:
    """ALTER of an index, a view or a composite type, which the parser takes for ALTER TABLE."""
    if node.objtype == enums.ObjectType.OBJECT_INDEX:
        if not all(command.subtype in _GENTLE for command in node.cmds):
            yield "blocks-readers", f"ALTER INDEX {name}"
    elif node.objtype == enums.ObjectType.OBJECT_VIEW:
        yield "blocks-readers", f"ALTER VIEW {name}"
    elif node.objtype == enums.ObjectType.OBJECT_TYPE and any(
        command.behavior == enums.DropBehavior.DROP_CASCADE for command in node.cmds
    ):
        yield "rewrites-table", f"ALTER TYPE {name} … CASCADE, in every table of that type"


def _alter_table(node: Any, created: set[str]) -> Rule:
    name = _name(node.relation)
    if name in created:
        return
    if node.objtype not in (enums.ObjectType.OBJECT_TABLE, enums.ObjectType.OBJECT_MATVIEW):
        yield from _alter_other(node, name)
        return
    for command in node.cmds:
        subtype = command.subtype
        if subtype in _GENTLE:
            continue
        if subtype == _AT.AT_DetachPartition and command.def_.concurrent:
            yield "no-transaction", f"DETACH PARTITION … CONCURRENTLY from {name}"
        elif subtype in _WRITERS:
            yield "blocks-writers", f"ALTER TABLE {name} ENABLE or DISABLE TRIGGER"
        elif subtype in _REWRITES:
            yield "rewrites-table", f"ALTER TABLE {name} {_REWRITES[subtype]}"
        elif subtype == _AT.AT_AddColumn and (why := _rewriting_column(command.def_)):
            yield "rewrites-table", f"ALTER TABLE {name} ADD COLUMN {command.def_.colname} {why}"
        elif subtype == _AT.AT_AddConstraint and command.def_.contype == enums.ConstrType.CONSTR_FOREIGN:
            yield "blocks-writers", f"ALTER TABLE {name} ADD FOREIGN KEY"
        else:
            yield "blocks-readers", f"ALTER TABLE {name} {_spoken(subtype)}"


def _spoken(subtype: Any) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", str(subtype.name).removeprefix("AT_"))
    return words.upper()


def _rewriting_column(column: Any) -> str:
    """Why adding the column writes every row; empty when it does not."""
    if column.typeName.names[-1].sval in _SERIAL:
        return f"of type {column.typeName.names[-1].sval}"
    for constraint in _constraints(column.constraints):
        if constraint.contype == enums.ConstrType.CONSTR_GENERATED and constraint.generated_kind != "v":
            return "GENERATED … STORED"
        if constraint.contype == enums.ConstrType.CONSTR_IDENTITY:
            return "AS IDENTITY"
        if constraint.contype == enums.ConstrType.CONSTR_DEFAULT:
            called = _calls(constraint.raw_expr)
            if called - _STEADY:
                return f"with a DEFAULT that calls {', '.join(sorted(called - _STEADY))}"
    return ""


def _calls(node: Any) -> set[str]:
    """Names of the functions that an expression calls."""
    found: set[str] = set()
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple | list):
            stack += item
        elif hasattr(item, "__slots__") and type(item).__module__.startswith("pglast"):
            if type(item).__name__ == "FuncCall":
                found.add(item.funcname[-1].sval)
            stack += [getattr(item, slot, None) for slot in item.__slots__]
    return found


_BY_KIND: dict[str, Callable[[Any, set[str]], Rule]] = {
    "IndexStmt": _index,
    "ReindexStmt": _reindex,
    "DropStmt": _drop,
    "TruncateStmt": _truncate,
    "LockStmt": _lock,
    "VacuumStmt": _vacuum,
    "ClusterStmt": _cluster,
    "RefreshMatViewStmt": _refresh,
    "CreateStmt": _create_table,
    "CreateTrigStmt": _trigger,
    "RenameStmt": _rename,
    "CopyStmt": _copy,
    "AlterOwnerStmt": _alter_owner,
    "CreatePublicationStmt": _publication,
    "AlterTableStmt": _alter_table,
    "RuleStmt": _rule,
    "CreatePolicyStmt": _policy,
    "AlterPolicyStmt": _policy,
    "ViewStmt": _view,
    "AlterObjectSchemaStmt": _set_schema,
    "DefineStmt": _define,
    "VariableSetStmt": _set,
    "GrantStmt": _grant,
}

# Languages whose functions an ordinary role may create.
_TRUSTED = {"sql", "plpgsql", "plperl", "pltcl", "plv8", "plrust", "pljava"}


def _of_function(statement: Statement) -> Iterator[Found]:
    node = statement.node
    options = {option.defname: option for option in node.options or ()}
    language = options["language"].arg.sval.lower() if "language" in options else "sql"
    if language not in _TRUSTED:
        yield statement.line, "needs-operator", f"function in language {language}"
    if "leakproof" in options:
        yield statement.line, "needs-operator", "function that is LEAKPROOF"
    settings = [o.arg.name for o in node.options or () if o.defname == "set"]
    if "search_path" in settings or node.sql_body is not None:
        return
    if "no set clause" in (statement.lead + statement.text).lower():
        return  # said on purpose, beside it: a SET clause stops inlining
    yield statement.line, "search-path", ".".join(part.sval for part in node.funcname)


def _of_altered_function(statement: Statement) -> Iterator[Found]:
    node = statement.node
    name = ".".join(part.sval for part in node.func.objname)
    for option in node.actions or ():
        if option.defname == "leakproof":
            yield statement.line, "needs-operator", f"{name} made LEAKPROOF"
        if option.defname == "set" and (
            option.arg.kind == enums.VariableSetKind.VAR_RESET_ALL
            or (option.arg.name == "search_path" and option.arg.kind == enums.VariableSetKind.VAR_RESET)
        ):
            yield statement.line, "search-path", f"{name} loses it"


def _of_do(statement: Statement, created: set[str]) -> Iterator[Found]:
    """A DO block runs now: its statements count, and what it builds from text cannot be known."""
    arguments = {option.defname: option.arg for option in statement.node.args}
    language = arguments["language"].sval if "language" in arguments else "plpgsql"
    body = str(arguments["as"].sval)
    if language != "plpgsql":
        yield statement.line, "not-checked", f"DO block in {language}"
        if language not in _TRUSTED:
            yield statement.line, "needs-operator", f"DO block in {language}"
        return
    tag = "$lint_of_trecho$"
    try:
        tree = pglast.parse_plpgsql(f"CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS {tag}{body}{tag}")
    except Exception:
        yield statement.line, "not-checked", "DO block that cannot be parsed"
        return
    offset = statement.text.find(body)
    top = statement.line + (statement.text.count("\n", 0, offset) if offset >= 0 else 0)
    for line, kind, query in _plpgsql(tree):
        known = _constant(query) if kind == "PLpgSQL_stmt_dynexecute" else query
        if known is None:
            yield top + line - 1, "not-checked", f"EXECUTE {' '.join(query.split())[:60]}"
            continue
        try:
            inner = parse(known, statement.file)
        except ParseFailed:
            continue  # an assignment or an expression
        for part in inner:
            for _, rule, found in _of_statement(part, created):
                yield top + line - 1, rule, found


def _constant(query: str) -> str | None:
    """The text of an EXECUTE that runs one string constant; None when it is put together at run time."""
    try:
        (raw,) = pglast.parse_sql(f"SELECT {query}")
        select: Any = raw.stmt
        (target,) = select.targetList
        return str(target.val.val.sval)
    except (pglast.parser.ParseError, AttributeError, ValueError):
        return None


def _plpgsql(tree: Any, line: int = 1) -> Iterator[tuple[int, str, str]]:
    """(line, kind, text) of every SQL statement and EXECUTE of a PL/pgSQL tree."""
    if isinstance(tree, list):
        for item in tree:
            yield from _plpgsql(item, line)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            here = value.get("lineno", line) if isinstance(value, dict) else line
            if key == "PLpgSQL_stmt_dynexecute":
                yield here, key, value["query"]["PLpgSQL_expr"]["query"]
            elif key == "PLpgSQL_stmt_execsql":
                yield here, key, value["sqlstmt"]["PLpgSQL_expr"]["query"]
            else:
                yield from _plpgsql(value, here)


# Functions that read default_text_search_config when called with one argument.
_TEXT_SEARCH = re.compile(r"^(?:to_tsvector|(?:to_|plainto_|phraseto_|websearch_to_)tsquery)$", re.I)


def _of_text(statement: Statement) -> Iterator[Found]:
    """One-argument text search calls, in the statement and in the bodies it quotes."""
    yield from _scan(statement.text, statement.line)


def _scan(text: str, line: int) -> Iterator[Found]:
    try:
        tokens = [t for t in pglast.parser.scan(text) if t.name not in ("SQL_COMMENT", "C_COMMENT")]
    except pglast.parser.ParseError:
        return
    for index, token in enumerate(tokens):
        word = text[token.start : token.end + 1]
        if token.name == "SCONST" and word.startswith("$"):
            tag = word[: word.index("$", 1) + 1]
            start = line + text.count("\n", 0, token.start)
            yield from _scan(word[len(tag) : -len(tag)], start)
        elif token.name == "IDENT" and _TEXT_SEARCH.match(word.strip('"')):
            argument_count = _argument_count(tokens, index + 1)
            if argument_count == 1:
                here = line + text.count("\n", 0, token.start)
                yield here, "default-text-search", f"{word}() with one argument"


def _argument_count(tokens: list[Any], start: int) -> int | None:
    """Arguments of a call whose parenthesis is token `start`; None when it is no call or has none."""
    if start >= len(tokens) or tokens[start].name != "ASCII_40":
        return None
    depth, count = 0, 1
    for position, token in enumerate(tokens[start:]):
        if token.name in ("ASCII_40", "ASCII_91"):
            depth += 1
        elif token.name in ("ASCII_41", "ASCII_93"):
            depth -= 1
            if depth == 0:
                return None if position == 1 else count
        elif token.name == "ASCII_44" and depth == 1:
            count += 1
    return None
