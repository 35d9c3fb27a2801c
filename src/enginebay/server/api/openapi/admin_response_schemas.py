"""Response schemas of /admin/*."""

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
            "model": describe(STRING, "The name that clients use; `name` also has the engine if it is a fallback."),
            "engine": STRING,
            "version": nullable(STRING),
            "state": _STATES,
            "pid": nullable(COUNT),
            "pinned": BOOLEAN,
            "running": describe(COUNT, "Running requests."),
            "waiting": describe(COUNT, "Requests waiting for it to load."),
            "memory_bytes": describe(nullable(COUNT), "Measured memory of its worker."),
            "needs_bytes": describe(_POOLS, "Memory reserved for it when awake, for ram and for each GPU."),
            "awake_s": describe(nullable(NUMBER), "Seconds since it woke."),
            "idle_s": describe(nullable(NUMBER), "Seconds since its last request."),
            "adapters": array(STRING),
            "smaller_settings": describe(
                nullable(BOOLEAN), "It runs with smaller settings than configured because memory was short."
            ),
            "last_failure": nullable(STRING),
            "already": describe({"type": "boolean"}, "For load and switch: it was already loaded."),
            "left": describe({"type": "string"}, "For switch: the new state of the other model."),
            "last_switch": describe(nullable(ref("Switch")), "Its last load or wake."),
        },
        optional=("already", "left"),
    ),
    "Fleet": obj(
        {
            "models": array(ref("FleetModel")),
            "standby": describe(_POOLS, "Standby processes by engine, with their process ids."),
            "memory_bytes": describe(_POOLS, "Memory budget of all models, for ram and for each GPU."),
        }
    ),
    "Switch": obj(
        {
            "at": describe(NUMBER, "Unix time."),
            "model": STRING,
            "engine": STRING,
            "from": describe(STRING, "cold, standby or asleep."),
            "replaced": describe(array(STRING), "Models evicted for it."),
            "phases": describe(
                _SECONDS, "Seconds per phase: drain, free, import, load, compile, capture, first_token."
            ),
            "total_s": NUMBER,
            "slo_s": describe(NUMBER, "Its target in seconds."),
            "met": BOOLEAN,
            "slowest": nullable(obj({"phase": STRING, "seconds": NUMBER})),
        }
    ),
    "Switches": obj(
        {
            "switches": describe(array(ref("Switch")), "Oldest first."),
            "mean_s": describe(_SECONDS, "Mean seconds by `from`."),
            "missed": describe(COUNT, "Switches that missed their target."),
        }
    ),
    "Meters": obj(
        {
            "monotonic_s": describe(NUMBER, "The clock of the samples, at the middle of the reading."),
            "boot_id": describe(
                nullable(STRING), "Identifies the host's boot; clocks with the same id are comparable."
            ),
            "cores": describe(nullable(COUNT), "CPU cores of the host."),
            "names": describe(
                {"type": "object", "additionalProperties": STRING}, "Product and UUID of each GPU by device."
            ),
            "samples": array(ref("MeterSample")),
            "absent": describe(array(obj({"meter": STRING, "reason": STRING})), "Meters that cannot be read, and why."),
        }
    ),
    "MeterSample": describe(
        obj(
            {
                "time_s": NUMBER,
                "device": describe(
                    STRING, "gpu:N, cpu:package-N, cpu:dram-N, host, or tree:server for the server and its workers."
                ),
                "energy_j": describe(nullable(NUMBER), "A counter with an arbitrary zero; it may wrap."),
                "power_w": nullable(NUMBER),
                "utilisation": describe(nullable(NUMBER), "0 to 1; for CPUs since the previous reading."),
                "memory_bytes": nullable(COUNT),
                "sm_clock_hz": nullable(NUMBER),
                "temperature_c": nullable(NUMBER),
                "throttle": describe(array(STRING), "Reasons for throttled clocks."),
                "cpu_s": describe(nullable(NUMBER), "CPU time of all cores; a counter."),
                "peak_memory_bytes": nullable(COUNT),
                "wraps_at_j": nullable(NUMBER),
                "limit_w": nullable(NUMBER),
            }
        ),
        "One reading of one device. Values that it does not report are null.",
    ),
    "LogLines": obj({"lines": array(STRING)}),
    "Reloaded": obj(
        {
            "added": array(STRING),
            "removed": array(STRING),
            "changed": array(STRING),
            "keys": describe(COUNT, "API keys in effect. 0: the server accepts requests without a key."),
        }
    ),
    "Upgraded": obj(
        {
            "engine": STRING,
            "version": STRING,
            "models": describe(array(STRING), "Models that moved to the new version."),
        }
    ),
}
