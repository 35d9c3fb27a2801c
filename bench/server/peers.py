"""The gateways that ours is measured beside: each in an environment of its own, in front of the same upstream.

python -m bench.server.peers            install all, and ask each one question
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.server.client import chat
from bench.server.processes import Server, free_port
from bench.server.upstream import MODEL
from enginebay.home import home


@dataclass(frozen=True, slots=True)
class Launch:
    """How a gateway is started."""

    arguments: tuple[str, ...]  # the first one is a command of its environment
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # that its clients send


@dataclass(frozen=True, slots=True)
class Recipe:
    """Where a gateway comes from and how it is set up: one process, quiet, nothing on that could be off."""

    requirement: str  # `{version}` is filled in
    version: str
    launch: Callable[[str, int, Path], Launch]  # upstream's address, own port, a directory for its files
    ends_with_done: bool = True  # sends `data: [DONE]`


def _litellm(upstream: str, port: int, directory: Path) -> Launch:
    model = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": MODEL, "litellm_params": model}]}
    file = _write(directory / "config.yaml", config)
    key = f"sk-{secrets.token_hex(32)}"  # it does not start without one
    arguments = ("litellm", "--config", file, "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(directory)}
    return Launch(
        (*arguments, "--telemetry", "False"),
        {"LITELLM_MASTER_KEY": key, **quiet},
        {"Authorization": f"Bearer {key}"},
    )


def _mlflow(upstream: str, port: int, directory: Path) -> Launch:
    settings = {"openai_api_key": "none", "openai_api_base": f"{upstream}/v1"}
    model = {"provider": "openai", "name": MODEL, "config": settings}
    file = _write(
        directory / "config.yaml", {"endpoints": [{"name": MODEL, "endpoint_type": "llm/v1/chat", "model": model}]}
    )
    arguments = ("mlflow", "gateway", "start", "--config-path", file, "--host", "127.0.0.1", "--port", str(port))
    # A loopback upstream is let through for a configuration file today; the variable keeps it so.
    return Launch((*arguments, "--workers", "1"), {"MLFLOW_GATEWAY_API_BASE_ALLOW_PRIVATE_IPS": "true"})


def _smg(upstream: str, port: int, directory: Path) -> Launch:
    arguments = ("smg", "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", upstream)
    metrics = ("--prometheus-port", str(free_port()))
    lean = ("--disable-retries", "--disable-circuit-breaker", "--disable-health-check", "--log-level", "error")
    return Launch((*arguments, "--policy", "round_robin", *metrics, *lean))


def _write(file: Path, config: Mapping[str, object]) -> str:
    file.write_text(json.dumps(config))  # JSON is YAML
    return str(file)


# The newest versions whose dependencies can all be had.
RECIPES = {
    "litellm": Recipe("litellm[proxy]=={version}", "1.106.2", _litellm),
    "mlflow": Recipe("mlflow[genai]=={version}", "3.17.2", _mlflow, ends_with_done=False),
    "smg": Recipe("smg=={version}", "1.13.0", _smg),
}


def installed(name: str, version: str) -> Path:
    """The directory of a gateway's commands; installs it on first use."""
    place = home() / "bench" / f"{name}-{version}"
    marker = place / "installed"
    if not marker.exists():
        print(f"installing {name} {version}", flush=True)
        venv.create(place, with_pip=True, clear=True)
        requirement = RECIPES[name].requirement.format(version=version)
        done = subprocess.run(
            [place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        )
        if done.returncode:
            raise SystemExit(f"{requirement} cannot be installed; choose another version as {name}==VERSION")
        marker.touch()
    return place / "bin"


class Peer:
    """A gateway in front of the upstream. `name` is that of a recipe, or NAME==VERSION."""

    def __init__(self, name: str, upstream: str, cores: Collection[int] = ()) -> None:
        kind, _, version = name.partition("==")
        self.name = name
        self._kind = kind
        self._recipe = RECIPES[kind]
        self._version = version or self._recipe.version
        self._upstream = upstream
        self._cores = cores
        self._server: Server | None = None
        self._directory: Path | None = None
        self.model = MODEL
        self.headers: Mapping[str, str] = {}
        self.ends_with_done = self._recipe.ends_with_done

    def start(self) -> str:
        """Its address, once it answers."""
        commands = installed(self._kind, self._version)
        self._directory = Path(tempfile.mkdtemp(prefix="bench-"))
        port = free_port()
        launch = self._recipe.launch(self._upstream, port, self._directory)
        self.headers = launch.headers
        first, *rest = launch.arguments
        self._server = Server(
            [str(commands / first), *rest],
            self._directory / "log",
            self._cores,
            launch.environment,
            self._directory,
        )
        url = f"http://127.0.0.1:{port}"
        self._server.wait_ready(url, chat(MODEL, 8, False), self.headers)
        return url

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _try(names: Collection[str]) -> int:
    """Install each gateway and have it answer a few requests, streamed and not."""
    from bench.server.client import Load, run

    port = free_port()
    address = f"http://127.0.0.1:{port}"
    log = Path(tempfile.mkdtemp(prefix="bench-")) / "log"
    upstream = Server([sys.executable, "-m", "bench.server.upstream", "--port", str(port)], log)
    lost = 0
    try:
        for name in names:
            peer = Peer(name, address)
            try:
                url = peer.start()
                for stream, tokens in ((False, 8), (True, 128)):
                    load = Load(
                        url=url,
                        bodies=[chat(peer.model, tokens, stream)],
                        connections=4,
                        requests=20,
                        stream=stream,
                        tokens=tokens,
                        headers=peer.headers,
                        ends_with_done=peer.ends_with_done,
                    )
                    result = run(load)
                    lost += result.lost
                    how = "streamed" if stream else "whole"
                    print(f"{name}: {result.requests} {how} answers right, {result.lost} wrong {result.reasons}")
            finally:
                peer.stop()
    finally:
        upstream.stop()
        shutil.rmtree(log.parent, ignore_errors=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(_try(sys.argv[1:] or list(RECIPES)))
