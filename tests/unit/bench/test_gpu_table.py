"""The table of a throughput study: milliseconds, CPU cores, joules, and paired runs."""

from __future__ import annotations

from typing import Any

from bench.gpu.throughput_table import build_rows


def _run(system: str, load: str, cycle: int, speed: float, **more: Any) -> dict[str, Any]:
    return {"system": system, "load": load, "cycle": cycle, "output_tokens_per_s": speed, **more}


def _parse_rows(runs: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Load, figure, system and mean of each line."""
    return [(row[:12].strip(), row[12:32].strip(), row[32:58].strip(), row[58:70].strip()) for row in build_rows(runs)]


def test_figures_have_units_and_a_fixed_order() -> None:
    cores = {"root": 0.2, "worker": 0.25, "engine": 0.5}
    figures = {
        "ttft_median_s": 0.02634,
        "ttft_p95_s": 1.2345,
        "cores": cores,
        "gpu_energy_j": 73.0,
        "output_tokens": 1000,
    }
    runs = [
        _run("offline", "c 1", 0, 16000.4, cores={"engine": 0.6, "root": 0.1}),
        _run("ours", "c 1", 0, 15331.0, **figures),
    ]
    assert _parse_rows(runs) == [
        ("c 1", "output tok/s", "offline", "16,000"),
        ("c 1", "output tok/s", "ours", "15,331"),
        ("c 1", "median TTFT, ms", "ours", "26.3"),
        ("c 1", "p95 TTFT, ms", "ours", "1,234.5"),
        ("c 1", "cores, non-engine", "offline", "0.10"),
        ("c 1", "cores, non-engine", "ours", "0.45"),
        ("c 1", "cores, engine", "offline", "0.60"),
        ("c 1", "cores, engine", "ours", "0.50"),
        ("c 1", "GPU J/output token", "ours", "0.0730"),
    ]


def test_warm_up_runs_are_left_out_and_loads_are_separate() -> None:
    runs = [_run("ours", load, 0, 10.0) for load in ("warm-up", "closed 4", "poisson")]
    assert [row[0] for row in _parse_rows(runs)] == ["closed 4", "poisson"]


def test_ours_is_compared_pairwise_by_cycle() -> None:
    runs = [_run("ours", "c", cycle, 2.0 * speed) for cycle, speed in enumerate((10.0, 11.0))]
    runs += [_run("theirs", "c", cycle, speed) for cycle, speed in enumerate((10.0, 11.0, 500.0))]
    ours, theirs = build_rows(runs)
    assert "ours / it" not in ours
    assert "n=3   ours / it 2.000 [" in theirs and theirs.endswith("of 2 pairs")
