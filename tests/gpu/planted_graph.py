"""Loads a model with a fault planted in its mixed graphs, and prints as JSON what the engine made of it.

    python -m tests.gpu.planted_graph FAULT MODEL_DIR

The fault is planted in this process, from which vLLM's engine process is forked.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from enginebay.contract import GenerateRequest, Load, Sampling
from enginebay.engines.vllm.engine import VllmEngine
from enginebay.engines.vllm.patches import mixed_graphs
from tests.contract.engine_profiles import build_vllm_memory

SETTINGS = {
    "max_model_len": 512, "dtype": "bfloat16", "max_num_seqs": 256, "start_method": "fork", **build_vllm_memory(1),
}  # fmt: skip
FIRST_NUMBERS = (1, 11, 51, 101)
COUNT = 30


def capture_without_prompt() -> None:
    """Capture mixed steps as decode-only ones: the kernel then ignores the causal mask for some head sizes."""
    mixed_graphs._pretend_prompt = lambda batch: nullcontext()  # type: ignore[assignment]


def replay_other_rows() -> None:
    """Return each token's hidden state for its neighbour when a mixed graph is replayed."""
    from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager

    run = ModelCudaGraphManager.run_fullgraph

    def run_shifted(self: Any, desc: Any) -> Any:
        hidden = run(self, desc)
        return hidden.roll(1, 0) if desc.uniform_token_count is None else hidden

    ModelCudaGraphManager.run_fullgraph = run_shifted


FAULTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "captured-without-prompt": capture_without_prompt,
    "replays-other-rows": replay_other_rows,
}


class TextSink:
    """Collects the text of each request."""

    def __init__(self, count: int) -> None:
        self.texts = [""] * count
        self.errors: list[str] = []
        self._left = count
        self.ended = threading.Event()

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int) -> None:
        pass

    def token(self, number: int, text: str, token_ids: Sequence[int], *_: Any) -> None:
        self.texts[number] += text

    def finish(self, number: int, *_: Any) -> None:
        self._left -= 1
        if not self._left:
            self.ended.set()

    def error(self, number: int, error: BaseException) -> None:
        self.errors.append(str(error))
        self.finish(number)

    def flush(self, ends_step: bool = True) -> None:
        pass


def main(fault: str, model: str) -> None:
    VllmEngine.warm()
    FAULTS[fault]()
    engine = VllmEngine(Load("vllm", "enginebay.engines.vllm.engine:VllmEngine", "planted", model, SETTINGS))
    sink = TextSink(len(FIRST_NUMBERS))
    engine.start(sink)  # type: ignore[arg-type]
    for number, first in enumerate(FIRST_NUMBERS):
        prompt = ", ".join(map(str, range(first, first + COUNT))) + ","
        ids = tuple(engine.tokenize(prompt, add_special=True))
        engine.submit(number, GenerateRequest(token_ids=ids, sampling=Sampling(temperature=0.0, max_tokens=12)))
    sink.ended.wait(60)
    facts = engine.facts()
    result = {"mixed_graphs": facts.effective["mixed_graphs"], "warnings": facts.warnings, "phases": dict(facts.phases)}
    print(json.dumps({**result, "texts": sink.texts, "errors": sink.errors}), flush=True)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
