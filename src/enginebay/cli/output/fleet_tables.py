"""Tables and lines of `bay ps`, `bay switches` and the commands that load models, from the server's responses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from enginebay.cli.output.table_layout import Column
from enginebay.fleet.lifecycle.switch_history import PHASES
from enginebay.server.telemetry.log_format import escape_unprintable
from enginebay.util.number_format import format_age, format_bytes, format_duration

JsonObject = Mapping[str, Any]

PS_COLUMNS = ("name", "engine", "state", "running", "waiting", "memory", "since", "last switch", "pid")
_SWITCH_COLUMNS = ("time", "model", "engine", "from", "replaced", "total")


# bay ps


def build_ps_table(status: JsonObject, verbose: bool = False) -> tuple[list[Column | str], list[list[str]]]:
    """Build columns and rows, with the GPUs of each model if the server has any and, if `verbose`, why it has these."""
    columns: list[Column | str] = list(PS_COLUMNS)
    rows = build_ps_rows(status)
    if any(pool != "ram" for pool in status["memory_bytes"]):
        place = columns.index("memory") + 1
        columns.insert(place, "gpu")
        for row, model in zip(rows, status["models"], strict=True):
            row.insert(place, ",".join(map(str, model.get("gpus") or ())) or "-")
        if verbose:
            columns.append(Column("placement", detail=True))
            for row, model in zip(rows, status["models"], strict=True):
                row.append(escape_unprintable(model.get("placement") or "-"))
    return columns, rows


def build_ps_rows(status: JsonObject) -> list[list[str]]:
    """Build rows in the order of PS_COLUMNS."""
    return [_build_ps_row(model) for model in status["models"]]


def _build_ps_row(model: JsonObject) -> list[str]:
    return [
        escape_unprintable(model["name"]),
        escape_unprintable(" ".join(part for part in (model["engine"], model["version"]) if part)),
        escape_unprintable(model["state"]) + (", pinned" if model["pinned"] else ""),
        str(model["running"]),
        str(model["waiting"]),
        format_bytes(model["memory_bytes"]) if model["memory_bytes"] else "-",
        format_age(model["awake_s"]) if model["awake_s"] is not None else "-",
        _format_switch_time(model["last_switch"]) if model["last_switch"] else "-",
        str(model["pid"] or "-"),
    ]


def build_ps_notes(status: JsonObject) -> list[str]:
    """Build the lines below the table: memory, standby processes and failures."""
    lines = [_format_memory(status)]
    if status["standby"]:
        spare = ", ".join(f"{escape_unprintable(kind)} (pid {pid})" for kind, pid in status["standby"].items())
        lines.append(f"standby: {spare}")
    for model in status["models"]:
        if model["smaller_settings"]:
            lines.append(
                f"{escape_unprintable(model['name'])} runs with reduced settings: out of memory with the configured ones"
            )
        if model["last_failure"]:
            lines.append(
                f"{escape_unprintable(model['name'])}: last failure: {escape_unprintable(model['last_failure'])}"
            )
    return lines


def _format_memory(status: JsonObject) -> str:
    """Format used and total memory of each pool. RAM is measured; GPU memory is what the fleet accounts for."""
    used = dict.fromkeys(status["memory_bytes"], 0)
    for model in status["models"]:
        used["ram"] = used.get("ram", 0) + (model["memory_bytes"] or 0)
        for pool, needed in model["needs_bytes"].items():
            if pool != "ram" and model["awake_s"] is not None:
                used[pool] = used.get(pool, 0) + needed
    pools = [
        f"{escape_unprintable(pool)} {format_bytes(used[pool])} of {format_bytes(total)}"
        for pool, total in status["memory_bytes"].items()
    ]
    return f"memory: {', '.join(pools)}"


def _format_switch_time(switch: JsonObject) -> str:
    """Format the total and the slowest phase."""
    slowest = switch["slowest"]
    most = f" ({escape_unprintable(slowest['phase'])} {format_duration(slowest['seconds'])})" if slowest else ""
    return f"{format_duration(switch['total_s'])}{most}"


# bay switches


def build_switch_table(history: JsonObject, zone: tzinfo | None = None) -> tuple[list[Column | str], list[list[str]]]:
    """Build columns and rows, oldest first, with a column per phase. `zone` defaults to local time."""
    switches: Sequence[JsonObject] = history["switches"]
    phases = _list_phases(switches)
    rows = [_build_switch_row(switch, phases, zone) for switch in switches]
    titles = (Column(escape_unprintable(phase.replace("_", " ")), rank=1) for phase in phases)
    return [*_SWITCH_COLUMNS, *titles, "objective"], rows


def _list_phases(switches: Iterable[JsonObject]) -> list[str]:
    seen = dict.fromkeys(phase for switch in switches for phase in switch["phases"])
    return [*(phase for phase in PHASES if phase in seen), *(phase for phase in seen if phase not in PHASES)]


def _build_switch_row(switch: JsonObject, phases: Iterable[str], zone: tzinfo | None) -> list[str]:
    spent = switch["phases"]
    return [
        datetime.fromtimestamp(switch["at"], UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S"),
        escape_unprintable(switch["model"]),
        escape_unprintable(switch["engine"]),
        escape_unprintable(switch["from"]),
        escape_unprintable(", ".join(switch["replaced"])) or "-",
        format_duration(switch["total_s"]),
        *(format_duration(spent[phase]) if phase in spent else "-" for phase in phases),
        "met" if switch["met"] else f"missed ({switch['slo_s']:g} s)",
    ]


def summarize_switches(history: JsonObject) -> str:
    """Summarize all switches in one line."""
    means = ", ".join(f"{escape_unprintable(kind)} {format_duration(mean)}" for kind, mean in history["mean_s"].items())
    count = len(history["switches"])
    return f"{count} {'switch' if count == 1 else 'switches'}, {history['missed']} missed their objective" + (
        f"; mean from {means}" if means else ""
    )


# bay load, sleep, unload, switch, adapters


def describe_model(model: JsonObject) -> str:
    """Describe a model's state in one line."""
    switch = model["last_switch"]
    awake = switch is not None and model["state"] == "awake"
    detail = f", from {escape_unprintable(switch['from'])} in {_format_switch_time(switch)}" if awake else ""
    verb = "is"
    if model.get("already"):
        verb, detail = "was already", ""
    engine = " ".join(part for part in (model["engine"], model["version"]) if part)
    line = f"{escape_unprintable(model['name'])} on {escape_unprintable(engine)} {verb} {escape_unprintable(model['state'])}{detail}"
    if model.get("frees_memory") is False:
        name, kind = escape_unprintable(model["name"]), escape_unprintable(model["engine"])
        line += f", but {kind} keeps its memory; to free it: bay unload {name}"
    return line
