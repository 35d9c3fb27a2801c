"""Prepares ENGINEBAY_HOME for the suite on a host without network: the embedded model, derived models, and probes.

    ENGINEBAY_HOME=DIR python -m tests.gpu.prepare_home GGUF

Does once, in parallel, what every test process would otherwise do first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from enginebay import environments, models
from enginebay.util.paths import home_dir
from tests.contract.lora_adapters import ensure_dense_smollm2, run_make_script


def probe_engine(kind: str) -> str:
    environment = environments.find_environment(kind)
    devices = ", ".join(environment.probe.devices)
    return f"{kind} {environment.version} in {environment.python} ({environment.source}), devices {devices}"


def make_model_files() -> str:
    """Make the dense copy, and the tiny models with its tokenizer."""
    dense = ensure_dense_smollm2()
    tiny = home_dir() / "test-models" / "tiny-llama"
    if not tiny.is_dir():
        run_make_script("make_tiny_llama.py", dense, tiny)
    with ThreadPoolExecutor() as pool:
        gptq, int8 = tiny.with_name("tiny-gptq"), tiny.with_name("tiny-int8")
        futures = [
            pool.submit(run_make_script, "make_tiny_quantized.py", "gptq", tiny, gptq) if not gptq.is_dir() else None,
            pool.submit(run_make_script, "make_int8.py", tiny, int8) if not int8.is_dir() else None,
        ]
    for future in futures:
        if future is not None:
            future.result()
    return f"{dense}, {tiny}"


def run_timed(work: Callable[..., Any], *args: Any) -> str:
    started = time.monotonic()
    try:
        return f"{work(*args)} ({time.monotonic() - started:.1f} s)"
    except Exception as error:
        return f"FAILED {work.__name__}{args}: {type(error).__name__}: {error}"


def main(gguf: Path) -> int:
    if models.ModelStore().get(models.DEFAULT_MODEL) is None:
        models.ModelStore().pull(f"file:{gguf.absolute()}", models.DEFAULT_MODEL)
    with ThreadPoolExecutor() as pool:
        # Probe first: `make_model_files` would otherwise probe the transformers environment again.
        vllm_probe = pool.submit(run_timed, probe_engine, "vllm")
        lines = [run_timed(probe_engine, "transformers"), run_timed(make_model_files), vllm_probe.result()]
    print("\n".join(lines), flush=True)
    return int(any(line.startswith("FAILED") for line in lines))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
