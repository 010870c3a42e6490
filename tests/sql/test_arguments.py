"""Arguments that are NULL or empty: the message names the argument, and nothing is written."""

from __future__ import annotations

import psycopg
import pytest
from support import Connection

NULL, VALUE = "22004", "22023"


@pytest.mark.parametrize(
    ("call", "sqlstate", "message"),
    [
        ("put_document(NULL, 'x', 'a.md')", NULL, "scope must not be NULL"),
        ("put_document('docs', NULL, 'a.md')", NULL, "content must not be NULL"),
        ("put_document('docs', 'x', 'a.md', project => NULL)", NULL, "project must not be NULL"),
        ("put_document('docs', 'x', 'a.md', branch => NULL)", NULL, "branch must not be NULL"),
        ("put_document('docs', 'x', 'a.md', project => '')", VALUE, "project must not be empty"),
        ("put_document('docs', 'x', 'a.md', branch => '')", VALUE, "branch must not be empty"),
        ("put_document('docs', 'x', 'a.md', doc_id => '')", VALUE, "doc_id must not be empty"),
        ("put_document('docs', 'x')", VALUE, "scope docs with source_path NULL and session_id NULL"),
        ("put_document('docs', 'x', '')", VALUE, "scope docs with source_path '' and session_id NULL"),
        (
            "put_document('docs', 'x', 'a.md', metadata => '[]')",
            VALUE,
            "metadata must be a JSON object, got array",
        ),
        ("remove_document(NULL, 'a.md')", NULL, "scope must not be NULL"),
        ("remove_document('docs', NULL)", NULL, "source_path and session_id are both NULL"),
        ("remove_document('docs', 'a.md', project => NULL)", NULL, "project must not be NULL"),
        ("remove_document('docs', 'a.md', branch => '')", VALUE, "branch must not be empty"),
        ("list_documents(k => -1)", VALUE, "k and skip must be zero or more, got -1 and 0"),
        ("list_documents(project => NULL)", NULL, "project must not be NULL"),
        ("index_health(NULL)", NULL, "project must not be NULL"),
        ("search('x', project => NULL)", NULL, "project must not be NULL"),
        ("search('x', k => NULL)", VALUE, "k must be between 1 and 1000, got NULL"),
        ("chunk(NULL, 'x')", NULL, "plpy.Error: path must not be null"),
        ("chunk('a.md', NULL)", NULL, "plpy.Error: content must not be null"),
        ("drop_project(NULL)", NULL, "project must not be NULL or empty"),
        ("drop_project('')", NULL, "project must not be NULL or empty"),
        ("drop_branch('default', NULL)", NULL, "project and branch must not be NULL or empty"),
        ("drop_branch(NULL, 'main')", NULL, "project and branch must not be NULL or empty"),
        ("gc(NULL)", VALUE, "max_rows must be at least 1, got NULL"),
    ],
)
def test_arguments__that_are_missing_are_named(
    shared_db: Connection, call: str, sqlstate: str, message: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        shared_db.execute(f"SELECT trecho.{call}".encode())
    assert (caught.value.sqlstate, caught.value.diag.message_primary) == (sqlstate, message)


def test_list_documents__k_null_means_all_of_them(shared_db: Connection) -> None:
    for name in "abc":
        shared_db.execute("SELECT trecho.put_document('docs', 'texto', %s)", (f"{name}.md",))
    assert shared_db.execute("SELECT * FROM trecho.list_documents(k => NULL)").rowcount == 3
    assert shared_db.execute("SELECT * FROM trecho.list_documents(k => 2)").rowcount == 2
