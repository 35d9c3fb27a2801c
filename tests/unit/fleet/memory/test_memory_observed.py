from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.fleet.memory.memory_observed import MAX_ENTRIES, ObservedResources, compute_observation_key


def test_what_was_noted_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "fleet" / "measured.json"
    before = ObservedResources.load(path)
    before.record_seconds("k", "cold", 4.0)
    before.record_memory("k", {"ram": 100, "gpu0": 7})
    assert before.save()
    after = ObservedResources.load(path)
    assert after.get_median_seconds("k", "cold") == 4.0 and after.get_peak_memory("k") == {"ram": 100, "gpu0": 7}
    assert (
        after.get_median_seconds("k", "wake") is None
        and after.get_median_seconds("other", "cold") is None
        and after.get_peak_memory("other") == {}
    )
    assert [file.name for file in path.parent.iterdir()] == ["measured.json"], "no temporary file is left"


def test_it_lives_in_the_home_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    assert ObservedResources.load().path == tmp_path / "fleet" / "measured.json"


def test_the_median_of_the_last_five_forgets_an_outlier(tmp_path: Path) -> None:
    measured = ObservedResources.load(tmp_path / "m.json")
    for seconds in (500.0, 1.0, 2.0, 90.0, 3.0, 4.0):
        measured.record_seconds("k", "standby", seconds)
    assert measured.get_median_seconds("k", "standby") == 3.0
    assert measured.get_last_seconds("k", "standby") == 4.0


def test_memory_only_grows(tmp_path: Path) -> None:
    measured = ObservedResources.load(tmp_path / "m.json")
    measured.record_memory("k", {"ram": 100})
    measured.record_memory("k", {"ram": 50, "gpu0": 5})
    assert measured.get_peak_memory("k") == {"ram": 100, "gpu0": 5}


@pytest.mark.parametrize("nonsense", [-1.0, float("inf"), float("nan"), True])
def test_nonsense_is_not_noted(tmp_path: Path, nonsense: Any) -> None:
    measured = ObservedResources.load(tmp_path / "m.json")
    measured.record_seconds("k", "cold", nonsense)
    measured.record_memory("k", {"ram": nonsense})
    assert measured.get_median_seconds("k", "cold") is None and measured.get_peak_memory("k") == {}


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    measured = ObservedResources.load(path)
    for number in range(MAX_ENTRIES):
        measured.record_seconds(f"k{number}", "cold", 1.0, now=float(number))
    measured.record_seconds("k0", "cold", 1.0, now=10_000.0)  # used again: no longer the oldest
    measured.record_seconds("late", "cold", 1.0, now=0.0)  # by a clock that was set back
    assert len(measured) == MAX_ENTRIES
    assert measured.get_median_seconds("k1", "cold") is None
    assert measured.get_median_seconds("k0", "cold") == measured.get_median_seconds("late", "cold") == 1.0
    assert measured.save() and len(ObservedResources.load(path)) == MAX_ENTRIES


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b"[]", b"null", b'{"schema_version": 99, "entries": {"k": {}}}', b"[" * 100_000,
     b'{"schema_version": 1, "entries": [1]}', b'{"schema_version": 1, "entries": {"k": 3}}'],
)  # fmt: skip
def test_a_broken_file_starts_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    measured = ObservedResources.load(path)
    assert len(measured) == 0
    measured.record_seconds("k", "cold", 1.0)
    assert measured.save() and ObservedResources.load(path).get_median_seconds("k", "cold") == 1.0


def test_what_is_sound_in_a_damaged_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    entry = {
        "at": "yesterday", "memory": {"ram": 5, "gpu0": "much", "gpu1": 10**400, "gpu2": True},
        "seconds": {"cold": [1.0, None, -3, 1e999, 2], "nap": [1.0], "wake": 3},
    }  # fmt: skip
    path.write_text(json.dumps({"schema_version": 1, "entries": {"k": entry}}))
    measured = ObservedResources.load(path)
    assert measured.get_peak_memory("k") == {"ram": 5} and measured.get_median_seconds("k", "cold") == 1.5
    assert measured.get_median_seconds("k", "wake") is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["at", "memory", "seconds", "cold", "ram", "k"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values)
def test_no_content_makes_it_fail(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "anything.json"
    path.write_text(json.dumps({"schema_version": 1, "entries": content}))
    measured = ObservedResources.load(path)
    for key in ("k", "at", "ram"):
        seconds = measured.get_median_seconds(key, "cold")
        assert seconds is None or seconds >= 0
        measured.record_memory(key, {"ram": 1})
        assert measured.get_peak_memory(key)["ram"] >= 1
    assert measured.save()


def test_a_disk_that_refuses_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not ObservedResources.load(tmp_path / "file" / "m.json").save()
    taken = tmp_path / "m.json"
    taken.mkdir()
    assert not ObservedResources.load(taken).save()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "m.json"]


def test_the_key_is_the_same_for_the_same_load_alone() -> None:
    base: dict[str, Any] = {
        "model": "m", "kind": "vllm", "version": "1", "path": "/p", "settings": {"a": 1, "b": 2}, "loras": {},
    }  # fmt: skip
    key = compute_observation_key(**base)
    assert key == compute_observation_key(**{**base, "settings": {"b": 2, "a": 1}}), (
        "the order of settings does not matter"
    )
    others = [
        {"model": "n"}, {"kind": "fake"}, {"version": "2"}, {"path": "/q"}, {"settings": {"a": 1}},
        {"loras": {"x": "/x"}},
    ]  # fmt: skip
    assert len({key, *(compute_observation_key(**{**base, **other}) for other in others)}) == 7
