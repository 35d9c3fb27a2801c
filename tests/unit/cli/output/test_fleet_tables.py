"""Tables of `bay ps` and `bay switches`."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from enginebay.cli.output.fleet_tables import (
    PS_COLUMNS,
    build_ps_notes,
    build_ps_rows,
    build_ps_table,
    build_switch_table,
    describe_model,
    summarize_switches,
)
from enginebay.cli.output.table_layout import to_columns
from enginebay.fleet.lifecycle.switch_history import Switch, SwitchHistory

GIB = 2**30
FROM_COLD = Switch(1_700_000_000, "small", "vllm", "cold", ("large",), {"drain": 0.25, "load": 61.5}, 60.0)
FROM_SLEEP = Switch(1_700_000_100, "large", "vllm", "asleep", (), {"load": 0.02, "first_token": 0.5}, 60.0)


def model(name: str = "small", **fields: Any) -> dict[str, Any]:
    return {
        "name": name, "model": name, "engine": "vllm", "version": "1.2", "state": "awake", "pid": 77, "pinned": False,
        "running": 2, "waiting": 1, "memory_bytes": GIB, "needs_bytes": {"ram": 2 * GIB, "gpu0": 20 * GIB},
        "awake_s": 130.0, "idle_s": None, "adapters": [], "smaller_settings": None, "last_failure": None,
        "last_switch": FROM_COLD.to_json(), "gpus": [], "placement": None, **fields,
    }  # fmt: skip


COLD: dict[str, Any] = {
    "state": "cold", "pid": None, "running": 0, "waiting": 0, "memory_bytes": None, "awake_s": None,
    "last_switch": None, "version": None,
}  # fmt: skip


def fleet(*models: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"models": list(models), "standby": {}, "memory_bytes": {"ram": 8 * GIB, "gpu0": 76 * GIB}, **fields}


def test_a_row_has_everything() -> None:
    awake, cold = build_ps_rows(fleet(model(pinned=True), model("large", **COLD)))
    assert awake == ["small", "vllm 1.2", "awake, pinned", "2", "1", "1.0 GiB", "2 min", "61.8 s (load 61.5 s)", "77"]
    assert cold == ["large", "vllm", "cold", "0", "0", "-", "-", "-", "-"]
    assert len(awake) == len(PS_COLUMNS)


def test_gpus_and_reasons_have_columns_on_a_host_with_gpus() -> None:
    placed = model(gpus=[0, 1], placement="linked GPUs, the fullest of 6 choices with room")
    columns, rows = build_ps_table(fleet(placed, model("large", **COLD)))
    place = columns.index("gpu")
    assert columns[place - 1] == "memory" and [row[place] for row in rows] == ["0,1", "-"]
    old = {name: value for name, value in model().items() if name not in ("gpus", "placement")}
    columns, rows = build_ps_table(fleet(placed, old), verbose=True)
    assert to_columns(columns)[-1].detail
    assert [row[-1] for row in rows] == ["linked GPUs, the fullest of 6 choices with room", "-"]
    columns, rows = build_ps_table(fleet(model(), memory_bytes={"ram": GIB}), verbose=True)
    assert tuple(columns) == PS_COLUMNS and len(rows[0]) == len(columns)


def test_memory_of_each_pool() -> None:
    """RAM as measured; GPU memory as accounted for awake models."""
    asleep = model("large", state="asleep", awake_s=None)
    (line,) = build_ps_notes(fleet(model(), asleep))
    assert line == "memory: ram 2.0 GiB of 8.0 GiB, gpu0 20.0 GiB of 76.0 GiB"


def test_standby_processes_and_failures_are_listed() -> None:
    found = fleet(
        model(smaller_settings=True), model("large", **COLD, last_failure="crash: signal 9"), standby={"vllm": 5}
    )
    assert build_ps_notes(found)[1:] == [
        "standby: vllm (pid 5)",
        "small runs with reduced settings: out of memory with the configured ones",
        "large: last failure: crash: signal 9",
    ]


def test_names_move_no_cursor() -> None:
    nasty = model("\x1b[2J", state="a\nb", last_failure="\r\x07")
    found = fleet(nasty, standby={"\x1b": 1}, memory_bytes={"ram": 1, "gpu0": 1})
    shown = [*build_ps_rows(found)[0], *build_ps_notes(found), describe_model(nasty)]
    assert all(text.isprintable() for text in shown)


def test_switches_have_a_column_for_each_phase_that_occurred() -> None:
    kept = SwitchHistory()
    kept.add(FROM_COLD)
    kept.add(FROM_SLEEP)
    columns, rows = build_switch_table(kept.to_json(), UTC)
    assert [column.title for column in to_columns(columns)] == [
        "TIME", "MODEL", "ENGINE", "FROM", "REPLACED", "TOTAL", "DRAIN", "LOAD", "FIRST TOKEN", "OBJECTIVE",
    ]  # fmt: skip
    assert rows == [
        ["2023-11-14 22:13:20", "small", "vllm", "cold", "large", "61.8 s", "250 ms", "61.5 s", "-", "missed (60 s)"],
        ["2023-11-14 22:15:00", "large", "vllm", "asleep", "-", "520 ms", "-", "20.0 ms", "500 ms", "met"],
    ]
    assert (
        summarize_switches(kept.to_json())
        == "2 switches, 1 missed their objective; mean from cold 61.8 s, asleep 520 ms"
    )


def test_a_phase_that_is_new_to_us_is_shown_last() -> None:
    kept = SwitchHistory()
    kept.add(Switch(0, "m", "e", "cold", (), {"polish": 1.0, "load": 2.0}))
    columns, (row,) = build_switch_table(kept.to_json(), UTC)
    assert [column.name for column in to_columns(columns)][-3:] == ["load", "polish", "objective"] and row[-3:] == [
        "2.0 s",
        "1.0 s",
        "met",
    ]


def test_how_a_model_is_now() -> None:
    assert describe_model(model()) == "small on vllm 1.2 is awake, from cold in 61.8 s (load 61.5 s)"
    assert describe_model(model("large", **COLD)) == "large on vllm is cold"
    assert describe_model(model(state="asleep")) == "small on vllm 1.2 is asleep"  # that it once was awake is no news


def test_a_sleep_that_frees_nothing_says_so() -> None:
    asleep = model(state="asleep", last_switch=None, frees_memory=False)
    assert describe_model(asleep) == (
        "small on vllm 1.2 is asleep, but vllm keeps its memory; to free it: bay unload small"
    )
    assert describe_model({**asleep, "frees_memory": True}) == "small on vllm 1.2 is asleep"
