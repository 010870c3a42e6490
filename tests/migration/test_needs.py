"""What is missing, told apart: four states of an extension, with and without superuser; version of the server; roles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trecho import resources
from trecho.privileged import (
    EXTENSIONS,
    MEMBERSHIPS,
    ROLES,
    Extension,
    Facts,
    find_needs,
    operator_script,
    version_tuple,
)
from trecho.runner import OperatorScript
from trecho.statements import parse, quote_name

RELEASE = resources.current()


def facts(**changes) -> Facts:
    """A server on which everything is in place, for an ordinary role; changes are fields of Facts."""
    complete = Facts(
        version=170012,
        version_text="17.12",
        server="db.example:5432",
        database="acervo",
        role="app",
        superuser=False,
        can_create_roles=False,
        can_create_in_database=False,
        read_only=False,
        encoding="UTF8",
        extensions={
            "vector": Extension("vector", "0.8.0", "public", "0.8.0", False),
            "unaccent": Extension("unaccent", "1.1", "public", "1.1", True),
            "plpython3u": Extension("plpython3u", "1.0", "pg_catalog", "1.0", False),
        },
        roles=set(ROLES),
        memberships=set(MEMBERSHIPS),
        owns=True,
        schema_owner="trecho_owner",
        unusable_schemas=[],
        schema_grants=True,
        stamp=RELEASE.chunker_stamp,
        chunker_version=RELEASE.chunker_version,
        foreign_functions=[],
        chunking="server",
    )
    return replace(complete, **changes)


def with_extension(name: str, **changes) -> Facts:
    start = facts()
    extensions = dict(start.extensions)
    extensions[name] = replace(extensions[name], **changes)
    return replace(start, extensions=extensions)


def codes(found) -> list[tuple[str, bool]]:
    return [(need.code, need.operator) for need in found]


def test_needs__none_when_everything_is_in_place():
    assert find_needs(facts(), RELEASE, "server") == []


@pytest.mark.parametrize("superuser", [True, False])
@pytest.mark.parametrize("name", sorted(EXTENSIONS))
@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"installed": None, "schema": None, "available": None, "trusted": False}, "not_available"),
        ({"installed": None, "schema": None, "trusted": False}, "not_created"),
        ({"schema": "extensions"}, None),
        ({}, None),
    ],
    ids=["files-absent", "available", "installed-elsewhere", "installed"],
)
def test_needs__four_states_of_an_extension_with_and_without_superuser(name, state, code, superuser):
    given = replace(with_extension(name, **state), superuser=superuser)
    found = find_needs(given, RELEASE, "server")
    if code is None:
        assert found == []
        return
    if code == "not_created" and not superuser:
        code = "not_creatable"
    assert codes(found) == [(f"{name}_{code}", code != "not_created")]
    (need,) = found
    assert name in need.message and need.hint
    if need.operator:
        assert "server db.example:5432 (PostgreSQL 17.12)" in need.message
        assert ("--chunking client" in need.hint) == (name == "plpython3u")
    if code == "not_creatable":
        assert "role 'app' may not create extension" in need.message
        assert "not a superuser" in need.message
    if code == "not_available":
        assert "apt-get install postgresql-" in need.hint


def test_needs__trusted_extension_is_created_by_whoever_may_create_in_the_database():
    given = with_extension("unaccent", installed=None, schema=None)
    assert codes(find_needs(given, RELEASE, "server")) == [("unaccent_not_creatable", True)]
    assert "right CREATE on database 'acervo'" in find_needs(given, RELEASE, "server")[0].message
    given = replace(given, can_create_in_database=True)
    assert codes(find_needs(given, RELEASE, "server")) == [("unaccent_not_created", False)]


@pytest.mark.parametrize(
    ("available", "advice"),
    [("0.8.0", "ALTER EXTENSION vector UPDATE"), ("0.7.4", "Install a newer package")],
)
@pytest.mark.parametrize("superuser", [True, False])
def test_needs__pgvector_that_is_too_old_is_never_updated_by_itself(available, advice, superuser):
    given = replace(with_extension("vector", installed="0.7.4", available=available), superuser=superuser)
    (need,) = find_needs(given, RELEASE, "server")
    assert (need.code, need.operator) == ("vector_too_old", True)
    assert "vector 0.7.4" in need.message and "needs 0.8 or newer" in need.message
    assert advice in need.hint


def test_needs__pgvector_that_would_be_created_too_old_is_told_before():
    given = replace(with_extension("vector", installed=None, schema=None, available="0.5.1"), superuser=True)
    assert codes(find_needs(given, RELEASE, "server")) == [("vector_too_old", True)]


def test_needs__client_chunking_asks_neither_for_plpython_nor_for_its_functions():
    given = replace(
        with_extension("plpython3u", installed=None, schema=None, available=None),
        stamp=None,
        chunker_version=None,
    )
    assert find_needs(given, RELEASE, "client") == []
    assert codes(find_needs(given, RELEASE, "server")) == [
        ("plpython3u_not_available", True),
        ("chunkers_not_current", True),
    ]


@pytest.mark.parametrize("version", [(150009, "15.9"), (140001, "14.1")])
def test_needs__server_that_is_too_old_is_the_only_thing_said(version):
    given = replace(facts(version=version[0], version_text=version[1]), roles=set(), schema_owner=None)
    (need,) = find_needs(given, RELEASE, "server")
    assert (need.code, need.operator) == ("server_too_old", True)
    assert f"runs PostgreSQL {version[1]}, and trecho needs 16 or newer" in need.message


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"roles": set()}, "roles_missing"),
        ({"memberships": set()}, "membership_missing"),
        ({"owns": False}, "not_owner"),
        ({"schema_owner": None}, "schema_missing"),
        ({"schema_owner": "ana"}, "schema_foreign"),
        ({"unusable_schemas": ["My ext"]}, "extension_schema"),
        ({"stamp": "0" * 16}, "chunkers_not_current"),
        ({"stamp": None}, "chunkers_not_current"),
        ({"foreign_functions": ["trecho.chunk(text)"]}, "foreign_functions"),
        ({"encoding": "SQL_ASCII"}, "encoding"),
    ],
)
def test_needs__each_gap_has_its_own_code_message_and_hint(changes, code):
    found = find_needs(facts(**changes), RELEASE, "server")
    assert {need.code for need in found} == {code}
    assert all(need.operator and need.message and need.hint for need in found)


def test_needs__superuser_makes_roles_schema_and_chunkers_without_help():
    given = facts(
        superuser=True, can_create_roles=True, can_create_in_database=True, roles=set(), owns=False,
        schema_owner=None, stamp=None, chunker_version=None,
    )  # fmt: skip
    found = find_needs(given, RELEASE, "server")
    assert codes(found) == [
        ("roles_missing", False),
        ("schema_missing", False),
        ("chunkers_not_current", False),
    ]


def test_script__is_sql_and_holds_what_the_role_needs():
    given = facts(roles=set(), owns=False, schema_owner=None, stamp=None, role='we"ird\nrole')
    text = operator_script(RELEASE, given, "server", find_needs(given, RELEASE, "server"))
    kinds = [statement.kind for statement in parse(text, "script")]
    assert kinds[0] == kinds[-1] == "TransactionStmt"
    assert 'GRANT trecho_owner TO "we""ird\nrole";' in text
    assert "CREATE OR REPLACE FUNCTION trecho.py_load()" in text
    comments = [line for line in text.split("\n") if line.startswith("-- ")]
    assert any(
        "Run it as a superuser in database acervo of server db.example:5432" in line for line in comments
    )


def test_script__name_with_a_line_end_does_not_leave_its_comment():
    given = facts(owns=False, database="x\nDROP TABLE t;")
    text = operator_script(RELEASE, given, "client", find_needs(given, RELEASE, "client"))
    assert "\nDROP TABLE t;" not in text.replace("'x\nDROP TABLE t;'", "")
    assert all(s.kind in ("TransactionStmt", "VariableSetStmt", "DoStmt", "CreateExtensionStmt", "CommentStmt",
                          "GrantStmt", "GrantRoleStmt") for s in parse(text, "script"))  # fmt: skip


def test_script__client_chunking_leaves_plpython_out():
    given = facts(owns=False)
    text = operator_script(RELEASE, given, "client", find_needs(given, RELEASE, "client"))
    assert "plpython3u" not in text.replace("CREATE EXTENSION IF NOT EXISTS vector", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.8.0", (0, 8, 0)), ("1.1", (1, 1)), ("0.10.0-beta", (0, 10)), ("", ()), ("x", ())],
)
def test_version__is_compared_by_numbers(text, expected):
    assert version_tuple(text) == expected


def test_version__ten_is_newer_than_eight():
    assert version_tuple("0.10.0") > version_tuple("0.8")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("public", "public"),
        ("My ext", '"My ext"'),
        ("user", '"user"'),
        ('a"b', '"a""b"'),
        ("left", '"left"'),
        ("é", '"é"'),
    ],
)
def test_quote_name__quotes_what_is_not_plain(name, expected):
    assert quote_name(name) == expected


def test_roles__those_of_the_file_are_those_that_are_looked_for():
    text = next(source.text for source in RELEASE.privileged if source.name.endswith("10_roles.sql"))
    assert f"ARRAY[{', '.join(repr(role) for role in ROLES)}]" in text
    assert f"ARRAY[{', '.join(str(list(pair)) for pair in MEMBERSHIPS)}]" in text


def test_operator__several_needs_keep_the_advice_of_each():
    given = with_extension("plpython3u", installed=None, schema=None)
    given = replace(given, owns=False)
    given.extensions["vector"] = Extension("vector", None, None, None, False)
    error = OperatorScript(find_needs(given, RELEASE, "server"), "script")
    assert "extension vector is not installed on server" in str(error)
    assert "apt-get install postgresql-17-pgvector" in error.hint
    assert error.hint.endswith("trecho migrate --chunking client.")
    assert "also: role 'app' is not a member of trecho_owner" in error.detail
    given = replace(
        given, extensions={**given.extensions, "vector": Extension("vector", "0.7.0", "x", "0.8.0", False)}
    )
    given.extensions["unaccent"] = Extension("unaccent", None, None, None, False)
    error = OperatorScript(find_needs(given, RELEASE, "server"), "script")
    assert "postgresql-contrib" in error.detail
