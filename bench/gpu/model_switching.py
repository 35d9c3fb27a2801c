"""Switching between two models on one GPU: from a client's streamed request for the model that is not awake to its first token.

    python -m bench.gpu.model_switching --model FOLDER --out FOLDER [--seconds 250] [--switches 6] [--cache-gib 20]

Both names are one shape, of which one may be awake. In this order, one thing at a time:

    cold         the first model, no worker and no spare process
    standby      the second, into a process that has the library imported; the first goes to sleep for the first time
    first sleep  back to the first; now the second sleeps for the first time, which makes the memory it sleeps in
    awake        a request that needs no switch
    asleep       back and forth
    standby      whoever sleeps is unloaded entirely, and asked for

Every switch is printed and written to `switching.jsonl`, by the phases of `/admin/switches`, with what is left of the client's
time ("rest"). At the end come vLLM's own words on how long it took to sleep and to wake. Exit code 1: a bar is missed, or
time was up before there was enough to judge.
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
ASLEEP_S, STANDBY_S = 1.5, 45.0  # bars: every single one is faster
STANDBYS = 2  # at least
_TOKENS = 4
_LOOK_S = 0.1
_STOP_S = 15.0  # kept back for stopping the server
_PATIENCE_S = 300.0
_LOAD_S, _IMPORT_S = 50.0, 30.0  # about; what does not fit into the time left is not begun
_TEXT = re.compile(rb'"text"\s*:\s*"[^"]')  # that is not empty; quotes inside a text are escaped
_TELLS_OF_SLEEP = ("seconds to fall asleep", "seconds to wake up", "Sleep mode freed", "sleep freed")


class SwitchingTimeout(Exception):
    """What is there has to do."""


@dataclass(frozen=True, slots=True)
class SwitchMeasurement:
    """One request: what the client saw, and what the server wrote down of the switch that it made."""

    what: str
    model: str
    seconds: float
    record: Mapping[str, Any]  # as /admin/switches tells it; empty: there was none

    @property
    def phases(self) -> Mapping[str, float]:
        return dict(self.record.get("phases", {}))

    @property
    def rest_s(self) -> float:
        """What no phase accounts for: planning, the way to the worker and back."""
        return self.seconds - sum(self.phases.values())

    def format_line(self) -> str:
        phases = {**self.phases, "rest": self.rest_s} if self.record else {}
        told = ", ".join(f"{name.replace('_', ' ')} {spent:.3f}" for name, spent in phases.items())
        left = ", ".join(self.record.get("replaced", ()))
        return f"{self.what:<13}{self.model:<8}{self.seconds:8.3f} s  {told}" + (f"  ({left} left)" if left else "")

    def to_json(self) -> dict[str, Any]:
        found = {"what": self.what, "model": self.model, "seconds": round(self.seconds, 4)}
        return {**found, "rest_s": round(self.rest_s, 4), "switch": dict(self.record)} if self.record else found


def build_config(vllm: Mapping[str, Any], source: Path, sleeps: str | int, standby: bool) -> dict[str, Any]:
    """Two names of one model, of which one may be awake. Pure."""
    fleet: dict[str, Any] = {"max_awake": 1, "min_residency_s": 0, "sleep": sleeps}
    if standby:
        fleet["standby"] = ["vllm"]
    models = {name: {"source": str(source), "engine": "vllm", "load": "use"} for name in NAMES}
    return {"fleet": fleet, "vllm": dict(vllm), "models": models}


def judge_switches(found: Sequence[SwitchMeasurement], switches: int) -> list[tuple[str, bool]]:
    """Each bar in words, and whether it is met. Pure."""
    told = []
    for what, most_s, least in (("asleep", ASLEEP_S, switches), ("standby", STANDBY_S, STANDBYS)):
        times = [one.seconds for one in found if one.what == what]
        met = len(times) >= least and max(times) < most_s
        few = "" if len(times) >= least else f", and there should be {least}"
        slowest = f"the slowest of {len(times)}: {max(times):.3f} s" if times else "none was measured"
        told.append((f"{what}, under {most_s:g} s: {slowest}{few}: {'met' if met else 'MISSED'}", met))
    return told


class TwoModelServer(BayServe):
    """`bay serve` with both. None is loaded before it is asked for."""

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
        """From now on there is a spare process."""
        self._write_config(standby=True)
        self.admin("reload", {})

    def environment(self) -> Mapping[str, str]:
        return {"ENGINEBAY_ADMIN_KEY": self._key}

    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}

    def health(self) -> str:
        return "/health/live"

    def admin(self, what: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/admin/{what}", data, dict(self.headers()))
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            return json.load(answer)

    def time_first_token(self, model: str, prompt: str) -> float:
        """Of a streamed answer, by the client's clock; it is read to its end."""
        body = {"model": model, "prompt": prompt, "stream": True, "temperature": 0}
        body |= {"max_tokens": _TOKENS, "min_tokens": _TOKENS, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        connection.connect()
        began, came, said = perf_counter(), 0.0, b""
        connection.request("POST", "/v1/completions", json.dumps(body), dict(self.headers()))
        answer = connection.getresponse()
        while piece := answer.read1():
            said += piece
            if not came and _TEXT.search(said):
                came = perf_counter()
        connection.close()
        if answer.status != 200 or not came:
            raise SystemExit(
                f"the request for {model} got no text, status {answer.status}: {said[-600:]!r}\n{self.read_log_tail()}"
            )
        return came - began


class SwitchingStudy:
    """Switches, written down as they come."""

    def __init__(self, server: TwoModelServer, out: Path, deadline: float) -> None:
        self._server, self._out, self._deadline = server, out, deadline
        self._asked = 0
        self.found: list[SwitchMeasurement] = []

    def run(self, switches: int, most_standbys: int) -> None:
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
        for number in range(1, most_standbys):
            if monotonic() + _LOAD_S + (_IMPORT_S if number > 1 else 0) > self._deadline:
                print(f"no time is left for another standby: {number} must do", flush=True)
                return
            awake = 1 - awake
            self._server.admin("unload", {"model": NAMES[awake]})
            self._wait_idle(NAMES[1 - awake], standby=True)
            self._measure_switch("standby", NAMES[awake], came_from="standby")

    def _measure_switch(self, what: str, model: str, came_from: str) -> None:
        seconds = self._time_request(model)
        record = self._wait_idle(model)
        if record["from"] != came_from:
            print(f"to be made from {came_from}, this switch was made from {record['from']}", flush=True)
            what = f"{what}?"  # it is shown, and counts as nothing
        self._record(SwitchMeasurement(what, model, seconds, record))

    def _measure_awake(self, what: str, model: str) -> None:
        self._record(SwitchMeasurement(what, model, self._time_request(model), {}))

    def _time_request(self, model: str) -> float:
        self._asked += 1
        return self._server.time_first_token(model, f"Tell me something about the number {self._asked}:")

    def _record(self, one: SwitchMeasurement) -> None:
        self.found.append(one)
        self.write(one.to_json())
        print(one.format_line(), flush=True)

    def write(self, what: Mapping[str, Any]) -> None:
        with (self._out / "switching.jsonl").open("a") as lines:
            lines.write(json.dumps(what) + "\n")

    def _wait_idle(self, awake: str, standby: bool = False) -> Mapping[str, Any]:
        """Until its switch is written down whole, no model moves, and there is a spare process if there has to be one."""
        while True:
            record: Mapping[str, Any] = self._server.admin("switches")["switches"][-1]
            fleet = self._server.admin("ps")
            states = {model["state"] for model in fleet["models"]}
            whole = record["model"] == awake and "first_token" in record["phases"]
            if whole and states <= {"awake", "asleep", "cold"} and (not standby or "vllm" in fleet["standby"]):
                return record
            sleep(_LOOK_S)

    def print_vllm_log(self) -> None:
        """What vLLM itself says of sleeping and waking: the rest of those phases is ours."""
        for model in NAMES:
            lines = self._server.admin(f"logs?model={model}&lines=5000")["lines"]
            told = [line for line in lines if any(words in line for words in _TELLS_OF_SLEEP)]
            self.write({"what": "vllm says", "model": model, "lines": told})
            print("\n".join([f"vLLM on {model}:", *(told or ["nothing of sleep"])]), flush=True)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--seconds", type=float, default=250.0, help="ends by then, with what there is")
    options.add_argument("--switches", type=int, default=6, help="between the two, both loaded")
    options.add_argument("--standbys", type=int, default=3, help="at most, as time allows")
    options.add_argument("--sleep", default="auto", type=_parse_sleep, help="of fleet: auto, off, 1 or 2")
    options.add_argument("--cache-gib", type=float, default=20.0, help="KV cache of each; 0: as vLLM decides")
    options.add_argument("--set", nargs="*", default=[], help="settings of the vllm engine, NAME=JSON")
    given = options.parse_args()
    deadline = monotonic() + given.seconds - _STOP_S
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, given.seconds - _STOP_S)
    given.out.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"load_format": "dummy", "max_model_len": 2048, "gpu_memory_utilization": 0.3}
    if given.cache_gib:
        settings["kv_cache_memory_bytes"] = int(given.cache_gib * 2**30)
    settings |= {name: json.loads(value) for name, _, value in (one.partition("=") for one in given.set)}
    server = TwoModelServer(given.model, settings, given.sleep, given.out)
    study = SwitchingStudy(server, given.out, deadline)
    try:
        server.wait_ready()
        print(f"the server is up after {server.started_s:.1f} s", flush=True)
        study.run(given.switches, given.standbys)
        study.print_vllm_log()
    except SwitchingTimeout:
        print("the time is up", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        server.stop()
    return _report_verdicts(study.found, given.switches)


def _report_verdicts(found: Sequence[SwitchMeasurement], switches: int) -> int:
    for one in found:
        if one.what in ("cold", "first sleep", "awake"):
            print(f"{one.what}: {one.seconds:.3f} s (no bar)")
    told = judge_switches(found, switches)
    print("\n".join(line for line, _ in told), flush=True)
    return 0 if all(met for _, met in told) else 1


def _parse_sleep(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _raise_timeout(number: int, frame: object) -> None:
    raise SwitchingTimeout


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
