"""Progress of `bay batch`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from enginebay.cli.commands import batch
from enginebay.fleet.batch_runner import BatchTally


def test_without_a_terminal_a_line_comes_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    lines = batch.LineProgress(60)
    for now[0], answered in ((1.0, 1), (11.0, 9), (12.0, 10), (22.0, 30)):
        lines.advance(BatchTally(answered, 1, answered * 4))
    assert capsys.readouterr().err.splitlines() == ["10 of 60 done, 36 tokens", "31 of 60 done, 120 tokens"]
