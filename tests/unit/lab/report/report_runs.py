"""In-memory runs of a small queueing simulation, for the report's tests."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginebay.lab.measures.run_measures import compute_measures
from enginebay.lab.store.run_manifest import new_manifest
from enginebay.lab.store.run_reader import Run
from enginebay.lab.workload.request_records import Record
from enginebay.meters.sample import Sample

VALID: dict[str, Any] = {"status": "valid", "reasons": []}
HOST = {
    "host": "lab-1",
    "cpu": "Example 9000",
    "cores": 16,
    "memory_bytes": 64 * 2**30,
    "gpu": ["H200"],
    "enginebay": "0.1.0",
}


@dataclass(frozen=True)
class FakeEnergy:
    """The joules of a window."""

    total_j: float | None
    idle_j: float | None = None
    active_j: float | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class InMemoryRun(Run):
    """A run whose files are in memory."""

    fake_records: list[Record] = field(default_factory=list)
    fake_tokens: dict[int, list[float]] = field(default_factory=dict)
    fake_samples: list[Sample] = field(default_factory=list)
    fake_parity: dict[str, Any] | None = None

    def read_records(self) -> list[Record]:
        return self.fake_records

    def read_token_times(self) -> dict[int, list[float]]:
        return self.fake_tokens

    def read_samples(self) -> list[Sample]:
        return self.fake_samples

    def read_parity(self) -> dict[str, Any] | None:
        return self.fake_parity


def make_records(seed: int, requests: int, rate: float, token_s: float) -> tuple[list[Record], dict[int, list[float]]]:
    """Simulate requests at a rate; tokens slow down with load."""
    dice = random.Random(seed)
    records, tokens, now = [], {}, 0.0
    for index in range(requests):
        now += dice.expovariate(rate)
        sent = now + dice.expovariate(1 / 0.0003)
        count = dice.randint(20, 60)
        first = sent + token_s * 8 * dice.lognormvariate(0, 0.5) * (1 + rate / 12)
        gaps = [token_s * dice.lognormvariate(0, 0.25) * (1 + rate / 40) for _ in range(count - 1)]
        times = [first]
        for gap in gaps:
            times.append(times[-1] + gap)
        tokens[index] = times
        records.append(
            Record(index, now, sent, first, times[-1], times[-1] + 0.001, 128, count, events=count, status=200)
        )
    return records, tokens


def fail_record(record: Record, error: str = "stalled") -> Record:
    return Record(record.index, record.intended_s, record.sent_s, end_s=record.sent_s + 1.0, error=error, status=200)


def make_power_samples(window_s: float, watts: float, step_s: float = 0.1) -> list[Sample]:
    dice = random.Random(7)
    return [
        Sample(number * step_s, "gpu 0", power_w=watts * dice.uniform(0.93, 1.05), temperature_c=60.0)
        for number in range(int(window_s / step_s))
    ]


def make_run(
    engine: str = "vllm",
    rate: float = 4.0,
    cycle: int = 1,
    *,
    point: int = 0,
    token_s: float = 0.01,
    requests: int = 120,
    watts: float | None = 300.0,
    verdict: Mapping[str, Any] = VALID,
    seed: int | None = None,
    answered: dict[str, Any] | None = None,
    errors: int = 0,
    **sections: Any,
) -> InMemoryRun:
    """One run of a study; keyword arguments replace sections of its manifest."""
    chosen = seed if seed is not None else round(rate * 100) + cycle
    records, tokens = make_records(chosen, requests, rate, token_s)
    records = [fail_record(record) if record.index < errors else record for record in records]
    window_s = max(record.end_s or 0.0 for record in records)
    energy = None if watts is None else {"gpu": FakeEnergy(watts * window_s)}
    run_id = f"20261115-1430{cycle:02d}-{engine}-{point}"
    manifest = new_manifest(
        run_id,
        engine={"kind": engine, "version": "1.0"},
        model={"name": "smollm2", "sha256": "ab" * 32},
        study={"id": "study-1", "point": point, "cycle": cycle, "label": f"poisson-{rate:g}"},
        environment=HOST,
        **{
            "config": {"backend": engine, "model_name": "smollm2", "random_seed": 42},
            "effective": {"model_name": "smollm2"},
            "profile": {"kind": "poisson", "rate": rate},
            "workload": {"kind": "synthetic", "sha256": f"{cycle:064d}"},
            "seeds": {"arrivals": cycle},
            "server": {"url": "http://127.0.0.1:1", "ours": True},
            "window_s": window_s,
            "measures": {"server_start_s": 2.5, **compute_measures(records, tokens, window_s, {"ttft_s": 0.5}, energy)},
            "verdict": dict(verdict),
            "absent": {"cpu_energy_j": "the RAPL files are readable by root only"},
            "files": {"requests.parquet": {"sha256": "cd" * 32, "rows": requests}},
            **sections,
        },
    )
    samples = [] if watts is None else make_power_samples(window_s, watts)
    return InMemoryRun(Path("runs") / run_id, manifest, records, tokens, samples, answered)


def make_study(cycles: int = 3, rates: tuple[float, ...] = (2.0, 6.0), **changes: Any) -> list[InMemoryRun]:
    """Three engines of different speed at several rates, in interleaved order."""
    engines = {"llamacpp": 0.022, "transformers": 0.03, "vllm": 0.009}
    runs = []
    for cycle in range(1, cycles + 1):
        for number, (engine, token_s) in enumerate(engines.items()):
            for place, rate in enumerate(rates):
                point = number * len(rates) + place
                seed = cycle * 100 + place
                runs.append(
                    make_run(
                        engine,
                        rate,
                        cycle,
                        point=point,
                        token_s=token_s,
                        seed=seed,
                        watts=200.0 + 60 * number,
                        **changes,
                    )
                )
    return runs


def make_parity_answers(flip: int | None = None) -> dict[str, Any]:
    """Two greedy answers; `flip` changes a token of the first."""
    ids = [list(range(10, 30)), list(range(40, 52))]
    if flip is not None:
        ids[0][flip] = 9999
    return {
        "answers": [{"prompt_ids": [1, 2], "token_ids": one, "logprobs": [-0.1] * len(one), "text": "x"} for one in ids]
    }
