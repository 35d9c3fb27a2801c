"""A server with one model, a hostile client with a key of its own, and honest clients of another key beside it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx2 as httpx
import psutil

from enginebay.server.auth.api_keys import create_key
from tests.contract.engine_profiles import PROFILES, EngineProfile
from tests.contract.lora_adapters import make_adapter
from tests.hostile.hostile_case import (
    ADAPTER,
    COMPLETIONS,
    TEXT_MODEL,
    VECTORS_MODEL,
    HostileCase,
    find_stream_error,
    parse_choices,
)
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.raw_http import RawResponse, assert_error

HONEST_CLIENTS = 4
HONEST_PAUSE_S = 0.05
ANSWER_S = 5.0  # no answer may take longer, beyond what an honest one takes
STALL_FACTOR = 2  # a machine that runs tests may stall: such an answer is late only if it is so twice
PATIENCE_S = 20.0  # then a request counts as hung, and the test goes on
LOAD_S = 240.0  # a first request may wait for a load
NOISE_S = 0.15  # medians that differ by less say nothing on a machine that stalls
MAX_GROWTH = 1.25
GROWTH_BYTES = 96 << 20
EMBEDDING_ENGINES = ("fake", "llamacpp")  # whose worker for vectors is loaded in a second


@dataclass
class HonestClient:
    """Asks the same short question again and again, and expects the same answer."""

    url: str
    key: str
    prompt: str
    waits_s: list[tuple[float, float]] = field(default_factory=list)  # when asked, how long it took
    problems: list[str] = field(default_factory=list)
    expected: str | None = None
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        body = {"model": TEXT_MODEL, "prompt": self.prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S, headers=build_headers(self.key)) as client:
            while not self.stopped.is_set():
                began = time.monotonic()
                try:
                    self._check(client.post(COMPLETIONS, json=body))
                except httpx.HTTPError as error:
                    self.problems.append(f"{type(error).__name__} after {time.monotonic() - began:.1f} s")
                self.waits_s.append((began, time.monotonic() - began))
                self.stopped.wait(HONEST_PAUSE_S)

    def _check(self, response: httpx.Response) -> None:
        if response.status_code != 200:
            self.problems.append(f"{response.status_code} {response.text[:200]}")
            return
        text = response.json()["choices"][0]["text"]
        self.expected = self.expected if self.expected is not None else text
        if text != self.expected:
            self.problems.append(f"answered {text!r} instead of {self.expected!r}")


def build_headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", "content-type": "application/json"}


@dataclass(frozen=True)
class SentCase:
    """A case and what came back."""

    case: HostileCase
    answer: RawResponse | None  # None: nothing in time
    took_s: float


@dataclass
class HostileSite:
    """A running server under attack."""

    engine: str
    server: BayProcess
    client: httpx.Client  # the hostile one
    admin: httpx.Client
    adapter: str = ""  # its path
    honest: Sequence[HonestClient] = ()
    usual_s: float = 0.0  # median of an honest answer, without the hostile client
    usual_worst_s: float = 0.0
    began: float = 0.0  # of the attack
    pids: dict[str, int] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)

    # What the server says of itself

    def ask_admin(self, path: str, body: Any = None) -> httpx.Response:
        return self.admin.get(path) if body is None else self.admin.post(path, json=body, timeout=LOAD_S)

    def read_pids(self) -> dict[str, int]:
        return {model["name"]: model["pid"] for model in self.ask_admin("/admin/ps").json()["models"] if model["pid"]}

    def is_same_worker(self) -> bool:
        """Whether no worker is another one, nor the server gone."""
        try:
            return self.read_pids() == self.pids
        except httpx.HTTPError:
            return False

    def count_deaths(self) -> float:
        lines = self.ask_admin("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("enginebay_worker_deaths_total{"))

    def read_resident_bytes(self) -> dict[str, int]:
        workers = {
            name: sum(_read_memory(process) for process in _list_family(pid)) for name, pid in self.read_pids().items()
        }
        return {"server": self.server.read_resident_bytes(), **workers}

    # The hostile client

    def send(self, case: HostileCase) -> SentCase:
        began = time.monotonic()
        try:
            found = self.client.post(case.path, content=case.body, headers=case.headers)
        except httpx.HTTPError:
            return SentCase(case, None, time.monotonic() - began)
        answer = RawResponse(found.status_code, dict(found.headers), found.content)
        return SentCase(case, answer, time.monotonic() - began)

    def send_at_once(self, cases: Sequence[HostileCase]) -> list[SentCase]:
        with ThreadPoolExecutor(len(cases)) as pool:
            return list(pool.map(self.send, cases))

    def attack(self, case: HostileCase) -> None:
        """Send the case; fail if the answer is wrong, late or missing, or if it harmed others."""
        before = self.count_problems()
        sent = self.send(case)
        if sent.answer is not None and self.limit_s < sent.took_s <= STALL_FACTOR * self.limit_s:
            sent = self.send(case)
        self.check(sent)
        self.assert_nobody_harmed(before, case.shown)

    def check(self, sent: SentCase) -> None:
        """The answer is right and in time."""
        case, took_s = sent.case, sent.took_s
        assert sent.answer is not None, f"no answer in {took_s:.1f} s: {case.shown}"
        check_answer(case, sent.answer, self.constrains_text(case))
        assert took_s <= self.limit_s, f"answered after {took_s:.1f} s, limit {self.limit_s:.1f} s: {case.shown}"

    def assert_nobody_harmed(self, before: int, shown: str) -> None:
        """The workers are the same, and no honest client saw an error more than these."""
        assert self.is_same_worker(), f"the worker died: {shown}"
        problems = self._list_problems()
        assert len(problems) == before, f"others failed ({problems[before:]}): {shown}"

    def constrains_text(self, case: HostileCase) -> bool:
        """The fake engine keeps to choices; its JSON is a stand-in."""
        return self.engine != "fake" or b'"guided_choice"' in case.body

    @property
    def limit_s(self) -> float:
        return ANSWER_S + 2 * self.usual_worst_s

    # The honest clients

    def count_problems(self) -> int:
        return len(self._list_problems())

    def _list_problems(self) -> list[str]:
        return [problem for client in self.honest for problem in client.problems]

    def list_waits(self, since: float) -> list[float]:
        return [wait_s for client in self.honest for began, wait_s in client.waits_s if began >= since]

    def assert_honest_unharmed(self) -> None:
        """No error, the usual answers, at most twice the usual wait, and nobody was kept waiting for long."""
        problems = self._list_problems()
        assert not problems, problems[:5]
        deadline = time.monotonic() + PATIENCE_S
        while len(waits := self.list_waits(self.began)) <= HONEST_CLIENTS:
            assert time.monotonic() < deadline, "the honest clients did not get to ask"
            time.sleep(0.1)
        limit_s = 2 * self.usual_s + NOISE_S
        assert median(waits) <= limit_s, f"median {median(waits):.3f} s beside {self.usual_s:.3f} s usually"
        assert max(waits) <= STALL_FACTOR * self.limit_s, f"one waited {max(waits):.1f} s"

    def assert_memory_back(self) -> None:
        limits = {name: size * MAX_GROWTH + GROWTH_BYTES for name, size in self.resident_bytes.items()}
        deadline = time.monotonic() + 20
        while True:
            found = self.read_resident_bytes()
            over = {name: size >> 20 for name, size in found.items() if size > limits.get(name, 1 << 62)}
            if not over:
                return
            before = {name: size >> 20 for name, size in self.resident_bytes.items()}
            assert time.monotonic() < deadline, f"MiB now {over}, before {before}"
            time.sleep(0.5)


def check_answer(case: HostileCase, answer: RawResponse, constrained: bool = True) -> None:
    """The status is allowed, an error is well formed, an answer satisfies its constraint."""
    assert 200 <= answer.status < 500, f"{answer.status} {answer.body[:300]!r}: {case.shown}"
    if answer.status != 200:
        assert case.expected != "answered", f"{answer.status} {answer.body[:300]!r}: {case.shown}"
        error = assert_error(answer, answer.status, asked=case.body.decode(errors="replace"))
        is_supported = error["code"] != "unsupported_parameter"
        assert case.expected != "supported" or not is_supported, f"{error}: {case.shown}"
        return
    assert case.expected != "refused", f"200 {answer.body[:300]!r}: {case.shown}"
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        error = find_stream_error(answer.body)
        is_refusal = error is None or "invalid" in f"{error.get('type')} {error.get('code')}"
        assert is_refusal, f"the stream ends with {error}: {case.shown}"
        return
    if case.check is None or not constrained:
        return
    for choice in parse_choices(case.path, answer.body):
        try:
            case.check(choice)
        except Exception as error:
            raise AssertionError(f"{error} ({choice.finish_reason}): {case.shown}") from None


def _list_family(pid: int) -> list[psutil.Process]:
    """A worker and what it has started: vLLM's engine is a process of its own."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _read_memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


