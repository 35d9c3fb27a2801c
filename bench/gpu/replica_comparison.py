"""Compare one replica that has a whole GPU with two that share it by halves; then kill one of the two under load.

    python -m bench.gpu.replica_comparison --model FOLDER --out FOLDER [--streams 128 256 512]

Both get the same requests of 128 tokens in and 128 out from the lab's load generator. The kill hits one of two replicas
under 128 streams of 512 tokens: no stream may fail or be short. Writes `replicas.jsonl`, a line per run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from bench.gpu.systems_under_test import _BAY, BayServe
from bench.gpu.throughput import WAVES, compute_figures, make_requests
from enginebay.meters.devices.nvml_meter import open_nvml_meter

KILLED_STREAMS, KILLED_TOKENS, KILL_AFTER_S = 128, 512, 3.0
_SETTINGS = {"load_format": "dummy", "max_model_len": 2048}


class ReplicatedServe(BayServe):
    """`bay serve` with a number of replicas, each on its share of the GPU."""

    def build_command(self) -> Sequence[str]:
        count = int(self.name.split()[0])
        config = self.log.with_suffix(".json")
        model: dict[str, Any] = {"source": str(self.model), "engine": "vllm", "load": "start", "replicas": count}
        model["gpus"] = 1 if count == 1 else 1 / count
        config.write_text(json.dumps({"models": {self.model.name: model}, "vllm": dict(self.settings)}))
        return [*_BAY, "serve", "--config", str(config), "--port", str(self.port), "--log-level", "warning"]

    def list_replicas(self) -> list[Mapping[str, Any]]:
        command = [*_BAY, "ps", "--json", "--url", f"http://127.0.0.1:{self.port}"]
        return list(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["models"])

    def wait_awake(self, count: int) -> list[Mapping[str, Any]]:
        deadline = monotonic() + 300
        while len(awake := [one for one in self.list_replicas() if one["state"] == "awake"]) < count:
            if monotonic() > deadline:
                raise SystemExit(f"{len(awake)} of {count} replicas are awake:\n{self.read_log_tail()}")
            sleep(1)
        return awake

    def read_metric(self, name: str) -> dict[str, float]:
        """Return the values of a metric by their labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as response:
            lines = response.read().decode().splitlines()
        found = [line.rsplit(" ", 1) for line in lines if line.startswith(f"{name}{{")]
        return {labels.removeprefix(name): float(value) for labels, value in found}


class ReplicaStudy:
    def __init__(self, model: Path, out: Path) -> None:
        self._model, self._out = model, out
        self._meter = open_nvml_meter()[0]

    def measure(self, count: int, streams: Sequence[int], *, kill: bool) -> None:
        system = ReplicatedServe(f"{count} replicas", self._model, _SETTINGS, self._out)
        try:
            system.wait_ready()
            awake = system.wait_awake(count)
            ready_s = round(monotonic() - system._began, 1)
            for one in awake:
                print(one["name"], "on GPU", one["gpus"], "because", one["placement"], one["needs_bytes"], flush=True)
            self._write({"replicas": count, "ready_s": ready_s, "gpu_used_bytes": self._read_used_bytes()})
            system.run_requests(make_requests(999, 256), 256)  # warm-up
            for number in streams:
                result = system.run_requests(make_requests(number, WAVES * number), number)
                spread = system.read_metric("enginebay_replica_requests_total")
                self._write(
                    {"replicas": count, "streams": number, **compute_figures(result), "requests_so_far": spread}
                )
            if kill:
                self._kill_one(system, awake[-1])
        finally:
            system.stop()

    def _kill_one(self, system: ReplicatedServe, victim: Mapping[str, Any]) -> None:
        timer = threading.Timer(KILL_AFTER_S, os.kill, (victim["pid"], signal.SIGKILL))
        timer.start()
        result = system.run_requests(make_requests(5, KILLED_STREAMS, KILLED_TOKENS), KILLED_STREAMS)
        lengths = [record.output_tokens for record in result.records]
        resumed = system.read_metric("enginebay_requests_resumed_total")
        self._write(
            {
                "killed": victim["name"],
                "streams": len(lengths),
                "whole": sum(length == KILLED_TOKENS for length in lengths),
                "resumed": resumed,
                **compute_figures(result),
            }
        )

    def _read_used_bytes(self) -> int | None:
        return None if self._meter is None else sum(sample.memory_bytes or 0 for sample in self._meter.read())

    def _write(self, line: Mapping[str, Any]) -> None:
        print(json.dumps(line), flush=True)
        with (self._out / "replicas.jsonl").open("a") as lines:
            lines.write(json.dumps(line) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--streams", nargs="+", type=int, default=[128, 256, 512])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    study = ReplicaStudy(args.model, args.out)
    study.measure(2, args.streams, kill=True)
    study.measure(1, args.streams, kill=False)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
