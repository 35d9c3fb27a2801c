"""What comes back from /admin/*."""

from __future__ import annotations

from enginebay.server.api.openapi.schema_builders import (
    BOOLEAN,
    COUNT,
    NUMBER,
    STRING,
    Schema,
    array,
    describe,
    enum,
    nullable,
    obj,
    ref,
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

ADMIN_RESPONSE_COMPONENTS: dict[str, Schema] = {
    "FleetModel": obj(
        {
            "name": STRING,
            "model": describe(STRING, "As clients ask for it; the name has the engine as well where it is a fallback."),
            "engine": STRING,
            "version": nullable(STRING),
            "state": _STATES,
            "pid": nullable(COUNT),
            "pinned": BOOLEAN,
            "running": describe(COUNT, "Requests that it computes."),
            "waiting": describe(COUNT, "Requests that wait until it is loaded."),
            "memory_bytes": describe(nullable(COUNT), "What its worker takes, as measured."),
            "needs_bytes": describe(_POOLS, "What it is counted with when it is awake: of ram, and of each GPU."),
            "awake_s": describe(nullable(NUMBER), "Since when it is awake."),
            "idle_s": describe(nullable(NUMBER), "Since when nobody has asked it."),
            "adapters": array(STRING),
            "smaller_settings": describe(
                nullable(BOOLEAN), "It runs with less than was asked for, since memory was short."
            ),
            "last_failure": nullable(STRING),
            "already": describe({"type": "boolean"}, "Of load and switch: it was awake before."),
            "left": describe({"type": "string"}, "Of switch: what the other model is now."),
            "last_switch": describe(nullable(ref("Switch")), "The last time it was made ready."),
        },
        optional=("already", "left"),
    ),
    "Fleet": obj(
        {
            "models": array(ref("FleetModel")),
            "standby": describe(_POOLS, "Spare processes by engine, with their process ids."),
            "memory_bytes": describe(_POOLS, "What models may take together: of ram, and of each GPU."),
        }
    ),
    "Switch": obj(
        {
            "at": describe(NUMBER, "Unix time."),
            "model": STRING,
            "engine": STRING,
            "from": describe(STRING, "cold, standby or asleep."),
            "replaced": describe(array(STRING), "Models that left for it."),
            "phases": describe(_SECONDS, "Seconds of each: drain, free, import, load, compile, capture, first_token."),
            "total_s": NUMBER,
            "slo_s": describe(NUMBER, "What it should take at most."),
            "met": BOOLEAN,
            "slowest": nullable(obj({"phase": STRING, "seconds": NUMBER})),
        }
    ),
    "Switches": obj(
        {
            "switches": describe(array(ref("Switch")), "Oldest first."),
            "mean_s": describe(_SECONDS, "By where the models came from."),
            "missed": describe(COUNT, "How many took longer than they should."),
        }
    ),
    "Meters": obj(
        {
            "monotonic_s": describe(
                NUMBER, "The clock of the samples, in the middle of the time that reading them took."
            ),
            "boot_id": describe(
                nullable(STRING), "Of the host since its last start; where it is the same, the clock is the same."
            ),
            "cores": describe(nullable(COUNT), "Processors of the host."),
            "names": describe(
                {"type": "object", "additionalProperties": STRING}, "Of each GPU by device: the product and its UUID."
            ),
            "samples": array(ref("MeterSample")),
            "absent": describe(array(obj({"meter": STRING, "reason": STRING})), "What cannot be read here, and why."),
        }
    ),
    "MeterSample": describe(
        obj(
            {
                "time_s": NUMBER,
                "device": describe(
                    STRING, "gpu:N, cpu:package-N, cpu:dram-N, host, or tree:server for our own processes."
                ),
                "energy_j": describe(nullable(NUMBER), "Counts up; its zero means nothing, and it may wrap."),
                "power_w": nullable(NUMBER),
                "utilisation": describe(nullable(NUMBER), "0 to 1; of processors since the reading before."),
                "memory_bytes": nullable(COUNT),
                "sm_clock_hz": nullable(NUMBER),
                "temperature_c": nullable(NUMBER),
                "throttle": describe(array(STRING), "Why the clocks are lower than they could be."),
                "cpu_s": describe(nullable(NUMBER), "Processor time of all cores; counts up."),
                "peak_memory_bytes": nullable(COUNT),
                "wraps_at_j": nullable(NUMBER),
                "limit_w": nullable(NUMBER),
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
            "keys": describe(COUNT, "API keys that are known now; none: whoever reaches the server may use it."),
        }
    ),
    "Upgraded": obj({"engine": STRING, "version": STRING, "models": describe(array(STRING), "Those that moved over.")}),
}
