"""Other load generators, run as their users do: one command per workload, and the result file it writes.

python -m bench.lab.rival_loadgens            install what is missing, and smoke-test each
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.lab.loadgen_results import Loadgen, ObservedRequest, RateWorkload, make_constant_rate, summarize_requests
from bench.server.native_servers import MODEL, ensure_vllm_distribution
from enginebay.config.loader import load_config
from enginebay.environments import find_environment
from enginebay.fleet.lifecycle.launch_plan import make_launch_plan
from enginebay.util.paths import home_dir

GUIDELLM = "0.8.1"
INPUT_TOKENS = 8
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_LONGEST_S = 300.0
_EVEN_BURSTINESS = 10_000  # shape of vLLM's gamma-distributed gaps: they are within 1% of each other


class VllmBench:
    """`vllm bench serve`, from the engine's environment. One process."""

    name = "vllm bench serve"

    def __init__(self) -> None:
        plan = make_launch_plan(MODEL, engine="vllm", config=load_config(None))
        self._command = [str(plan.launch.python), "-m", "vllm.entrypoints.cli.main", "bench", "serve"]
        self._tokenizer = plan.launch.load.path
        self._environment = {**_OFFLINE, "PYTHONPATH": str(ensure_vllm_distribution(plan))}

    def run_workload(self, workload: RateWorkload) -> list[ObservedRequest]:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            options = {
                "backend": "openai", "base-url": workload.url, "endpoint": "/v1/completions", "model": "known",
                "tokenizer": self._tokenizer, "dataset-name": "random", "random-input-len": INPUT_TOKENS,
                "random-output-len": workload.tokens, "num-prompts": workload.requests, "request-rate": workload.rate,
                "burstiness": _EVEN_BURSTINESS, "temperature": 0, "result-dir": folder, "result-filename": "result.json",
                **({} if workload.concurrency is None else {"max-concurrency": workload.concurrency}),
            }  # fmt: skip
            arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
            command = [*self._command, *arguments, "--save-result", "--save-detailed", "--disable-tqdm"]
            result = _run_for_result(command, self._environment, Path(folder), "result.json")
        names = ("start_times", "latencies", "output_lens", "ttfts", "itls")
        requests = (_parse_vllm_request(*values) for values in zip(*(result[name] for name in names), strict=True))
        return [request for request in requests if request.ttft_s]  # a failed request has no TTFT


def _parse_vllm_request(
    start_s: float, latency_s: float, tokens: int, ttft_s: float, itls: Sequence[float]
) -> ObservedRequest:
    return ObservedRequest(start_s, start_s + latency_s, tokens, ttft_s, sum(itls) / max(1, tokens - 1))


class Guidellm:
    """guidellm in its own environment, with its performance extras and all prompts generated in advance."""

    def __init__(self, processes: int | None = None) -> None:
        self.name = "guidellm"
        self._environment = dict(_OFFLINE)
        if processes is not None:
            self.name += f", {processes} process{'es' if processes > 1 else ''}"
            self._environment["GUIDELLM__MAX_WORKER_PROCESSES"] = str(processes)
        self._python = _ensure_guidellm()
        self._tokenizer = make_launch_plan(MODEL, engine="transformers", config=load_config(None)).launch.load.path

    def run_workload(self, workload: RateWorkload) -> list[ObservedRequest]:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            options = {
                "backend": f"kind=openai_http,target={workload.url},model=known,request_format=/v1/completions",
                "profile": (
                    f"kind=constant,rate={workload.rate}"
                    if workload.concurrency is None
                    else f"kind=concurrent,streams={workload.concurrency}"
                ),
                "constraint": f"kind=max_requests,count={workload.requests}",
                "tokenizer": f"kind=huggingface_auto,model={self._tokenizer}",
                "data": f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={workload.tokens}",
                "data-loader": f"kind=pytorch,samples={workload.requests}",
                "metrics": "kind=generative,sample_size=0",
                "output": f"kind=json,path={folder}/result.json",
            }
            arguments = [text for name, value in options.items() for text in (f"--{name}", value)]
            command = [str(self._python.with_name("guidellm")), "run", *arguments, "--disable-console"]
            result = _run_for_result(command, self._environment, Path(folder), "result.json")
        return [_parse_guidellm_request(request) for request in result["benchmarks"][0]["requests"]["successful"]]


def _parse_guidellm_request(request: Mapping[str, Any]) -> ObservedRequest:
    return ObservedRequest(
        start_s=request["request_start_time"],
        end_s=request["request_end_time"],
        tokens=request["output_tokens"],
        ttft_s=request["time_to_first_token_ms"] / 1e3,
        tpot_s=(request["inter_token_latency_ms"] or 0.0) / 1e3,
    )


def _ensure_guidellm() -> Path:
    """Return the Python of guidellm's environment; create it on first use."""
    folder = home_dir() / "bench" / f"guidellm-{GUIDELLM}"
    python, marker = folder / "bin/python", folder / "installed"
    if not marker.exists():
        engine = find_environment("transformers").python
        print(f"installing guidellm {GUIDELLM}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        # It needs torch to load its prompts: reuse the engine's, which is already installed.
        code = ("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        site_packages, engine_packages = (_read_output([str(interpreter), *code]) for interpreter in (python, engine))
        (Path(site_packages) / "engine.pth").write_text(f"{engine_packages}\n")
        requirement = f"guidellm[perf]=={GUIDELLM}"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        if subprocess.run(pip).returncode:
            raise SystemExit(f"{requirement} cannot be installed")
        marker.touch()
    return python


def _read_output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _run_for_result(command: Sequence[str], environment: Mapping[str, str], folder: Path, name: str) -> Any:
    """Run a command and return the JSON file it writes. Raise SystemExit with the end of its output if there is none."""
    log = folder / "log"
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
        try:
            process.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):  # stop its children too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    result = folder / name
    if not result.exists():
        raise SystemExit(f"{' '.join(command)} wrote no result:\n{_read_log_tail(log)}")
    return json.loads(result.read_text())


def _read_log_tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _smoke_test() -> int:
    from enginebay.lab.loadgen.calibration import run_calibration_server

    rivals: list[Loadgen] = [VllmBench(), Guidellm()]
    lost = 0
    for rival in rivals:
        with run_calibration_server(0.1, 0.01) as url:
            workload = make_constant_rate(url, tokens=16, rate=8.0, warmup_s=1.0, measured_s=2.0)
            report = summarize_requests(rival.run_workload(workload), workload)
        print(f"{rival.name}: {report}", flush=True)
        lost += workload.measured - report.answered
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(_smoke_test())
