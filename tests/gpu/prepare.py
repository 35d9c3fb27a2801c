"""Make ENGINEBAY_HOME ready for the suite on a host that reaches no network: the embedded model, what is made from it, and probes.

    ENGINEBAY_HOME=DIR python -m tests.gpu.prepare GGUF

What a test would else do first, and each of several processes again, is done here once and side by side.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from enginebay.fleet import environments, models
from enginebay.home import home
from tests.contract.adapters import dense_smollm2, made_by


def probe(kind: str) -> str:
    found = environments.find(kind)
    return f"{kind} {found.version} in {found.python} ({found.source}), devices {', '.join(found.probe.devices)}"


def model_files() -> str:
    """The dense copy, and the tiny models made from its tokenizer."""
    dense = dense_smollm2()
    tiny = home() / "test-models" / "tiny-llama"
    if not tiny.is_dir():
        made_by("make_tiny_llama.py", dense, tiny)
    with ThreadPoolExecutor() as pool:
        gptq, int8 = tiny.with_name("tiny-gptq"), tiny.with_name("tiny-int8")
        made = [
            pool.submit(made_by, "make_tiny_quantized.py", "gptq", tiny, gptq) if not gptq.is_dir() else None,
            pool.submit(made_by, "make_int8.py", tiny, int8) if not int8.is_dir() else None,
        ]
    for one in made:
        if one is not None:
            one.result()
    return f"{dense}, {tiny}"


def timed(work: Callable[..., Any], *given: Any) -> str:
    started = time.monotonic()
    try:
        return f"{work(*given)} ({time.monotonic() - started:.1f} s)"
    except Exception as error:
        return f"FAILED {work.__name__}{given}: {type(error).__name__}: {error}"


def main(gguf: Path) -> int:
    if models.Store().get(models.DEFAULT) is None:
        models.Store().pull(f"file:{gguf.absolute()}", models.DEFAULT)
    with ThreadPoolExecutor() as pool:
        # The model is made in the transformers environment, which `model_files` would else probe a second time.
        beside = pool.submit(timed, probe, "vllm")
        lines = [timed(probe, "transformers"), timed(model_files), beside.result()]
    print("\n".join(lines), flush=True)
    return int(any(line.startswith("FAILED") for line in lines))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
