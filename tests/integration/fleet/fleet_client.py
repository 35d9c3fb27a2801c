"""A client of a server with several models, and of its admin API."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil

from enginebay.util.paths import home_dir
from tests.integration.fleet.server_site import find_workers_for, wait_until
from tests.integration.server.bay_process import BayProcess, run_server

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Say hello."}]
BODY = {"messages": HELLO, "max_tokens": 4, "ignore_eos": True}
REAL = {"messages": HELLO, "max_tokens": 8, "temperature": 0}  # for engines whose model has something to say


@dataclass
class StreamedAnswer:
    """A stream from its beginning to its end."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        return [chunk["choices"][0]["delta"] for chunk in self.chunks if chunk.get("choices")]

    @property
    def text(self) -> str:
        return "".join(delta.get("content") or "" for delta in self.deltas)

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.events[-1:] == ["[DONE]"]


class FleetClient:
    """Talks to one server as a client and as an administrator."""

    def __init__(self, server: BayProcess, headers: dict[str, str] | None = None) -> None:
        self.server = server
        self.headers = headers or {}

    # As a client

    def ask(self, model: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {**(fields.pop("body", None) or BODY), "model": model, **fields}
        return httpx.post(
            f"{self.server.url}{CHAT}", json=body, headers={**self.headers, **(headers or {})}, timeout=120
        )

    def ask_text(self, model: str, **fields: Any) -> str:
        answer = self.ask(model, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        return str(answer.json()["choices"][0]["message"]["content"])

    def stream(self, model: str, headers: dict[str, str] | None = None, **fields: Any) -> StreamedAnswer:
        found = StreamedAnswer()
        self.stream_into(found, model, headers, **fields)
        return found

    def stream_into(
        self, found: StreamedAnswer, model: str, headers: dict[str, str] | None = None, **fields: Any
    ) -> None:
        began = time.monotonic()
        body = {**(fields.pop("body", None) or BODY), "model": model, "stream": True, **fields}
        with httpx.stream("POST", f"{self.server.url}{CHAT}", json=body, headers=headers or {}, timeout=120) as answer:
            found.headers, found.status = dict(answer.headers), answer.status_code
            for line in answer.iter_lines():
                if line.startswith(":"):
                    found.comments.append(line[1:].strip())
                elif line.startswith("data: "):
                    found.events.append(line[6:])
                elif line:
                    found.events.append(line)
        found.took_s = time.monotonic() - began

    @contextmanager
    def open_stream(self, model: str, **fields: Any) -> Iterator[Iterator[str]]:
        """Yield a stream's events after the first one. The client disconnects at the end of the block."""
        body = {**BODY, "model": model, "stream": True, **fields}
        with httpx.stream("POST", f"{self.server.url}{CHAT}", json=body, timeout=120) as answer:
            assert answer.status_code == 200 and "x-enginebay-fallback" not in answer.headers
            events = (line[6:] for line in answer.iter_lines() if line.startswith("data: "))
            next(events)
            yield events

    # As an administrator

    def post_admin(self, path: str, body: Any = None) -> Any:
        """Post and assert success."""
        answer = self.try_post_admin(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def try_post_admin(self, path: str, body: Any = None) -> httpx.Response:
        method = "GET" if path.partition("?")[0] in ("ps", "switches", "logs") else "POST"
        headers = {**self.server.admin_headers, **(self.headers or {})}
        return httpx.request(method, f"{self.server.url}/admin/{path}", json=body, headers=headers, timeout=240)

    def list_admin_models(self) -> dict[str, dict[str, Any]]:
        return {model["name"]: model for model in self.post_admin("ps")["models"]}

    def read_states(self) -> dict[str, str]:
        return {name: model["state"] for name, model in self.list_admin_models().items()}

    def list_switches(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.post_admin("switches")["switches"]
        return found

    def wait_idle(self) -> None:
        """Wait until no request runs or waits, by the fleet's count, which updates once a second."""
        wait_until(
            lambda: not any(one["running"] or one["waiting"] for one in self.list_admin_models().values()),
            20,
            "an idle fleet",
        )

    def describe_model(self, model: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.server.url}/v1/models/{model}", headers=self.headers, timeout=60)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["enginebay"]
        return found

    def list_models(self) -> list[str]:
        answer = httpx.get(f"{self.server.url}/v1/models", headers=self.headers, timeout=60)
        return [one["id"] for one in answer.json()["data"]]

    def read_metric(self, name: str, **labels: str) -> float:
        """Return the sum of all samples with this name and these labels."""
        lines = httpx.get(f"{self.server.url}/metrics", headers=self.headers, timeout=60).text.splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = [
            line for line in lines if line.startswith((f"{name} ", f"{name}{{")) and all(w in line for w in wanted)
        ]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def read_log(self, *, level: str | None = None, event: str | None = None) -> list[dict[str, Any]]:
        """Lines of the log with this level and event."""
        lines = [json.loads(line) for line in self._read_lines() if line.startswith("{")]
        return [line for line in lines if level in (None, line["level"]) and event in (None, line["event"])]

    def _read_lines(self) -> list[str]:
        """Return the complete lines."""
        return self.server.read_log().rpartition("\n")[0].splitlines()


@contextmanager
def run_fleet(
    models: dict[str, Any], home_: Path | None = None, server: dict[str, Any] | None = None, **fleet: Any
) -> Iterator[FleetClient]:
    """Run a server with these models that logs JSON. `home_`: its ENGINEBAY_HOME."""
    config: dict[str, object] = {"models": models, "fleet": fleet, "server": {"log_format": "json", **(server or {})}}
    with run_server(config=config, environ={"ENGINEBAY_HOME": str(home_)} if home_ else None) as found:
        yield FleetClient(found)
        assert "unexpected error" not in found.read_log() and "fleet task failed" not in found.read_log(), (
            found.read_log()
        )


def fake_model(**settings: Any) -> dict[str, Any]:
    """Build a model on the fake engine that loads on first use. Keys of the model are separated from engine settings."""
    own = [
        "load",
        "pinned",
        "idle_s",
        "memory_bytes",
        "sleep",
        "replicas",
        "gpus",
        "fallback",
        "fallback_on",
        "may_leave_host",
        "openai",
    ]
    kept = {name: settings.pop(name) for name in own if name in settings}
    return {"engine": "fake", "load": "use", **kept, "fake": settings}


@contextmanager
def hold_loading(fleet: FleetClient, model: str) -> Iterator[None]:
    """Keep a cold model loading until the block ends, by suspending its worker."""
    while (worker := _suspend_loading_worker(fleet, model)) is None:
        pass
    try:
        yield
    finally:
        worker.resume()


def _suspend_loading_worker(fleet: FleetClient, model: str) -> psutil.Process | None:
    """Return the suspended worker, or None if its load finished first."""
    assert fleet.ask(model, {"prefer": "wait=0"}).status_code == 503
    wait_until(lambda: find_workers_for(fleet.server, model) or fleet.read_states()[model] != "loading", 60, "a worker")
    for worker in find_workers_for(fleet.server, model):
        with suppress(psutil.NoSuchProcess):
            worker.suspend()
            if fleet.read_states()[model] == "loading":
                return worker
            worker.resume()
            fleet.post_admin("unload", {"model": model})
    return None


def make_home(folder: Path, *parts: str) -> Path:
    """Create a home with only these parts of the tests' home, such as models."""
    for part in parts:
        (folder / part).symlink_to(home_dir() / part)
    return folder


class BackgroundCall:
    """Runs a call in a thread; `result` waits for it and raises its error."""

    def __init__(self, work: Any, *args: Any, **fields: Any) -> None:
        self._future: Future[Any] = Future()
        self.ended_at = 0.0
        self._thread = threading.Thread(target=self._run, args=(work, args, fields), daemon=True)
        self._thread.start()

    def _run(self, work: Any, args: Any, fields: Any) -> None:
        try:
            found = work(*args, **fields)
            self.ended_at = time.monotonic()
            self._future.set_result(found)
        except BaseException as error:
            self._future.set_exception(error)

    def result(self, within_s: float = 120) -> Any:
        return self._future.result(within_s)


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def build_environ(home_: Path) -> dict[str, str]:
    return {**os.environ, "ENGINEBAY_HOME": str(home_)}
