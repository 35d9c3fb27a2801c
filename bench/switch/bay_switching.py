"""`bay serve` with two models and max_awake 1: each request for the other one is a switch."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.server.loadgen import build_chat_body
from bench.server.native_servers import MODEL
from bench.server.server_process import BenchServerProcess, find_free_port
from bench.switch.first_token import NotReady, time_first_text
from bench.worker_overhead import SETTINGS

START_STATES = ("asleep", "standby", "cold")
_BAY = Path(sys.executable).with_name("bay")
_NAMES = ("first", "second")  # the same model twice: only the switch is measured
_TOKENS = 4
_POLL_S = 0.1
_TIMEOUT_S = 300.0

SwitchRecord = Mapping[str, Any]  # a switch in /admin/switches


@dataclass(frozen=True, slots=True)
class SwitchTiming:
    """One switch, as the client measured and the server recorded it."""

    seconds: float
    record: SwitchRecord


def build_config(kind: str, depth: str) -> dict[str, Any]:
    """Build the server configuration. Pure."""
    fleet: dict[str, Any] = {"max_awake": 1, "min_residency_s": 0, "sleep": "auto" if depth == "asleep" else "off"}
    if depth == "standby":
        fleet["standby"] = [kind]
    models = {name: {"source": MODEL, "engine": kind, "load": "use"} for name in _NAMES}
    models[_NAMES[0]]["load"] = "start"
    return {"fleet": fleet, kind: dict(SETTINGS[kind]), "models": models}


class BaySwitching:
    """Switches between its two models, always from the same start state."""

    def __init__(self, kind: str, depth: str) -> None:
        self._kind = kind
        self._depth = depth
        self._awake = 0
        self._headers = {"Authorization": f"Bearer {secrets.token_hex(16)}"}
        self._directory = Path(tempfile.mkdtemp(prefix="bench-"))
        self._server: BenchServerProcess | None = None
        self._url = f"http://127.0.0.1:{find_free_port()}"

    def start(self) -> None:
        """Start the server, load both models once and wait until it is idle."""
        config = self._directory / "config.yaml"
        config.write_text(yaml.safe_dump(build_config(self._kind, self._depth)))
        command = [str(_BAY), "serve", "--config", str(config), "--port", self._url.rpartition(":")[2]]
        environment = {"ENGINEBAY_ADMIN_KEY": self._headers["Authorization"].partition(" ")[2]}
        self._server = BenchServerProcess(command, self._directory / "log", (), environment, self._directory)
        self._server.wait_ready(
            self._url, build_chat_body(_NAMES[0], _TOKENS, False), self._headers, timeout_s=_TIMEOUT_S
        )
        self._wait_idle()
        self._time_switch("Say hi.")  # for asleep: both are loaded from now on

    def switch(self, prompt: str) -> SwitchTiming:
        """Switch to the model that is not awake. Exits if it did not start from the measured state."""
        switched = self._time_switch(prompt)
        if switched.record["from"] != self._depth:
            raise SystemExit(f"expected a switch from {self._depth}, got one from {switched.record['from']}")
        return switched

    def _time_switch(self, prompt: str) -> SwitchTiming:
        name = _NAMES[1 - self._awake]
        body = build_chat_body(name, _TOKENS, True, prompt, temperature=0)
        started = time.perf_counter()
        try:
            seconds = time_first_text(self._url, body, self._headers) - started
        except NotReady as problem:
            raise SystemExit(f"the request for {name} failed: {problem}\n{self._read_log_tail()}") from None
        self._awake = 1 - self._awake
        return SwitchTiming(seconds, self._wait_idle())

    def _wait_idle(self) -> SwitchRecord:
        """Wait until the switch is fully recorded, no transition runs and the standby is ready again."""
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            record: SwitchRecord = self._get_admin("switches")["switches"][-1]
            complete = record["model"] == _NAMES[self._awake] and "first_token" in record["phases"]
            if complete and self._is_idle():
                return record
            time.sleep(_POLL_S)
        raise SystemExit(f"{self._kind} did not become idle after a switch\n{self._read_log_tail()}")

    def _is_idle(self) -> bool:
        fleet = self._get_admin("ps")
        states = {model["state"] for model in fleet["models"]}
        standby_ready = self._depth != "standby" or self._kind in fleet["standby"]
        return standby_ready and "awake" in states and states <= {"awake", "asleep", "cold"}

    def _get_admin(self, path: str) -> Any:
        request = urllib.request.Request(f"{self._url}/admin/{path}", headers=self._headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def _read_log_tail(self) -> str:
        return (self._directory / "log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
