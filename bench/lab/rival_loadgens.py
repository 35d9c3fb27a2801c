"""The load clients of others, as their users run them: a command for each load, and what it wrote when it ended.

python -m bench.lab.rival_loadgens            install what is missing, and have each carry out a small load
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
_EVEN_BURSTINESS = 10_000  # vLLM draws gaps from a gamma distribution of this shape: they are within 1% of each other


class VllmBench:
    """`vllm bench serve`, from the environment of the engine. One process."""

    name = "vllm bench serve"

    def __init__(self) -> None:
        plan = make_launch_plan(MODEL, engine="vllm", config=load_config(None))
        self._command = [str(plan.launch.python), "-m", "vllm.entrypoints.cli.main", "bench", "serve"]
        self._tokenizer = plan.launch.load.path
        self._environment = {**_OFFLINE, "PYTHONPATH": str(ensure_vllm_distribution(plan))}

    def run_workload(self, load: RateWorkload) -> list[ObservedRequest]:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            options = {
                "backend": "openai", "base-url": load.url, "endpoint": "/v1/completions", "model": "known",
                "tokenizer": self._tokenizer, "dataset-name": "random", "random-input-len": INPUT_TOKENS,
                "random-output-len": load.tokens, "num-prompts": load.requests, "request-rate": load.rate,
                "burstiness": _EVEN_BURSTINESS, "temperature": 0, "result-dir": folder, "result-filename": "result.json",
                **({} if load.concurrency is None else {"max-concurrency": load.concurrency}),
            }  # fmt: skip
            named = [text for name, value in options.items() for text in (f"--{name}", str(value))]
            command = [*self._command, *named, "--save-result", "--save-detailed", "--disable-tqdm"]
            found = _run_for_result(command, self._environment, Path(folder), "result.json")
        names = ("start_times", "latencies", "output_lens", "ttfts", "itls")
        ones = (_parse_vllm_request(*values) for values in zip(*(found[name] for name in names), strict=True))
        return [one for one in ones if one.ttft_s]  # one without an answer has none


def _parse_vllm_request(
    start_s: float, latency_s: float, tokens: int, ttft_s: float, itls: Sequence[float]
) -> ObservedRequest:
    return ObservedRequest(start_s, start_s + latency_s, tokens, ttft_s, sum(itls) / max(1, tokens - 1))


class Guidellm:
    """guidellm, in an environment of its own, with its libraries for speed and all prompts made beforehand."""

    def __init__(self, processes: int | None = None) -> None:
        self.name = "guidellm"
        self._environment = dict(_OFFLINE)
        if processes is not None:
            self.name += f", {processes} process{'es' if processes > 1 else ''}"
            self._environment["GUIDELLM__MAX_WORKER_PROCESSES"] = str(processes)
        self._python = _ensure_guidellm()
        self._tokenizer = make_launch_plan(MODEL, engine="transformers", config=load_config(None)).launch.load.path

    def run_workload(self, load: RateWorkload) -> list[ObservedRequest]:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            options = {
                "backend": f"kind=openai_http,target={load.url},model=known,request_format=/v1/completions",
                "profile": (
                    f"kind=constant,rate={load.rate}"
                    if load.concurrency is None
                    else f"kind=concurrent,streams={load.concurrency}"
                ),
                "constraint": f"kind=max_requests,count={load.requests}",
                "tokenizer": f"kind=huggingface_auto,model={self._tokenizer}",
                "data": f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={load.tokens}",
                "data-loader": f"kind=pytorch,samples={load.requests}",
                "metrics": "kind=generative,sample_size=0",
                "output": f"kind=json,path={folder}/result.json",
            }
            named = [text for name, value in options.items() for text in (f"--{name}", value)]
            command = [str(self._python.with_name("guidellm")), "run", *named, "--disable-console"]
            found = _run_for_result(command, self._environment, Path(folder), "result.json")
        return [_parse_guidellm_request(request) for request in found["benchmarks"][0]["requests"]["successful"]]


def _parse_guidellm_request(request: Mapping[str, Any]) -> ObservedRequest:
    return ObservedRequest(
        start_s=request["request_start_time"],
        end_s=request["request_end_time"],
        tokens=request["output_tokens"],
        ttft_s=request["time_to_first_token_ms"] / 1e3,
        tpot_s=(request["inter_token_latency_ms"] or 0.0) / 1e3,
    )


def _ensure_guidellm() -> Path:
    """The Python of guidellm's environment; makes it on first use."""
    place = home_dir() / "bench" / f"guidellm-{GUIDELLM}"
    python, marker = place / "bin/python", place / "installed"
    if not marker.exists():
        engine = find_environment("transformers").python
        print(f"installing guidellm {GUIDELLM}", flush=True)
        venv.create(place, with_pip=True, clear=True)
        # It asks for torch, and loads its prompts with it: the engine's will do, and is already here.
        where = ("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        own, engines = (_read_output([str(one), *where]) for one in (python, engine))
        (Path(own) / "engine.pth").write_text(f"{engines}\n")
        wanted = f"guidellm[perf]=={GUIDELLM}"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted]
        if subprocess.run(pip).returncode:
            raise SystemExit(f"{wanted} cannot be installed")
        marker.touch()
    return python


def _read_output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _run_for_result(command: Sequence[str], environment: Mapping[str, str], folder: Path, name: str) -> Any:
    """What a command leaves in a file. Raises SystemExit with the end of what it printed when it leaves none."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            process.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):  # what it started ends with it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    place = folder / name
    if not place.exists():
        raise SystemExit(f"{' '.join(command)} left no result:\n{_read_log_tail(log)}")
    return json.loads(place.read_text())


def _read_log_tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _smoke_test() -> int:
    from enginebay.lab.loadgen.calibration import run_calibration_server

    rivals: list[Loadgen] = [VllmBench(), Guidellm()]
    lost = 0
    for rival in rivals:
        with run_calibration_server(0.1, 0.01) as url:
            load = make_constant_rate(url, tokens=16, rate=8.0, warmup_s=1.0, measured_s=2.0)
            seen = summarize_requests(rival.run_workload(load), load)
        print(f"{rival.name}: {seen}", flush=True)
        lost += load.measured - seen.answered
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(_smoke_test())
