"""Request and response bodies of /admin/*. Their names, without `Object`, are those in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from enginebay.server.encoding.choice_state import NonNegative

ModelName = Annotated[str, Meta(min_length=1, max_length=200)]


class NoBody(Struct, forbid_unknown_fields=True):
    """An empty object."""


class ModelBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/load, /admin/sleep and /admin/unload"""

    model: ModelName


class SwitchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/switch"""

    from_: Annotated[ModelName, Meta(description="The model to put to sleep or unload.")] = field(name="from")
    to: Annotated[ModelName, Meta(description="The model to load.")]


class AdapterNameBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/adapters/remove"""

    model: ModelName
    name: Annotated[ModelName, Meta(description="The adapter's name, which clients use as the model.")]


class AdapterBody(AdapterNameBody, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/adapters"""

    path: Annotated[
        str,
        Meta(
            min_length=1, max_length=4096, pattern=r"^/[^\x00]*$",
            description="Absolute path of the adapter on the server's host.",
        ),
    ]  # fmt: skip


class UpgradeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/engines/upgrade"""

    engine: Annotated[
        ModelName,
        Meta(description="KIND==VERSION, which must be installed; KIND alone selects the newest installed version."),
    ]


# Response bodies


class SlowestPhaseObject(Struct):
    phase: str
    seconds: float


class SwitchObject(Struct, kw_only=True):
    """One load or wake of a model."""

    at: Annotated[float, Meta(description="Unix time.")]
    model: str
    engine: str
    from_: Annotated[str, Meta(description="cold, standby or asleep.")] = field(name="from")
    replaced: Annotated[list[str], Meta(description="Models evicted for it.")]
    phases: Annotated[
        dict[str, float],
        Meta(description="Seconds per phase: drain, free, import, load, compile, capture, first_token."),
    ]
    total_s: float
    slo_s: Annotated[float, Meta(description="Its target in seconds.")]
    met: bool
    slowest: SlowestPhaseObject | None


class SwitchesObject(Struct):
    switches: Annotated[list[SwitchObject], Meta(description="Oldest first.")]
    mean_s: Annotated[dict[str, float], Meta(description="Mean seconds by `from`.")]
    missed: Annotated[NonNegative, Meta(description="Switches that missed their target.")]


class FleetModelObject(Struct, kw_only=True):
    """One variant of a model, and its state."""

    name: str
    model: Annotated[
        str, Meta(description="The name that clients use; `name` also has the engine if it is a fallback.")
    ]
    engine: str
    version: str | None
    state: Literal[
        "awake", "asleep", "cold", "loading", "waking", "falling asleep", "unloading", "draining", "failing",
        "unavailable", "being replaced",
    ]  # fmt: skip
    pid: NonNegative | None
    pinned: bool
    running: Annotated[NonNegative, Meta(description="Running requests.")]
    waiting: Annotated[NonNegative, Meta(description="Requests waiting for it to load.")]
    memory_bytes: Annotated[NonNegative | None, Meta(description="Measured memory of its worker.")]
    needs_bytes: Annotated[
        dict[str, NonNegative], Meta(description="Memory reserved for it when awake, for ram and for each GPU.")
    ]
    awake_s: Annotated[float | None, Meta(description="Seconds since it woke.")]
    idle_s: Annotated[float | None, Meta(description="Seconds since its last request.")]
    adapters: list[str]
    smaller_settings: Annotated[
        bool | None, Meta(description="It runs with smaller settings than configured because memory was short.")
    ]
    last_failure: str | None
    last_switch: Annotated[SwitchObject | None, Meta(description="Its last load or wake.")]
    already: Annotated[bool | UnsetType, Meta(description="For load and switch: it was already loaded.")] = UNSET
    left: Annotated[str | UnsetType, Meta(description="For switch: the new state of the other model.")] = UNSET


class FleetObject(Struct):
    models: list[FleetModelObject]
    standby: Annotated[dict[str, NonNegative], Meta(description="Standby processes by engine, with their process ids.")]
    memory_bytes: Annotated[
        dict[str, NonNegative], Meta(description="Memory budget of all models, for ram and for each GPU.")
    ]


class MeterSampleObject(Struct, kw_only=True):
    """One reading of one device. Values that it does not report are null."""

    time_s: float
    device: Annotated[
        str,
        Meta(description="gpu:N, cpu:package-N, cpu:dram-N, host, or tree:server for the server and its workers."),
    ]
    energy_j: Annotated[float | None, Meta(description="A counter with an arbitrary zero; it may wrap.")]
    power_w: float | None
    utilisation: Annotated[float | None, Meta(description="0 to 1; for CPUs since the previous reading.")]
    memory_bytes: NonNegative | None
    sm_clock_hz: float | None
    temperature_c: float | None
    throttle: Annotated[list[str], Meta(description="Reasons for throttled clocks.")]
    cpu_s: Annotated[float | None, Meta(description="CPU time of all cores; a counter.")]
    peak_memory_bytes: NonNegative | None
    wraps_at_j: float | None
    limit_w: float | None


class AbsentMeterObject(Struct):
    meter: str
    reason: str


class MetersObject(Struct):
    monotonic_s: Annotated[float, Meta(description="The clock of the samples, at the middle of the reading.")]
    boot_id: Annotated[
        str | None, Meta(description="Identifies the host's boot; clocks with the same id are comparable.")
    ]
    cores: Annotated[NonNegative | None, Meta(description="CPU cores of the host.")]
    names: Annotated[dict[str, str], Meta(description="Product and UUID of each GPU by device.")]
    samples: list[MeterSampleObject]
    absent: Annotated[list[AbsentMeterObject], Meta(description="Meters that cannot be read, and why.")]


class LogLinesObject(Struct):
    lines: list[str]


class ReloadedObject(Struct):
    added: list[str]
    removed: list[str]
    changed: list[str]
    keys: Annotated[NonNegative, Meta(description="API keys in effect. 0: the server accepts requests without a key.")]


class UpgradedObject(Struct):
    engine: str
    version: str
    models: Annotated[list[str], Meta(description="Models that moved to the new version.")]