# Running one


def build_config(profile: EngineProfile, adapter: str, **server: object) -> dict[str, object]:
    text: dict[str, Any] = {
        "source": profile.model,
        "engine": profile.kind,
        "loras": {ADAPTER: adapter},
        profile.kind: nest_settings(profile.settings),
    }
    models = {TEXT_MODEL: text}
    if profile.kind in EMBEDDING_ENGINES:
        models[VECTORS_MODEL] = {"source": profile.model, "engine": profile.kind, "task": "embed"}
    if profile.kind == "fake":
        for model in models.values():
            del model["source"]
    return {"models": models, "server": {"log_level": "warning", "drain_s": 2, **server}}


def nest_settings(settings: Any) -> dict[str, Any]:
    """Settings with dotted names as sections of a configuration file."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        section = nested
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return nested


@contextmanager
def open_site(engine: str, folder: Path) -> Iterator[HostileSite]:
    """Start a server, wait until its model answers, and start the honest clients."""
    profile = PROFILES[engine]
    file = folder / "keys.yaml"
    file.unlink(missing_ok=True)
    keys = {name: create_key(file, name, admin=name == "admin")[0] for name in ("hostile", "honest", "admin")}
    adapter = _get_adapter(engine, folder)
    config = build_config(profile, adapter)
    with run_server(config=config, options=["--keys-file", str(file)]) as server:
        client, admin = (
            httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=build_headers(keys[name]))
            for name in ("hostile", "admin")
        )
        with client, admin, _run_honest_clients(server.url, keys["honest"], profile.also_certain) as honest:
            site = HostileSite(engine, server, client, admin, adapter, honest)
            settle(site)
            yield site


_adapters: dict[str, str] = {}


def _get_adapter(engine: str, folder: Path) -> str:
    if engine not in _adapters:
        _adapters[engine] = make_adapter(engine, folder)
    return _adapters[engine]


@contextmanager
def _run_honest_clients(url: str, key: str, prompt: str) -> Iterator[list[HonestClient]]:
    body = {"model": TEXT_MODEL, "prompt": prompt, "max_tokens": 1}
    for _ in range(3):
        httpx.post(url + COMPLETIONS, json=body, headers=build_headers(key), timeout=LOAD_S).raise_for_status()
    clients = [HonestClient(url, key, prompt) for _ in range(HONEST_CLIENTS)]
    threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        for client in clients:
            client.stopped.set()
        for thread in threads:
            thread.join(PATIENCE_S + 5)


def settle(site: HostileSite, seconds: float = 4.0) -> None:
    """Let a site grow to its usual size, and note what is usual."""
    warm_up(site)
    began = time.monotonic()
    while len(site.list_waits(began)) < 3 * HONEST_CLIENTS or time.monotonic() - began < seconds:
        time.sleep(0.1)
        assert time.monotonic() - began < 120, [client.problems for client in site.honest]
    waits = site.list_waits(began)
    site.usual_s, site.usual_worst_s = median(waits), max(waits)
    site.pids, site.resident_bytes = site.read_pids(), site.read_resident_bytes()
    site.began = time.monotonic()


def warm_up(site: HostileSite) -> None:
    """One ordinary request of each kind, so that what is built once is there."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    ordinary: list[dict[str, Any]] = [
        {"prompt": "x" * 200_000},
        {"prompt": "hi", "guided_json": schema, "max_tokens": 8},
        {"prompt": "hi", "guided_choice": ["a", "b"]},
        {"prompt": "hi", "guided_regex": "[a-c]{2}"},
        {"prompt": "hi", "guided_grammar": 'root ::= "a" | "b"'},
        {"prompt": "hi", "n": 4, "logprobs": 5, "temperature": 1.0, "top_p": 0.9, "max_tokens": 8},
    ]
    for fields in ordinary:
        body = json.dumps({"model": TEXT_MODEL, **fields}).encode()
        assert site.client.post(COMPLETIONS, content=body, timeout=LOAD_S).status_code in (200, 400)
    if site.engine in EMBEDDING_ENGINES:
        found = site.client.post("/v1/embeddings", json={"model": VECTORS_MODEL, "input": "hi"}, timeout=LOAD_S)
        assert found.status_code == 200, found.text
