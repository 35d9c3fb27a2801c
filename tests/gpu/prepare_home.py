"""Make ENGINEBAY_HOME ready for the suite on a host that reaches no network: the embedded model, what is made from it, and probes.

    ENGINEBAY_HOME=DIR python -m tests.gpu.prepare_home GGUF

What a test would else do first, and each of several processes again, is done here once and side by side.
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
    found = environments.find_environment(kind)
    return f"{kind} {found.version} in {found.python} ({found.source}), devices {', '.join(found.probe.devices)}"


def make_model_files() -> str:
    """The dense copy, and the tiny models made from its tokenizer."""
    dense = ensure_dense_smollm2()
    tiny = home_dir() / "test-models" / "tiny-llama"
    if not tiny.is_dir():
        run_make_script("make_tiny_llama.py", dense, tiny)
    with ThreadPoolExecutor() as pool:
        gptq, int8 = tiny.with_name("tiny-gptq"), tiny.with_name("tiny-int8")
        made = [
            pool.submit(run_make_script, "make_tiny_quantized.py", "gptq", tiny, gptq) if not gptq.is_dir() else None,
            pool.submit(run_make_script, "make_int8.py", tiny, int8) if not int8.is_dir() else None,
        ]
    for one in made:
        if one is not None:
            one.result()
    return f"{dense}, {tiny}"


def run_timed(work: Callable[..., Any], *given: Any) -> str:
    started = time.monotonic()
    try:
        return f"{work(*given)} ({time.monotonic() - started:.1f} s)"
    except Exception as error:
        return f"FAILED {work.__name__}{given}: {type(error).__name__}: {error}"


def main(gguf: Path) -> int:
    if models.ModelStore().get(models.DEFAULT_MODEL) is None:
        models.ModelStore().pull(f"file:{gguf.absolute()}", models.DEFAULT_MODEL)
    with ThreadPoolExecutor() as pool:
        # The model is made in the transformers environment, which `model_files` would else probe a second time.
        beside = pool.submit(run_timed, probe_engine, "vllm")
        lines = [run_timed(probe_engine, "transformers"), run_timed(make_model_files), beside.result()]
    print("\n".join(lines), flush=True)
    return int(any(line.startswith("FAILED") for line in lines))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
