"""The engines' own servers: `vllm serve`, llama.cpp's server and `transformers serve`, in Enginebay's engine environments.

Each gets the same settings as our engine, under its own names, and the same spinning policy for its threads.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.server.loadgen import build_chat_body
from bench.server.server_process import BenchServerProcess, find_free_port
from enginebay.config.loader import load_config
from enginebay.engines.cpu_cores import disable_openmp_spinning, list_physical_cores
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan, make_launch_plan
from enginebay.util.paths import home_dir

MODEL = "smollm2"
_BLOCK = 32  # tokens in a block of transformers' KV cache


def _build_ignore_eos(tokens: int) -> dict[str, object]:
    return {"ignore_eos": True}


@dataclass(frozen=True, slots=True)
class NativeLaunch:
    """How to start an engine's own server and talk to it."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    model: str = MODEL
    ends_with_done: bool = True
    ignore_eos_fields: Callable[[int], dict[str, object]] = _build_ignore_eos


def _launch_vllm(plan: LaunchPlan, settings: Mapping[str, Any], port: int) -> NativeLaunch:
    cores = list_physical_cores()
    command = (
        str(plan.launch.python.with_name("vllm")), "serve", plan.launch.load.path,
        "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port),
        "--dtype", settings["dtype"], "--max-model-len", str(settings["max_model_len"]),
        "--max-num-seqs", str(settings["max_num_seqs"]), "--enforce-eager",
        "--generation-config", "vllm", "--disable-log-stats", "--disable-uvicorn-access-log",
    )  # fmt: skip
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(settings["cpu_kvcache_space_gib"]),
        # By default it reserves a core.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "PYTHONPATH": str(ensure_vllm_distribution(plan)),
    }
    return NativeLaunch(command, environment)


def ensure_vllm_distribution(plan: LaunchPlan) -> Path:
    """Create a distribution named vllm: the CPU build is named vllm-cpu, and its command looks for vllm."""
    version = plan.launch.python.parents[1].name.partition("-")[2]
    folder = home_dir() / "bench" / f"vllm-name-{version}"
    metadata = folder / f"vllm-{version}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True, exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return folder


def _launch_llamacpp(plan: LaunchPlan, settings: Mapping[str, Any], port: int) -> NativeLaunch:
    module = ("-m", "bench.server.llama_server", plan.launch.load.path)
    options = ("--port", str(port), "--name", MODEL, "--settings", json.dumps(settings))
    return NativeLaunch((sys.executable, *module, *options), {})


def _launch_transformers(plan: LaunchPlan, settings: Mapping[str, Any], port: int) -> NativeLaunch:
    blocks = 32 * int(settings["context_length"]) // _BLOCK  # for as many requests as our engine runs at once
    path = plan.launch.load.path
    command = (
        str(plan.launch.python.with_name("transformers")), "serve", path, "--continuous-batching",
        "--dtype", settings["dtype"], "--device", "cpu", "--host", "127.0.0.1", "--port", str(port),
        "--cb-block-size", str(_BLOCK), "--cb-num-blocks", str(blocks), "--log-level", "error",
    )  # fmt: skip
    environment = {"PYTHONPATH": str(_ensure_web_libraries(plan)), "HF_HUB_OFFLINE": "1"}

    def build_ignore_eos(tokens: int) -> dict[str, object]:
        # It has no ignore_eos, but accepts a whole generation configuration as text.
        config = {"eos_token_id": -1, "max_new_tokens": tokens, "do_sample": False}
        return {"generation_config": json.dumps(config)}

    return NativeLaunch(command, environment, model=path, ends_with_done=False, ignore_eos_fields=build_ignore_eos)


def _ensure_web_libraries(plan: LaunchPlan) -> Path:
    """Install the server's extra packages outside the engine's environment, on first use."""
    folder = home_dir() / "bench" / "transformers-serving"
    marker = folder / "installed"
    if not marker.exists():
        print("installing the packages of transformers serve", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        python = str(plan.launch.python)
        requirements = ("fastapi", "uvicorn", "openai")
        command = [python, "-m", "pip", "install", "--quiet", "--target", str(folder), *requirements]
        subprocess.run(command, check=True)
        marker.touch()
    return folder


NATIVE_SERVERS = {"vllm": _launch_vllm, "llamacpp": _launch_llamacpp, "transformers": _launch_transformers}


class NativeServer:
    """An engine's own server, loaded with the embedded model."""

    def __init__(self, kind: str, settings: Mapping[str, Any]) -> None:
        self.name = f"{kind}, own server"
        self._port = find_free_port()
        plan = make_launch_plan(MODEL, engine=kind, config=load_config(None), settings=settings)
        self._launch = NATIVE_SERVERS[kind](plan, settings, self._port)
        self.model = self._launch.model
        self.headers: Mapping[str, str] = {}
        self.ends_with_done = self._launch.ends_with_done
        self.ignore_eos_fields = self._launch.ignore_eos_fields
        self._server: BenchServerProcess | None = None
        self._directory: Path | None = None

    def start(self) -> str:
        """Start and return the URL once it answers."""
        disable_openmp_spinning()  # as our engines do with few cores; the child inherits it
        self._directory = Path(tempfile.mkdtemp(prefix="bench-"))
        environment = {"PYTHONPATH": str(Path(__file__).parents[2]), **self._launch.environment}
        self._server = BenchServerProcess(
            self._launch.command, self._directory / "log", (), environment, self._directory
        )
        url = f"http://127.0.0.1:{self._port}"
        self._server.wait_ready(url, build_chat_body(self.model, 8, False), {}, timeout_s=300)
        return url

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
