"""What comes back from /admin/*."""

from __future__ import annotations

from enginebay.server.openapi.shapes import (
    BOOLEAN,
    COUNT,
    NUMBER,
    STRING,
    Schema,
    array,
    enum,
    maybe,
    obj,
    ref,
    said,
)

_STATES = enum(
    "awake",
    "asleep",
    "cold",
    "loading",
    "waking",
    "falling asleep",
    "unloading",
    "draining",
    "failing",
    "unavailable",
    "being replaced",
)
_POOLS = {"type": "object", "additionalProperties": COUNT}
_SECONDS = {"type": "object", "additionalProperties": NUMBER}

ADMIN_ANSWERS: dict[str, Schema] = {
    "FleetModel": obj(
        {
            "name": STRING,
            "model": said(STRING, "As clients ask for it; the name has the engine as well where it is a fallback."),
            "engine": STRING,
            "version": maybe(STRING),
            "state": _STATES,
            "pid": maybe(COUNT),
            "pinned": BOOLEAN,
            "running": said(COUNT, "Requests that it computes."),
            "waiting": said(COUNT, "Requests that wait until it is loaded."),
            "memory_bytes": said(maybe(COUNT), "What its worker takes, as measured."),
            "needs_bytes": said(_POOLS, "What it is counted with when it is awake: of ram, and of each GPU."),
            "awake_s": said(maybe(NUMBER), "Since when it is awake."),
            "idle_s": said(maybe(NUMBER), "Since when nobody has asked it."),
            "adapters": array(STRING),
            "smaller_settings": said(maybe(BOOLEAN), "It runs with less than was asked for, since memory was short."),
            "last_failure": maybe(STRING),
            "already": said({"type": "boolean"}, "Of load and switch: it was awake before."),
            "left": said({"type": "string"}, "Of switch: what the other model is now."),
            "last_switch": said(maybe(ref("Switch")), "The last time it was made ready."),
        },
        optional=("already", "left"),
    ),
    "Fleet": obj(
        {
            "models": array(ref("FleetModel")),
            "standby": said(_POOLS, "Spare processes by engine, with their process ids."),
            "memory_bytes": said(_POOLS, "What models may take together: of ram, and of each GPU."),
        }
    ),
    "Switch": obj(
        {
            "at": said(NUMBER, "Unix time."),
            "model": STRING,
            "engine": STRING,
            "from": said(STRING, "cold, standby or asleep."),
            "replaced": said(array(STRING), "Models that left for it."),
            "phases": said(_SECONDS, "Seconds of each: drain, free, import, load, compile, capture, first_token."),
            "total_s": NUMBER,
            "slo_s": said(NUMBER, "What it should take at most."),
            "met": BOOLEAN,
            "slowest": maybe(obj({"phase": STRING, "seconds": NUMBER})),
        }
    ),
    "Switches": obj(
        {
            "switches": said(array(ref("Switch")), "Oldest first."),
            "mean_s": said(_SECONDS, "By where the models came from."),
            "missed": said(COUNT, "How many took longer than they should."),
        }
    ),
    "Meters": obj(
        {
            "monotonic_s": said(NUMBER, "The clock of the samples, in the middle of the time that reading them took."),
            "boot_id": said(
                maybe(STRING), "Of the host since its last start; where it is the same, the clock is the same."
            ),
            "cores": said(maybe(COUNT), "Processors of the host."),
            "names": said(
                {"type": "object", "additionalProperties": STRING}, "Of each GPU by device: the product and its UUID."
            ),
            "samples": array(ref("MeterSample")),
            "absent": said(array(obj({"meter": STRING, "reason": STRING})), "What cannot be read here, and why."),
        }
    ),
    "MeterSample": said(
        obj(
            {
                "time_s": NUMBER,
                "device": said(STRING, "gpu:N, cpu:package-N, cpu:dram-N, host, or tree:server for our own processes."),
                "energy_j": said(maybe(NUMBER), "Counts up; its zero means nothing, and it may wrap."),
                "power_w": maybe(NUMBER),
                "utilisation": said(maybe(NUMBER), "0 to 1; of processors since the reading before."),
                "memory_bytes": maybe(COUNT),
                "sm_clock_hz": maybe(NUMBER),
                "temperature_c": maybe(NUMBER),
                "throttle": said(array(STRING), "Why the clocks are lower than they could be."),
                "cpu_s": said(maybe(NUMBER), "Processor time of all cores; counts up."),
                "peak_memory_bytes": maybe(COUNT),
                "wraps_at_j": maybe(NUMBER),
                "limit_w": maybe(NUMBER),
            }
        ),
        "One device at one moment. What it does not tell is null.",
    ),
    "LogLines": obj({"lines": array(STRING)}),
    "Reloaded": obj(
        {
            "added": array(STRING),
            "removed": array(STRING),
            "changed": array(STRING),
            "keys": said(COUNT, "API keys that are known now; none: whoever reaches the server may use it."),
        }
    ),
    "Upgraded": obj({"engine": STRING, "version": STRING, "models": said(array(STRING), "Those that moved over.")}),
}
