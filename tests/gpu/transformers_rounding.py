"""How far the transformers engine's attention is from the library's own, in times of what two of the library's are from each other.

    python -m tests.gpu.transformers_rounding [--shape llama-8b] [--seeds 3] [--device cuda]

Below `_TIMES` of the runner it is taken for rounding, and the model is batched continuously. Exit code 1: one was not.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any
from unittest import mock

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.gpu.model_shapes import build_shape_config
from enginebay.engines.transformers.continuous import model_runner
from tests.contract.check_transformers_rounding import NoAdapters

_CONTEXT = 512


def measure_distances(model: Any, device: Any) -> tuple[list[float], str | None]:
    """Ours from the library's, the library's from each other, as far as they were computed; and what the engine makes of it."""
    seen: list[float] = []

    def recorded(ours: Any, plain: Any, apart: Any = model_runner.compute_logit_distance) -> float:
        seen.append(apart(ours, plain))
        return seen[-1]

    with mock.patch.object(model_runner, "compute_logit_distance", recorded):
        obstacle = model_runner.ModelRunner(model, NoAdapters(), _CONTEXT, device, None).find_obstacle()  # type: ignore[arg-type]
    return seen, obstacle


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--shape", choices=["llama-8b", "llama-tiny"], default="llama-8b")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--device", default="cuda")
    given = options.parse_args()
    refused = 0
    for dtype in (torch.bfloat16, torch.float16):
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            torch.set_default_dtype(dtype)
            with torch.device(given.device):
                model = LlamaForCausalLM(LlamaConfig(**{**build_shape_config(given.shape), "dtype": dtype})).eval()
            torch.set_default_dtype(torch.float32)
            seen, obstacle = measure_distances(model, torch.device(given.device))
            refused += obstacle is not None
            figures = ", ".join(f"{name} {one:.4f}" for name, one in zip(("ours", "the library's"), seen, strict=False))
            times = f", {seen[0] / seen[1]:.2f} times" if len(seen) == 2 and seen[1] else ""
            name = str(dtype).removeprefix("torch.")
            print(f"{given.shape} {name} seed {seed}: {figures}{times}; {obstacle or 'continuous'}", flush=True)
            del model
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
