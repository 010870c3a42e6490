"""Progress in a log: one line now and then, with rate and time left."""

from __future__ import annotations

import sys
import time

import pytest

from trecho.meter import Meter, progress_line


def test_a_line_tells_how_many_how_fast_and_how_long_still() -> None:
    assert progress_line("embedding", "text", 0, 40, 10.0) == "embedding: 0 of 40 texts"
    assert progress_line("embedding", "text", 20, 40, 10.0) == "embedding: 20 of 40 texts, 2.0/s, 10 s left"
    assert progress_line("a", "b", 10, 400, 10.0).endswith("1.0/s, 6 min 30 s left")
    assert progress_line("a", "b", 10, 40_000, 10.0).endswith("1.0/s, 11 h 06 min left")
    assert progress_line("a", "b", 50, 40, 10.0).endswith("0 s left")  # more appeared meanwhile
    assert progress_line("a", "b", 50, None, 10.0) == "a: 50 bs, 5.0/s"


def test_where_stderr_is_no_terminal_a_line_comes_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Meter("embedding", "text") as meter:
        for second in range(25):
            clock[0] = 100.0 + second
            meter.update(second, 100)
    assert capsys.readouterr().err.splitlines() == [
        "embedding: 10 of 100 texts, 1.0/s, 90 s left".replace("90 s", "1 min 30 s"),
        "embedding: 20 of 100 texts, 1.0/s, 1 min 20 s left",
    ]


def test_on_a_terminal_there_is_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Meter("embedding", "text") as meter:
        meter.update(3, 10)
    assert "embedding" in capsys.readouterr().err
