from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from enginebay.models.from_pypi import _GrowthTracker
from enginebay.util import progress
from enginebay.util.file_lock import exclusive_lock
from enginebay.util.number_format import format_bytes
from enginebay.util.progress import track_progress


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1600, "1.6 KiB"),
        (98_362_432, "94 MiB"),
        (5 << 30, "5.0 GiB"),
        (10 << 40, "10.0 TiB"),
    ],
)
def test_sizes_are_readable(count, text):
    assert format_bytes(count) == text


def test_short_work_reports_nothing(monkeypatch):
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    said = []
    with track_progress("fetching", 100, said.append) as advance:
        advance(50)
    assert said == []


def test_long_work_reports_progress_in_plain_lines(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 4.0, 14.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    said = []
    with track_progress("fetching", 4000, said.append, done=1000) as advance:
        for _ in range(4):
            advance(500)
    assert said == ["fetching: 2.0 KiB of 3.9 KiB", "fetching: 2.9 KiB of 3.9 KiB"]


def test_a_terminal_gets_a_bar_on_stderr(monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    said = []
    with track_progress("fetching it", 100, said.append) as advance:
        advance(100)
    captured = capsys.readouterr()
    assert said == [] and captured.out == "" and "fetching it" in captured.err


def hold(path, holding, waited_for, over):
    with exclusive_lock(path, lambda: None):
        holding.set()
        waited_for.wait(30)
        time.sleep(0.2)
        over.set()


def test_the_lock_makes_the_second_wait(tmp_path):
    context = multiprocessing.get_context("spawn")
    holding, waited_for, over = (context.Event() for _ in range(3))
    other = context.Process(target=hold, args=(tmp_path / "locks" / "a", holding, waited_for, over))
    other.start()
    assert holding.wait(30)
    with exclusive_lock(tmp_path / "locks" / "a", waited_for.set):
        assert waited_for.is_set() and over.is_set()
    other.join()


def test_a_wheel_that_pip_copies_is_not_counted_twice(tmp_path: Path) -> None:
    counts: list[int] = []
    growth = _GrowthTracker(tmp_path, counts.append)
    for name, size in (("part", 60), ("part", 100), ("done.whl", 30), ("done.whl", 100)):
        (tmp_path / name).write_bytes(b"x" * size)
        growth()
    assert sum(counts) == 100
