"""Measures the distance of the transformers engine's attention from the library's, relative to the library's own rounding.

    python -m tests.gpu.transformers_rounding [--shape llama-8b] [--seeds 3] [--device cuda]

Below `_ROUNDING_FACTOR` of the model runner, the model is batched continuously. Exits with 1 if one is not.
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
    """Return the distances computed (ours, then the library's own), and the obstacle the engine finds."""
    distances: list[float] = []

    def record(actual: Any, reference: Any, compute: Any = model_runner.compute_logit_distance) -> float:
        distances.append(compute(actual, reference))
        return distances[-1]

    with mock.patch.object(model_runner, "compute_logit_distance", record):
        obstacle = model_runner.ModelRunner(model, NoAdapters(), _CONTEXT, device, None).find_obstacle()  # type: ignore[arg-type]
    return distances, obstacle


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", choices=["llama-8b", "llama-tiny"], default="llama-8b")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    refused = 0
    for dtype in (torch.bfloat16, torch.float16):
        for seed in range(args.seeds):
            torch.manual_seed(seed)
            torch.set_default_dtype(dtype)
            with torch.device(args.device):
                model = LlamaForCausalLM(LlamaConfig(**{**build_shape_config(args.shape), "dtype": dtype})).eval()
            torch.set_default_dtype(torch.float32)
            distances, obstacle = measure_distances(model, torch.device(args.device))
            refused += obstacle is not None
            figures = ", ".join(
                f"{name} {value:.4f}" for name, value in zip(("ours", "the library's"), distances, strict=False)
            )
            ratio = f", {distances[0] / distances[1]:.2f} times" if len(distances) == 2 and distances[1] else ""
            name = str(dtype).removeprefix("torch.")
            print(f"{args.shape} {name} seed {seed}: {figures}{ratio}; {obstacle or 'continuous'}", flush=True)
            del model
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
