"""Systems that take turns on one GPU: while one is awake, the others sleep and hold no GPU memory."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep
from typing import Any

from bench.gpu.systems_under_test import BayServe, OfflineVllm, ServerSystem, SystemUnderTest
from enginebay.util.http_policy import build_token_headers

# Lets `LLM` sleep without its weights. The rest matches ours, so that both share vLLM's compile cache.
OFFLINE_SETTINGS: Mapping[str, Any] = {
    "enable_sleep_mode": True,
    "worker_extension_cls": "bench.gpu.dummy_weights.DummyWeights",
    "generation_config": "vllm",
}
_SLEEP_LEVEL = 2  # of offline: two models of this size do not fit into main memory
_COMMAND_TIMEOUT_S, _QUERY_TIMEOUT_S = 300.0, 10.0
_FREE_S = 15.0  # for the driver to reclaim the memory

NoteFunction = Callable[..., None]  # (event, **fields): prints and records it


class TurnFailed(Exception):
    """A system did not fall asleep, or did not wake."""


class SleepableOffline(OfflineVllm):
    death_error = TurnFailed  # the other system can still be measured

    def sleep(self) -> Mapping[str, Any]:
        return self.send_command({"sleep": _SLEEP_LEVEL})

    def wake(self) -> Mapping[str, Any]:
        return self.send_command({"wake": True})


class SleepableBay(BayServe):
    """`bay serve` that loads, sleeps and wakes through the admin API; until then it keeps only a standby process."""

    def build_command(self) -> Sequence[str]:
        command = super().build_command()
        file = self.log.with_suffix(".json")
        config = json.loads(file.read_text())
        config["models"][self.model.name]["load"] = "use"
        file.write_text(json.dumps({**config, "fleet": {"standby": ["vllm"]}}))
        return command

    def health(self) -> str:
        return "/health/live"

    def sleep(self) -> Mapping[str, Any]:
        began = monotonic()
        model = self._admin("sleep", {"model": self.model.name})
        if model["state"] != "asleep":
            raise TurnFailed(f"{self.name} is {model['state']} instead of asleep\n{self.read_log_tail()}")
        return {"seconds": monotonic() - began}

    def wake(self) -> Mapping[str, Any]:
        began = monotonic()
        model = self._admin("load", {"model": self.model.name})
        return {"seconds": monotonic() - began, "switch": model["last_switch"]}

    def list_switches(self) -> list[dict[str, Any]]:
        """Return the switches of the measured model, by phase."""
        return [switch for switch in self._admin("switches")["switches"] if switch["model"] == self.model.name]

    def _admin(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}/admin/{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json", **build_token_headers(url)})
        try:
            with urllib.request.urlopen(
                request, timeout=_QUERY_TIMEOUT_S if body is None else _COMMAND_TIMEOUT_S
            ) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            detail = error.read().decode(errors="replace")
            raise TurnFailed(f"{self.name} refused {path}: {detail}\n{self.read_log_tail()}") from None
        except OSError as error:
            raise TurnFailed(f"{self.name} did not answer {path}: {error}\n{self.read_log_tail()}") from None


class TurnTaker:
    """Starts each system on first use and keeps one awake at a time, unless sleeping is off."""

    def __init__(
        self,
        makers: Mapping[str, Callable[[], SystemUnderTest]],
        used_bytes: Callable[[], int | None],
        max_asleep_bytes: int,
        sleeping: bool,
        note: NoteFunction,
    ) -> None:
        self._makers = makers
        self._used_bytes, self._max_asleep_bytes = used_bytes, max_asleep_bytes
        self._sleeping, self._note = sleeping, note
        self._awake: str | None = None
        self._up: dict[str, SystemUnderTest] = {}
        self._waiting: dict[str, SystemUnderTest] = {}
        self._retired: set[str] = set()

    def prepare(self, name: str) -> None:
        """Start the process ahead of its first use. Only for a system that holds no GPU memory until then."""
        self._waiting[name] = self._makers[name]()

    def use(self, name: str) -> SystemUnderTest:
        """Return the system, awake and alone. Raise `TurnFailed`; a system that fails to sleep or wake is stopped for good."""
        if name in self._retired:
            raise TurnFailed(f"{name} was retired")
        if name != self._awake:
            if self._sleeping and self._awake is not None:
                self._put_to_sleep(self._awake)
            self._wake_or_start(name)
        return self._up[name]

    def _put_to_sleep(self, name: str) -> None:
        self._awake = None
        system = self._up[name]
        assert isinstance(system, SleepableOffline | SleepableBay)
        before = self._used_bytes()
        try:
            timing = system.sleep()
            self._wait_free(name)
        except TurnFailed as failure:
            self._retire(name, failure)  # frees its memory: the other system can still be measured
            return
        self._note("asleep", system=name, **timing, gpu_before_bytes=before, gpu_bytes=self._used_bytes())

    def _wake_or_start(self, name: str) -> None:
        system = self._up.get(name)
        if system is None:
            self._start(name)
        elif self._sleeping:
            assert isinstance(system, SleepableOffline | SleepableBay)
            try:
                timing = system.wake()
            except TurnFailed as failure:
                self._retire(name, failure)
                raise
            self._note("awake", system=name, **timing, gpu_bytes=self._used_bytes())
        self._awake = name

    def _start(self, name: str) -> None:
        system = self._up[name] = self._waiting.pop(name, None) or self._makers[name]()
        system.wait_ready()
        timing = system.wake() if isinstance(system, SleepableBay) else {"seconds": system.started_s}
        self._note("started", system=name, **timing, gpu_bytes=self._used_bytes())

    def _wait_free(self, name: str) -> None:
        deadline = monotonic() + _FREE_S
        while (used := self._used_bytes()) is not None and used > self._max_asleep_bytes:
            if monotonic() > deadline:
                raise TurnFailed(f"{used / 2**30:.1f} GiB of GPU memory still in use while {name} sleeps")
            sleep(0.1)

    def _retire(self, name: str, failure: TurnFailed) -> None:
        self._note("gone", system=name, why=str(failure))
        self._retired.add(name)
        self._up.pop(name).stop()
        self._wait_free(name)

    def find_server(self) -> ServerSystem | None:
        return next((system for system in self._up.values() if isinstance(system, ServerSystem)), None)

    def stop(self) -> None:
        systems = [*self._up.values(), *self._waiting.values()]
        for system in systems:
            system.process.terminate()  # stop them in parallel
        for system in systems:
            system.stop()
