"""Energy and cost per token, from meter readings and the user's price. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.meters.analysis.window_energy import WindowEnergy

_TOKEN_COUNTS = {"output_token": "output_tokens", "total_token": "total_tokens", "good_token": "good_output_tokens"}
IDLE, PREFILL, DECODE = "idle", "prefill", "decode"
# Not idle_energy_j: per device kind, that is the idle power over the whole window.
_PHASE_FIGURES = {IDLE: "idle_phase_energy_j", PREFILL: "prefill_energy_j", DECODE: "decode_energy_j"}
_PER_PHASE_FIGURES = {
    PREFILL: ("prefill_j_per_input_token", "input_tokens"),
    DECODE: ("decode_j_per_output_token", "output_tokens"),
}
# Share of the prefill time that may overlap with decoding; beyond it, prefill joules include decode work.
_MAX_MIXED_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class EnergyPhases:
    """Energy of the window by phase; without joules, `why` gives the reason."""

    joules: Mapping[str, float] = field(default_factory=dict)  # by idle, prefill, decode
    mixed: float = 0.0  # share of the prefill time during which other requests decoded
    why: str = ""


Counts = Mapping[str, int | None]  # input_tokens, output_tokens, total_tokens, good_output_tokens; None: unknown
FiguresAndAbsences = tuple[dict[str, Any], dict[str, str]]  # the figures, and the reason for each absent one


def compute_energy_figures(
    energy: Mapping[str, WindowEnergy] | None, counts: Counts, phases: EnergyPhases | None
) -> FiguresAndAbsences:
    """Return the energy figures. `energy` is by device kind ("gpu", "cpu"); `phases` covers all kinds together.

    Joules per token divide the window's whole energy, idle power included, by its tokens: for each kind, and for all
    kinds together, where `energy_of` lists the devices. If one kind could not be read there is no total, because a
    partial sum would look like one.
    """
    used = energy or {}
    read = {kind: use for kind, use in used.items() if use.total_j is not None}
    whole = [
        "energy_j",
        *(f"j_per_{name}" for name in _TOKEN_COUNTS),
        *_PHASE_FIGURES.values(),
        *(name for name, _ in _PER_PHASE_FIGURES.values()),
    ]
    if not read:
        return {}, dict.fromkeys(whole, "no energy was read")
    figures: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for kind, use in read.items():
        parts = {"energy_j": use.total_j, "idle_energy_j": use.idle_j, "active_energy_j": use.active_j}
        figures |= {f"{kind}_{name}": value for name, value in parts.items() if value is not None}
        _add_per_token(figures, absent, f"{kind}_", use.total_j or 0.0, counts)
    unread = [device for kind in sorted(used.keys() - read.keys()) for device in used[kind].devices or (kind,)]
    if unread:
        return figures, absent | dict.fromkeys(whole, f"the energy of {', '.join(unread)} could not be read")
    devices = [device for kind in sorted(read) for device in read[kind].devices or (kind,)]
    figures |= {"energy_of": "+".join(devices), "energy_j": sum(use.total_j or 0.0 for use in read.values())}
    _add_per_token(figures, absent, "", figures["energy_j"], counts)
    _add_phases(figures, absent, phases or EnergyPhases(why="phases were not separated"), counts)
    return figures, absent


def compute_cost_figures(price: float | None, window_s: float, counts: Counts) -> FiguresAndAbsences:
    """Return the cost of a million tokens at `price` per machine hour, in the currency of the price."""
    figures: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        figure, tokens = f"cost_per_million_{name}", counts.get(name)
        if price is None:
            absent[figure] = "no price is set"
        elif not tokens:
            absent[figure] = _explain_no_tokens(tokens)
        else:
            figures[figure] = price * window_s / 3600 / tokens * 1e6
    return figures, absent


def _add_per_token(figures: dict[str, Any], absent: dict[str, str], prefix: str, joules: float, counts: Counts) -> None:
    for name, counted in _TOKEN_COUNTS.items():
        tokens = counts.get(counted)
        if tokens:
            figures[f"{prefix}j_per_{name}"] = joules / tokens
        elif tokens is None and counts.get("output_tokens") is not None and name == "good_token":
            absent[f"{prefix}j_per_{name}"] = "no SLO is set"
        else:
            absent[f"{prefix}j_per_{name}"] = _explain_no_tokens(tokens)


def _add_phases(figures: dict[str, Any], absent: dict[str, str], phases: EnergyPhases, counts: Counts) -> None:
    for phase, name in _PHASE_FIGURES.items():
        if phase in phases.joules:
            figures[name] = phases.joules[phase]
        else:
            absent[name] = phases.why
    for phase, (name, counted) in _PER_PHASE_FIGURES.items():
        joules, tokens = phases.joules.get(phase), counts.get(counted)
        if joules is None:
            absent[name] = phases.why
        elif phases.mixed > _MAX_MIXED_SHARE:
            absent[name] = f"other requests were decoding during {phases.mixed:.0%} of the prefill time"
        elif not tokens:
            absent[name] = _explain_no_tokens(tokens)
        else:
            figures[name] = joules / tokens


def _explain_no_tokens(tokens: int | None) -> str:
    return "the server did not report token counts" if tokens is None else "no such tokens in the window"
