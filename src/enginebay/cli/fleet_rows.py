"""What `bay ps`, `bay switches` and the commands that move models show, from the server's answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from enginebay.cli.figures import duration, size, span
from enginebay.fleet.switches import PHASES
from enginebay.server.log_lines import clean

Found = Mapping[str, Any]

PS_COLUMNS = ("name", "engine", "state", "running", "waiting", "memory", "since", "last switch", "pid")
_BEFORE_PHASES = ("time", "model", "engine", "from", "replaced", "total")


# bay ps


def ps_rows(found: Found) -> list[list[str]]:
    """In the order of PS_COLUMNS."""
    return [_ps_row(model) for model in found["models"]]


def _ps_row(model: Found) -> list[str]:
    return [
        clean(model["name"]),
        clean(" ".join(part for part in (model["engine"], model["version"]) if part)),
        clean(model["state"]) + (", pinned" if model["pinned"] else ""),
        str(model["running"]),
        str(model["waiting"]),
        size(model["memory_bytes"]) if model["memory_bytes"] else "-",
        span(model["awake_s"]) if model["awake_s"] is not None else "-",
        _took(model["last_switch"]) if model["last_switch"] else "-",
        str(model["pid"] or "-"),
    ]


def ps_notes(found: Found) -> list[str]:
    """What a table has no place for: memory, spare processes, and what is wrong."""
    lines = [_memory(found)]
    if found["standby"]:
        spare = ", ".join(f"{clean(kind)} (pid {pid})" for kind, pid in found["standby"].items())
        lines.append(f"standby: {spare}")
    for model in found["models"]:
        if model["smaller_settings"]:
            lines.append(f"{clean(model['name'])} runs with smaller settings than asked for: memory was short")
        if model["last_failure"]:
            lines.append(f"{clean(model['name'])}: last failure: {clean(model['last_failure'])}")
    return lines


def _memory(found: Found) -> str:
    """Of each pool. Workers are measured in main memory; what is taken of a GPU is what they are counted with there."""
    taken = dict.fromkeys(found["memory_bytes"], 0)
    for model in found["models"]:
        taken["ram"] = taken.get("ram", 0) + (model["memory_bytes"] or 0)
        for pool, needed in model["needs_bytes"].items():
            if pool != "ram" and model["awake_s"] is not None:
                taken[pool] = taken.get(pool, 0) + needed
    pools = [f"{clean(pool)} {size(taken[pool])} of {size(there)}" for pool, there in found["memory_bytes"].items()]
    return f"memory: {', '.join(pools)}"


def _took(switch: Found) -> str:
    """The total, and the phase that most of it was."""
    slowest = switch["slowest"]
    most = f" ({clean(slowest['phase'])} {duration(slowest['seconds'])})" if slowest else ""
    return f"{duration(switch['total_s'])}{most}"


# bay switches


def switch_table(found: Found, zone: tzinfo | None = None) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, oldest first; a column for each phase that any of them had. Times are of this zone, or here."""
    switches: Sequence[Found] = found["switches"]
    phases = _occurring(switches)
    rows = [_switch_row(switch, phases, zone) for switch in switches]
    return [*_BEFORE_PHASES, *(clean(phase.replace("_", " ")) for phase in phases), "objective"], rows


def _occurring(switches: Iterable[Found]) -> list[str]:
    seen = dict.fromkeys(phase for switch in switches for phase in switch["phases"])
    return [*(phase for phase in PHASES if phase in seen), *(phase for phase in seen if phase not in PHASES)]


def _switch_row(switch: Found, phases: Iterable[str], zone: tzinfo | None) -> list[str]:
    spent = switch["phases"]
    return [
        datetime.fromtimestamp(switch["at"], UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S"),
        clean(switch["model"]),
        clean(switch["engine"]),
        clean(switch["from"]),
        clean(", ".join(switch["replaced"])) or "-",
        duration(switch["total_s"]),
        *(duration(spent[phase]) if phase in spent else "-" for phase in phases),
        "met" if switch["met"] else f"missed ({switch['slo_s']:g} s)",
    ]


def switch_note(found: Found) -> str:
    """All of them in one line."""
    means = ", ".join(f"{clean(kind)} {duration(mean)}" for kind, mean in found["mean_s"].items())
    count = len(found["switches"])
    return f"{count} {'switch' if count == 1 else 'switches'}, {found['missed']} missed their objective" + (
        f"; mean from {means}" if means else ""
    )


# bay load, sleep, unload, switch, adapters


def outcome(model: Found) -> str:
    """How a model is now, in one line."""
    switch = model["last_switch"]
    awake = switch is not None and model["state"] == "awake"
    taken = f", from {clean(switch['from'])} in {_took(switch)}" if awake else ""
    if model.get("already"):
        taken = ", and was before"
    engine = " ".join(part for part in (model["engine"], model["version"]) if part)
    return f"{clean(model['name'])} on {clean(engine)} is {clean(model['state'])}{taken}"
