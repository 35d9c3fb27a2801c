"""Systems that take turns on one GPU: while one is awake, the others have given their memory back."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep
from typing import Any

from bench.gpu.systems_under_test import BayServe, OfflineVllm, ServerSystem, SystemUnderTest

# What `LLM` needs to sleep without its weights, and the rest as ours sets it: so both share vLLM's compile cache.
OFFLINE_SETTINGS: Mapping[str, Any] = {
    "enable_sleep_mode": True,
    "worker_extension_cls": "bench.gpu.dummy_weights.DummyWeights",
    "generation_config": "vllm",
}
_LEVEL = 2  # of offline: two models of this size do not fit into main memory either
_ORDER_S, _LOOK_S = 300.0, 10.0  # for what is done, and for what is only told
_FREE_S = 15.0  # for the driver to have the memory back

NoteFunction = Callable[..., None]  # (event, **fields): prints it and writes it down


class TurnFailed(Exception):
    """A system did not fall asleep, or did not wake."""


class SleepableOffline(OfflineVllm):
    death_error = TurnFailed  # the other one can still be measured

    def sleep(self) -> Mapping[str, Any]:
        return self.send_command({"sleep": _LEVEL})

    def wake(self) -> Mapping[str, Any]:
        return self.send_command({"wake": True})


class SleepableBay(BayServe):
    """Loads, sleeps and wakes by the orders of an administrator; until the first it only has vLLM imported."""

    def build_command(self) -> Sequence[str]:
        command = super().build_command()
        place = self.log.with_suffix(".json")
        config = json.loads(place.read_text())
        config["models"][self.model.name]["load"] = "use"
        place.write_text(json.dumps({**config, "fleet": {"standby": ["vllm"]}}))
        return command

    def health(self) -> str:
        return "/health/live"

    def sleep(self) -> Mapping[str, Any]:
        began = monotonic()
        answer = self._admin("sleep", {"model": self.model.name})
        if answer["state"] != "asleep":
            raise TurnFailed(f"{self.name} is {answer['state']} instead of asleep\n{self.read_log_tail()}")
        return {"seconds": monotonic() - began}

    def wake(self) -> Mapping[str, Any]:
        began = monotonic()
        answer = self._admin("load", {"model": self.model.name})
        return {"seconds": monotonic() - began, "switch": answer["last_switch"]}

    def list_switches(self) -> list[dict[str, Any]]:
        """Those of the model that is measured, by phase."""
        return [one for one in self._admin("switches")["switches"] if one["model"] == self.model.name]

    def _admin(self, what: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/admin/{what}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=_LOOK_S if body is None else _ORDER_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise TurnFailed(f"{self.name} refused {what}: {said}\n{self.read_log_tail()}") from None
        except OSError as error:
            raise TurnFailed(f"{self.name} did not answer {what}: {error}\n{self.read_log_tail()}") from None


class TurnTaker:
    """Starts systems when they are first used; one at a time is awake, unless they need not sleep."""

    def __init__(
        self,
        makers: Mapping[str, Callable[[], SystemUnderTest]],
        used_bytes: Callable[[], int | None],
        most_asleep_bytes: int,
        sleeping: bool,
        note: NoteFunction,
    ) -> None:
        self._makers = makers
        self._used_bytes, self._most_asleep_bytes = used_bytes, most_asleep_bytes
        self._sleeping, self._note = sleeping, note
        self._awake: str | None = None
        self._up: dict[str, SystemUnderTest] = {}
        self._waiting: dict[str, SystemUnderTest] = {}
        self._retired: set[str] = set()

    def prepare(self, name: str) -> None:
        """Its process begins now, for a system that takes nothing of the GPU until it is used."""
        self._waiting[name] = self._makers[name]()

    def use(self, name: str) -> SystemUnderTest:
        """The system, awake and alone. Raises `TurnFailed`; one that could not sleep or wake is ended and never used again."""
        if name in self._retired:
            raise TurnFailed(f"{name} is gone")
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
            found = system.sleep()
            self._wait_free(name)
        except TurnFailed as failure:
            self._retire(name, failure)  # its memory is needed; the other one can still be measured
            return
        self._note("asleep", system=name, **found, gpu_before_bytes=before, gpu_bytes=self._used_bytes())

    def _wake_or_start(self, name: str) -> None:
        system = self._up.get(name)
        if system is None:
            self._start(name)
        elif self._sleeping:
            assert isinstance(system, SleepableOffline | SleepableBay)
            try:
                found = system.wake()
            except TurnFailed as failure:
                self._retire(name, failure)
                raise
            self._note("awake", system=name, **found, gpu_bytes=self._used_bytes())
        self._awake = name

    def _start(self, name: str) -> None:
        system = self._up[name] = self._waiting.pop(name, None) or self._makers[name]()
        system.wait_ready()
        found = system.wake() if isinstance(system, SleepableBay) else {"seconds": system.started_s}
        self._note("started", system=name, **found, gpu_bytes=self._used_bytes())

    def _wait_free(self, name: str) -> None:
        deadline = monotonic() + _FREE_S
        while (used := self._used_bytes()) is not None and used > self._most_asleep_bytes:
            if monotonic() > deadline:
                raise TurnFailed(f"{used / 2**30:.1f} GiB of the GPU are still taken while {name} sleeps")
            sleep(0.1)

    def _retire(self, name: str, failure: TurnFailed) -> None:
        self._note("gone", system=name, why=str(failure))
        self._retired.add(name)
        self._up.pop(name).stop()
        self._wait_free(name)

    def find_server(self) -> ServerSystem | None:
        return next((one for one in self._up.values() if isinstance(one, ServerSystem)), None)

    def stop(self) -> None:
        systems = [*self._up.values(), *self._waiting.values()]
        for system in systems:
            system.process.terminate()  # so that they end side by side
        for system in systems:
            system.stop()
