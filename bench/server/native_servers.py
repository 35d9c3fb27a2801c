"""The engines' own servers: `vllm serve`, llama.cpp's server, `transformers serve`, in the environments we run them in.

Each gets the settings our engine gets, under its own names, and the same rule for how its threads wait.
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
    """How an engine's own server is started, and how one speaks to it."""

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
        # By itself it keeps a core back.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "PYTHONPATH": str(ensure_vllm_distribution(plan)),
    }
    return NativeLaunch(command, environment)


def ensure_vllm_distribution(plan: LaunchPlan) -> Path:
    """The CPU build is called vllm-cpu, and its command looks for a distribution called vllm: give it one."""
    version = plan.launch.python.parents[1].name.partition("-")[2]
    place = home_dir() / "bench" / f"vllm-name-{version}"
    about = place / f"vllm-{version}+cpu.dist-info" / "METADATA"
    about.parent.mkdir(parents=True, exist_ok=True)
    about.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return place


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

    def past_the_end(tokens: int) -> dict[str, object]:
        # It knows no ignore_eos, but takes a whole generation configuration, as text.
        wanted = {"eos_token_id": -1, "max_new_tokens": tokens, "do_sample": False}
        return {"generation_config": json.dumps(wanted)}

    return NativeLaunch(command, environment, model=path, ends_with_done=False, ignore_eos_fields=past_the_end)


def _ensure_web_libraries(plan: LaunchPlan) -> Path:
    """What its server needs beside the library, kept out of the engine's own environment."""
    place = home_dir() / "bench" / "transformers-serving"
    marker = place / "installed"
    if not marker.exists():
        print("installing what transformers serve needs", flush=True)
        shutil.rmtree(place, ignore_errors=True)
        python = str(plan.launch.python)
        wanted = ("fastapi", "uvicorn", "openai")
        command = [python, "-m", "pip", "install", "--quiet", "--target", str(place), *wanted]
        subprocess.run(command, check=True)
        marker.touch()
    return place


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
        """Its address, once it answers."""
        disable_openmp_spinning()  # ours do, where cores are few; set here, it is passed on
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
