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

from bench.gpu.shapes import SHAPES, shape_config
from enginebay.engines.transformers import runner
from tests.contract.check_transformers_rounding import NoAdapters

_CONTEXT = 512


def look(model: Any, device: Any) -> tuple[float, float, str | None]:
    """Ours from the library's, the library's from each other, and what the engine makes of it."""
    seen: list[float] = []

    def recorded(ours: Any, plain: Any, apart: Any = runner.apart) -> float:
        seen.append(apart(ours, plain))
        return seen[-1]

    with mock.patch.object(runner, "apart", recorded):
        obstacle = runner.Runner(model, NoAdapters(), _CONTEXT, device, None).obstacle()  # type: ignore[arg-type]
    ours, theirs = seen
    return ours, theirs, obstacle


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--shape", choices=list(SHAPES), default="llama-8b")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--device", default="cuda")
    given = options.parse_args()
    refused = 0
    for dtype in (torch.bfloat16, torch.float16):
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            torch.set_default_dtype(dtype)
            with torch.device(given.device):
                model = LlamaForCausalLM(LlamaConfig(**{**shape_config(given.shape), "dtype": dtype})).eval()
            ours, theirs, obstacle = look(model, torch.device(given.device))
            refused += obstacle is not None
            print(
                f"{given.shape} {str(dtype).removeprefix('torch.')} seed {seed}: ours {ours:.4f}, "
                f"the library's {theirs:.4f}, {ours / theirs:.2f} times; {obstacle or 'continuous'}",
                flush=True,
            )
            del model
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
