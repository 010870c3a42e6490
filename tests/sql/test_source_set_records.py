"""Where the paths of plain folders begin, and what a configuration's record of its sets says, by the public SQL."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import Connection
from test_passes import reconcile, session, value

from trecho.config import folder_prefixes

FOLDERS = st.lists(
    st.lists(st.sampled_from(["a", "docs", "notas"]), min_size=1, max_size=3).map(
        lambda p: "/" + "/".join(p)
    ),
    min_size=1,
    max_size=5,
    unique=True,
)


def erase(conn: Connection) -> None:
    conn.execute("SELECT trecho.drop_project('default')")


def prefix_of(conn: Connection, folder: str) -> str:
    prefixes = folder_prefixes(PurePosixPath(folder))  # type: ignore[arg-type]
    return str(
        value(conn, "SELECT prefix FROM trecho.folder_prefix('default', 'main', %s, %s)", folder, prefixes)
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(folders=FOLDERS, data=st.data())
def test_folders__in_any_order_never_clash_and_keep_their_paths(
    dsn: str, folders: list[str], data: Any
) -> None:
    with session(dsn) as conn:
        erase(conn)
        began = {}
        for folder in folders:
            began[folder] = prefix_of(conn, folder)
            counts = reconcile(conn, {began[folder] + "README.md": f"# {folder}\n"}, folder)
            assert counts["documents_failed"] == 0
            assert (counts["documents_written"], counts["documents_removed"]) == (1, 0)
        assert len(set(began.values())) == len(folders)
        assert began[folders[0]] == folders[0].rpartition("/")[2] + "/"
        for folder in data.draw(st.permutations(folders)):
            assert prefix_of(conn, folder) == began[folder]


def test_folder__gives_way_to_folders_alone(dsn: str) -> None:
    """A set with a name of its own, or an application, may speak of the very same files: a clash is to be an error."""
    with session(dsn) as conn:
        reconcile(conn, {"docs/README.md": "# Um\n"}, "manual")
        assert prefix_of(conn, "/x/docs") == "docs/"
        counts = reconcile(conn, {"docs/README.md": "# Dois\n"}, "/x/docs")
        assert (
            "SELECT trecho.rename_source_set('manual', '/x/docs', 'default', 'main')" in counts["errors"][0]
        )


CONFIGURATIONS = st.lists(
    st.tuples(
        st.sampled_from(["/um/trecho.toml", "/dois/trecho.toml", "git", ""]),
        st.lists(st.sampled_from(["a", "b", "c"]), max_size=3, unique=True),
    ),
    max_size=8,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(syncs=CONFIGURATIONS)
def test_sets__are_left_over_when_the_last_to_name_them_names_them_no_more(
    dsn: str, syncs: list[tuple[str, list[str]]]
) -> None:
    with session(dsn) as conn:
        erase(conn)
        owner: dict[str, str] = {}
        for name in "abc":
            reconcile(conn, {f"{name}.md": f"# {name}\n"}, name)
        for configuration, names in syncs:
            rows = conn.execute(
                "SELECT * FROM trecho.record_source_sets('default', 'main', %s, %s::text[])",
                (configuration, names),
            ).fetchall()
            owner |= dict.fromkeys(names, configuration)
            expected = {
                n for n, by in owner.items() if by == configuration and n not in names and configuration
            }
            assert {row["source_set"] for row in rows} == expected
            assert all((row["documents"], row["left_configuration"]) == (1, True) for row in rows)
        listed = conn.execute("SELECT * FROM trecho.list_source_sets()").fetchall()
        assert {row["source_set"]: row["configuration"] for row in listed} == {
            name: owner.get(name) or None for name in "abc"
        }


def test_drop_source_set__removes_one_set_of_one_branch_and_keeps_what_gc_keeps(dsn: str) -> None:
    with session(dsn) as conn:
        for branch in ("main", "outro"):
            reconcile(conn, {"a.md": "# A\n\ntexto\n"}, "um", branch=branch)
            reconcile(conn, {"b.md": "# B\n\ntexto\n"}, "dois", branch=branch)
        chunk_id = value(
            conn, "SELECT chunk_id FROM trecho.placements WHERE branch = 'main' AND chunk_id LIKE 'a.md%%'"
        )
        assert value(conn, "SELECT trecho.drop_source_set('um')") == 1
        left = conn.execute("SELECT branch, source_set FROM trecho.documents ORDER BY 1, 2").fetchall()
        assert [tuple(row.values()) for row in left] == [("main", "dois"), ("outro", "dois"), ("outro", "um")]
        assert value(conn, "SELECT state FROM trecho.resolve(%s)", chunk_id) == "retired"
        assert value(conn, "SELECT count(*) FROM trecho.tombstones WHERE source_set = 'um'") == 1
        assert (
            value(
                conn, "SELECT count(*) FROM trecho.check_index() AS c WHERE c.severity NOT IN ('ok', 'stale')"
            )
            == 0
        )
        assert value(conn, "SELECT trecho.drop_source_set('um')") == 0
        with session(dsn) as other:
            value(other, "SELECT trecho.begin_pass('default', 'main', 'dois', '{docs}')")
            with pytest.raises(psycopg.errors.ObjectInUse):
                conn.execute("SELECT trecho.drop_source_set('dois')")
