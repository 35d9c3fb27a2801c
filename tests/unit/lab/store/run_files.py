"""Small runs for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from enginebay.lab.store.run_manifest import new_manifest
from enginebay.lab.store.run_reader import Run, load_run
from enginebay.lab.store.run_writer import RunWriter
from enginebay.lab.workload.request_records import Record
from enginebay.meters.sample import Sample

VALID = {"status": "valid", "reasons": []}
INVALID = {
    "status": "invalid",
    "reasons": [
        {"code": "send_lag", "severity": "invalid", "message": "requests left | late", "figure": 1, "limit": 2}
    ],
}
RECORDS = [
    Record(0, 0.0, 0.001, 0.1, 0.3, 0.31, 12, 3, None, None, 3, "stop", 200, text="Grüße 🚀"),
    Record(1, 0.5, 0.501, end_s=0.6, status=500, error="status", detail="no", group="b", process=1),
]
TOKENS = {0: [0.1, 0.2, 0.3]}
SAMPLES = [
    Sample(100.0, "gpu:0", 5.5, 200.0, 0.9, 1 << 33, 1.5e9, 60.0, ("thermal", "power")),
    Sample(100.5, "host", utilisation=0.25, cpu_s=3.5, wraps_at_j=9.0),
]


def make_manifest(
    run_id: str = "20261115-143015-fake-tiny-c1-1", engine: str = "fake", **sections: Any
) -> dict[str, Any]:
    given: dict[str, Any] = {
        "engine": {"kind": engine, "version": "1"},
        "model": {"name": "tiny"},
        "environment": {"host": "here"},
        "profile": {"kind": "closed", "concurrency": 1},
        "workload": {"sha256": "abc"},
        **sections,
    }
    return new_manifest(run_id, **given)


def write_run(
    folder: Path,
    run_id: str = "20261115-143015-fake-tiny-c1-1",
    engine: str = "fake",
    measures: dict[str, Any] | None = None,
    verdict: dict[str, Any] = VALID,
    parity: dict[str, Any] | None = None,
    **sections: Any,
) -> Run:
    """Write a finished run."""
    with RunWriter(folder, make_manifest(run_id, engine, **sections)) as writer:
        writer.add_records(RECORDS, TOKENS)
        writer.add_samples(SAMPLES, origin_s=99.0)
        if parity is not None:
            writer.write_parity(parity)
        return load_run(writer.finish({"output_tokens_per_s": 10.0} if measures is None else measures, verdict))


def write_cycles(folder: Path, engine: str, speeds: list[float], study: str = "s1", **given: Any) -> list[Run]:
    """Write the cycles of one point."""
    return [
        write_run(
            folder,
            f"20261115-1430{cycle:02}-{engine}-tiny-c1-{cycle}",
            engine,
            {"output_tokens_per_s": speed, "ttft_s": {"median": 1 / speed}, "absent": {"energy_j": "no meter"}},
            study={"id": study, "point": 0, "cycle": cycle, "label": "c1"},
            **given,
        )
        for cycle, speed in enumerate(speeds, 1)
    ]
