"""Time model switches on one GPU: from a streamed request for a model that is not awake to its first token.

    python -m bench.gpu.model_switching --model FOLDER --out FOLDER [--seconds 250] [--switches 6] [--cache-gib 20]

Both models have the same shape, and one may be awake. In this order, one at a time:

    cold         the first model, without a worker and without a standby process
    standby      the second, into a process that has the library imported; the first goes to sleep for the first time
    first sleep  back to the first; the second sleeps for the first time, which allocates the memory it sleeps in
    awake        a request that needs no switch
    asleep       back and forth
    standby      the sleeping model is unloaded, then requested

Every switch is printed and written to `switching.jsonl` by the phases of `/admin/switches`; "rest" is the client's time that no
phase covers. At the end come vLLM's own log lines on sleeping and waking. Exit code 1: a target is missed, or there were too
few switches to judge.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import secrets
import signal
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from bench.gpu.systems_under_test import BayServe

NAMES = ("first", "second")
ASLEEP_S, STANDBY_S = 1.5, 45.0  # targets: every single switch is faster
MIN_STANDBYS = 2
_TOKENS = 4
_POLL_S = 0.1
_STOP_S = 15.0  # reserved for stopping the server
_TIMEOUT_S = 300.0
_LOAD_S, _IMPORT_S = 50.0, 30.0  # estimates: a switch that does not fit into the time left is skipped
_TEXT = re.compile(rb'"text"\s*:\s*"[^"]')  # not empty; quotes inside a text are escaped
_SLEEP_LOG_MARKERS = ("seconds to fall asleep", "seconds to wake up", "Sleep mode freed", "sleep freed")


class SwitchingTimeout(Exception):
    """Time is up; the measurements so far are reported."""


@dataclass(frozen=True, slots=True)
class SwitchMeasurement:
    """One request: the client's time and the server's record of the switch."""

    kind: str
    model: str
    seconds: float
    record: Mapping[str, Any]  # from /admin/switches; empty without a switch

    @property
    def phases(self) -> Mapping[str, float]:
        return dict(self.record.get("phases", {}))

    @property
    def rest_s(self) -> float:
        """Return the time outside all phases: planning, and the round trip to the worker."""
        return self.seconds - sum(self.phases.values())

    def format_line(self) -> str:
        phases = {**self.phases, "rest": self.rest_s} if self.record else {}
        times = ", ".join(f"{name.replace('_', ' ')} {spent:.3f}" for name, spent in phases.items())
        replaced = ", ".join(self.record.get("replaced", ()))
        return f"{self.kind:<13}{self.model:<8}{self.seconds:8.3f} s  {times}" + (
            f"  (replaced {replaced})" if replaced else ""
        )

    def to_json(self) -> dict[str, Any]:
        fields = {"what": self.kind, "model": self.model, "seconds": round(self.seconds, 4)}
        return {**fields, "rest_s": round(self.rest_s, 4), "switch": dict(self.record)} if self.record else fields


def build_config(vllm: Mapping[str, Any], source: Path, sleeps: str | int, standby: bool) -> dict[str, Any]:
    """Return a configuration with two names for one model, one of which may be awake. Pure."""
    fleet: dict[str, Any] = {"max_awake": 1, "min_residency_s": 0, "sleep": sleeps}
    if standby:
        fleet["standby"] = ["vllm"]
    models = {name: {"source": str(source), "engine": "vllm", "load": "use"} for name in NAMES}
    return {"fleet": fleet, "vllm": dict(vllm), "models": models}


def judge_switches(measurements: Sequence[SwitchMeasurement], switches: int) -> list[tuple[str, bool]]:
    """Return a line for each target, and whether it is met. Pure."""
    verdicts = []
    for kind, limit_s, count in (("asleep", ASLEEP_S, switches), ("standby", STANDBY_S, MIN_STANDBYS)):
        times = [one.seconds for one in measurements if one.kind == kind]
        met = len(times) >= count and max(times) < limit_s
        few = "" if len(times) >= count else f", {count} required"
        slowest = f"slowest of {len(times)}: {max(times):.3f} s" if times else "not measured"
        verdicts.append((f"{kind}, under {limit_s:g} s: {slowest}{few}: {'met' if met else 'MISSED'}", met))
    return verdicts


class TwoModelServer(BayServe):
    """`bay serve` with both models, loaded on first use."""

    def __init__(self, model: Path, settings: Mapping[str, Any], sleeps: str | int, folder: Path) -> None:
        self._key = secrets.token_hex(16)
        self._sleeps = sleeps
        super().__init__("switching", model, settings, folder)

    def build_command(self) -> Sequence[str]:
        command = super().build_command()
        self._vllm = json.loads(self._config.read_text())["vllm"]
        self._write_config(standby=False)
        return command

    @property
    def _config(self) -> Path:
        return self.log.with_suffix(".json")

    def _write_config(self, standby: bool) -> None:
        self._config.write_text(json.dumps(build_config(self._vllm, self.model, self._sleeps, standby)))

    def enable_standby(self) -> None:
        """Keep a standby process from now on."""
        self._write_config(standby=True)
        self.admin("reload", {})

    def environment(self) -> Mapping[str, str]:
        return {"ENGINEBAY_ADMIN_KEY": self._key}

    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}

    def health(self) -> str:
        return "/health/live"

    def admin(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/admin/{path}", data, dict(self.headers()))
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)

    def time_first_token(self, model: str, prompt: str) -> float:
        """Return the TTFT of a streamed request by the client's clock; read the stream to its end."""
        body = {"model": model, "prompt": prompt, "stream": True, "temperature": 0}
        body |= {"max_tokens": _TOKENS, "min_tokens": _TOKENS, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
        connection.connect()
        began, first_s, received = perf_counter(), 0.0, b""
        connection.request("POST", "/v1/completions", json.dumps(body), dict(self.headers()))
        response = connection.getresponse()
        while piece := response.read1():
            received += piece
            if not first_s and _TEXT.search(received):
                first_s = perf_counter()
        connection.close()
        if response.status != 200 or not first_s:
            raise SystemExit(
                f"the request for {model} got no text, status {response.status}: {received[-600:]!r}\n{self.read_log_tail()}"
            )
        return first_s - began


class SwitchingStudy:
    """Runs the switches and records each of them."""

    def __init__(self, server: TwoModelServer, out: Path, deadline: float) -> None:
        self._server, self._out, self._deadline = server, out, deadline
        self._request_count = 0
        self.measurements: list[SwitchMeasurement] = []

    def run(self, switches: int, max_standbys: int) -> None:
        self._measure_switch("cold", NAMES[0], came_from="cold")
        self._server.enable_standby()
        self._wait_idle(NAMES[0], standby=True)
        self._measure_switch("standby", NAMES[1], came_from="standby")
        self._wait_idle(NAMES[1], standby=True)
        self._measure_switch("first sleep", NAMES[0], came_from="asleep")
        self._measure_awake("awake", NAMES[0])
        for number in range(switches):
            self._measure_switch("asleep", NAMES[(number + 1) % 2], came_from="asleep")
        awake = switches % 2
        for number in range(1, max_standbys):
            if monotonic() + _LOAD_S + (_IMPORT_S if number > 1 else 0) > self._deadline:
                print(f"no time left for another standby switch, {number} measured", flush=True)
                return
            awake = 1 - awake
            self._server.admin("unload", {"model": NAMES[awake]})
            self._wait_idle(NAMES[1 - awake], standby=True)
            self._measure_switch("standby", NAMES[awake], came_from="standby")

    def _measure_switch(self, kind: str, model: str, came_from: str) -> None:
        seconds = self._time_request(model)
        record = self._wait_idle(model)
        if record["from"] != came_from:
            print(f"expected a switch from {came_from}, got one from {record['from']}", flush=True)
            kind = f"{kind}?"  # shown, but not judged
        self._record(SwitchMeasurement(kind, model, seconds, record))

    def _measure_awake(self, kind: str, model: str) -> None:
        self._record(SwitchMeasurement(kind, model, self._time_request(model), {}))

    def _time_request(self, model: str) -> float:
        self._request_count += 1
        return self._server.time_first_token(model, f"Tell me something about the number {self._request_count}:")

    def _record(self, measurement: SwitchMeasurement) -> None:
        self.measurements.append(measurement)
        self.write(measurement.to_json())
        print(measurement.format_line(), flush=True)

    def write(self, record: Mapping[str, Any]) -> None:
        with (self._out / "switching.jsonl").open("a") as lines:
            lines.write(json.dumps(record) + "\n")

    def _wait_idle(self, awake: str, standby: bool = False) -> Mapping[str, Any]:
        """Wait until the switch is fully recorded, no model changes state, and a standby process exists if required."""
        while True:
            record: Mapping[str, Any] = self._server.admin("switches")["switches"][-1]
            fleet = self._server.admin("ps")
            states = {model["state"] for model in fleet["models"]}
            complete = record["model"] == awake and "first_token" in record["phases"]
            if complete and states <= {"awake", "asleep", "cold"} and (not standby or "vllm" in fleet["standby"]):
                return record
            sleep(_POLL_S)

    def print_vllm_log(self) -> None:
        """Print vLLM's own log lines on sleeping and waking: the rest of those phases is Enginebay's."""
        for model in NAMES:
            lines = self._server.admin(f"logs?model={model}&lines=5000")["lines"]
            found = [line for line in lines if any(marker in line for marker in _SLEEP_LOG_MARKERS)]
            self.write({"what": "vllm says", "model": model, "lines": found})
            print("\n".join([f"vLLM on {model}:", *(found or ["no sleep or wake lines"])]), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=250.0, help="time limit")
    parser.add_argument("--switches", type=int, default=6, help="switches between the two loaded models")
    parser.add_argument("--standbys", type=int, default=3, help="maximum switches from standby, as time allows")
    parser.add_argument("--sleep", default="auto", type=_parse_sleep, help="fleet.sleep: auto, off, 1 or 2")
    parser.add_argument("--cache-gib", type=float, default=20.0, help="KV cache of each model; 0: vLLM's default")
    parser.add_argument("--set", nargs="*", default=[], help="vllm engine settings, NAME=JSON")
    args = parser.parse_args()
    deadline = monotonic() + args.seconds - _STOP_S
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, args.seconds - _STOP_S)
    args.out.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"load_format": "dummy", "max_model_len": 2048, "gpu_memory_utilization": 0.3}
    if args.cache_gib:
        settings["kv_cache_memory_bytes"] = int(args.cache_gib * 2**30)
    settings |= {name: json.loads(value) for name, _, value in (setting.partition("=") for setting in args.set)}
    server = TwoModelServer(args.model, settings, args.sleep, args.out)
    study = SwitchingStudy(server, args.out, deadline)
    try:
        server.wait_ready()
        print(f"server ready after {server.started_s:.1f} s", flush=True)
        study.run(args.switches, args.standbys)
        study.print_vllm_log()
    except SwitchingTimeout:
        print("time is up", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        server.stop()
    return _report_verdicts(study.measurements, args.switches)


def _report_verdicts(measurements: Sequence[SwitchMeasurement], switches: int) -> int:
    for one in measurements:
        if one.kind in ("cold", "first sleep", "awake"):
            print(f"{one.kind}: {one.seconds:.3f} s (no target)")
    verdicts = judge_switches(measurements, switches)
    print("\n".join(line for line, _ in verdicts), flush=True)
    return 0 if all(met for _, met in verdicts) else 1


def _parse_sleep(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _raise_timeout(number: int, frame: object) -> None:
    raise SwitchingTimeout


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
