"""docs/scaling.md says which keys a distributed PostgreSQL would need; the catalog says whether that is so."""

from __future__ import annotations

import re

from servers import ROOT
from support import Connection

PAGE = (ROOT / "docs" / "scaling.md").read_text()
KEYS = """
SELECT regexp_replace(c.relname, '_1$', '_N') AS name,
       (SELECT string_agg(a.attname, ', ' ORDER BY k.n) FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, n)
          JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number) AS columns,
       EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = 'project') AS has_project
  FROM pg_class AS c
  LEFT JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisunique
 WHERE c.relnamespace = 'trecho'::regnamespace AND c.relkind = 'r'
"""


def place(columns: str, has_project: bool) -> str:
    """Where `project` is, in the words of the page."""
    if "project" in columns.split(", "):
        return "in the key"
    return "a column" if has_project else "missing"


def test_page_on_scaling__names_every_key_and_where_project_is(shared_db: Connection) -> None:
    rows = shared_db.execute(KEYS).fetchall()
    (listed,) = re.findall(r"so reference tables: (.*?)\.\n", PAGE, re.DOTALL)
    reference = set(re.findall(r"`(\w+)`", listed))
    assert reference <= {row["name"] for row in rows}
    keyless = {row["name"] for row in rows if row["columns"] is None} - reference
    assert keyless == set(
        re.findall(r"^`(\w+)` has a column `project` and no unique key", PAGE, re.MULTILINE)
    )
    assert all(row["has_project"] for row in rows if row["name"] in keyless)
    said = set(re.findall(r"^\| `(\w+)` \| `([\w, ]+)` \| ([a-z ]+?) \|", PAGE, re.MULTILINE))
    assert said == {
        (row["name"], row["columns"], place(row["columns"], row["has_project"]))
        for row in rows
        if row["columns"] is not None and row["name"] not in reference
    }
    assert len(said) >= 15
