"""`trecho migrate` on a real server."""

from __future__ import annotations


def test_migrate__a_second_run_changes_nothing(trecho, dsn):
    ran = trecho("migrate", dsn=dsn)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("nothing to do")


def test_db__clone_answers(db):
    assert db.execute("SELECT trecho.chunker_version() AS v").fetchone() == {"v": 1}
