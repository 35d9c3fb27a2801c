"""The gateways to compare with: each in its own environment, in front of the same upstream.

python -m bench.server.peer_gateways            install all, and smoke-test each
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

from bench.server.loadgen import build_chat_body
from bench.server.mock_upstream import MODEL
from bench.server.server_process import BenchServerProcess, find_free_port
from enginebay.util.paths import home_dir


@dataclass(frozen=True, slots=True)
class GatewayLaunch:
    """How a gateway is started."""

    arguments: tuple[str, ...]  # the first one is a command of its environment
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # for its clients to send


@dataclass(frozen=True, slots=True)
class GatewayRecipe:
    """How to install and configure a gateway: one process, quiet, all optional features off."""

    requirement: str  # `{version}` is filled in
    version: str
    launch: Callable[[str, int, Path], GatewayLaunch]  # upstream URL, own port, a directory for its files
    ends_with_done: bool = True  # sends `data: [DONE]`


def _launch_litellm(upstream: str, port: int, directory: Path) -> GatewayLaunch:
    model = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": MODEL, "litellm_params": model}]}
    file = _write_config(directory / "config.yaml", config)
    key = f"sk-{secrets.token_hex(32)}"  # required to start
    arguments = ("litellm", "--config", file, "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(directory)}
    return GatewayLaunch(
        (*arguments, "--telemetry", "False"),
        {"LITELLM_MASTER_KEY": key, **quiet},
        {"Authorization": f"Bearer {key}"},
    )


def _launch_mlflow(upstream: str, port: int, directory: Path) -> GatewayLaunch:
    settings = {"openai_api_key": "none", "openai_api_base": f"{upstream}/v1"}
    model = {"provider": "openai", "name": MODEL, "config": settings}
    file = _write_config(
        directory / "config.yaml", {"endpoints": [{"name": MODEL, "endpoint_type": "llm/v1/chat", "model": model}]}
    )
    arguments = ("mlflow", "gateway", "start", "--config-path", file, "--host", "127.0.0.1", "--port", str(port))
    # The current version allows a loopback upstream from a configuration file; the variable makes that explicit.
    return GatewayLaunch((*arguments, "--workers", "1"), {"MLFLOW_GATEWAY_API_BASE_ALLOW_PRIVATE_IPS": "true"})


def _launch_smg(upstream: str, port: int, directory: Path) -> GatewayLaunch:
    arguments = ("smg", "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", upstream)
    metrics = ("--prometheus-port", str(find_free_port()))
    lean = ("--disable-retries", "--disable-circuit-breaker", "--disable-health-check", "--log-level", "error")
    return GatewayLaunch((*arguments, "--policy", "round_robin", *metrics, *lean))


def _write_config(file: Path, config: Mapping[str, object]) -> str:
    file.write_text(json.dumps(config))  # JSON is YAML
    return str(file)


# The newest versions whose dependencies can all be installed.
RECIPES = {
    "litellm": GatewayRecipe("litellm[proxy]=={version}", "1.106.2", _launch_litellm),
    "mlflow": GatewayRecipe("mlflow[genai]=={version}", "3.17.2", _launch_mlflow, ends_with_done=False),
    "smg": GatewayRecipe("smg=={version}", "1.13.0", _launch_smg),
}


def ensure_installed(name: str, version: str) -> Path:
    """Return the directory of a gateway's commands; install it on first use."""
    folder = home_dir() / "bench" / f"{name}-{version}"
    marker = folder / "installed"
    if not marker.exists():
        print(f"installing {name} {version}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        requirement = RECIPES[name].requirement.format(version=version)
        process = subprocess.run(
            [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        )
        if process.returncode:
            raise SystemExit(f"{requirement} cannot be installed; select another version with {name}==VERSION")
        marker.touch()
    return folder / "bin"


class PeerGateway:
    """A gateway in front of the upstream. `name` is a recipe or NAME==VERSION."""

    def __init__(self, name: str, upstream: str, cores: Collection[int] = ()) -> None:
        kind, _, version = name.partition("==")
        self.name = name
        self._kind = kind
        self._recipe = RECIPES[kind]
        self._version = version or self._recipe.version
        self._upstream = upstream
        self._cores = cores
        self._server: BenchServerProcess | None = None
        self._directory: Path | None = None
        self.model = MODEL
        self.headers: Mapping[str, str] = {}
        self.ends_with_done = self._recipe.ends_with_done

    def start(self) -> str:
        """Start and return the URL once it answers."""
        commands = ensure_installed(self._kind, self._version)
        self._directory = Path(tempfile.mkdtemp(prefix="bench-"))
        port = find_free_port()
        launch = self._recipe.launch(self._upstream, port, self._directory)
        self.headers = launch.headers
        first, *rest = launch.arguments
        self._server = BenchServerProcess(
            [str(commands / first), *rest],
            self._directory / "log",
            self._cores,
            launch.environment,
            self._directory,
        )
        url = f"http://127.0.0.1:{port}"
        self._server.wait_ready(url, build_chat_body(MODEL, 8, False), self.headers)
        return url

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _smoke_test(names: Collection[str]) -> int:
    """Install each gateway and send it a few requests, streamed and not."""
    from bench.server.loadgen import HttpWorkload, run_workload

    port = find_free_port()
    address = f"http://127.0.0.1:{port}"
    log = Path(tempfile.mkdtemp(prefix="bench-")) / "log"
    upstream = BenchServerProcess([sys.executable, "-m", "bench.server.mock_upstream", "--port", str(port)], log)
    lost = 0
    try:
        for name in names:
            peer = PeerGateway(name, address)
            try:
                url = peer.start()
                for stream, tokens in ((False, 8), (True, 128)):
                    workload = HttpWorkload(
                        url=url,
                        bodies=[build_chat_body(peer.model, tokens, stream)],
                        connections=4,
                        requests=20,
                        stream=stream,
                        tokens=tokens,
                        headers=peer.headers,
                        ends_with_done=peer.ends_with_done,
                    )
                    result = run_workload(workload)
                    lost += result.lost
                    mode = "streamed" if stream else "whole"
                    print(f"{name}: {result.requests} {mode} responses correct, {result.lost} lost {result.reasons}")
            finally:
                peer.stop()
    finally:
        upstream.stop()
        shutil.rmtree(log.parent, ignore_errors=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(_smoke_test(sys.argv[1:] or list(RECIPES)))
