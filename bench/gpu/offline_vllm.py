"""vLLM without any server: what the engine itself gives, detokenization on. Reads orders, one JSON line each, and answers likewise.

    python -m bench.gpu.offline_vllm '{"model": "FOLDER", ...engine arguments...}'

An order: {"prompts": [[ids]...], "tokens": 128, "streams": 256}. At most so many are in flight, as under a load client.
Others, of an engine that can sleep and has random weights (`dummy_weights`): {"sleep": 2} and {"wake": true}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any


def run_prompts(engine: Any, prompts: Sequence[Sequence[int]], tokens: int, streams: int) -> Mapping[str, float]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    waiting = iter(enumerate(prompts))
    output = running = ended = 0
    began = monotonic()

    def add() -> int:
        for number, prompt in waiting:
            engine.add_request(str(number), {"prompt_token_ids": list(prompt)}, params)
            return 1
        return 0

    for _ in range(streams):
        running += add()
    while running:
        for one in engine.step():
            if one.finished:
                output += len(one.outputs[0].token_ids)
                assert one.outputs[0].text
                ended += 1
                running += add() - 1
    window_s = monotonic() - began
    return {"window_s": window_s, "output_tokens": output, "ended": ended, "output_tokens_per_s": output / window_s}


def sleep(engine: Any, level: int) -> Mapping[str, float]:
    """At level 2 the weights are thrown away."""
    began = monotonic()
    engine.collective_rpc("keep_small_weights")
    engine.sleep(level=level)
    return {"seconds": monotonic() - began}


def wake(engine: Any) -> Mapping[str, float]:
    """From level 2, by phase."""
    began = monotonic()
    engine.wake_up(tags=["weights"])
    mapped = monotonic()
    engine.collective_rpc("fill_weights")
    filled = monotonic()
    engine.wake_up(tags=["kv_cache"])
    engine.reset_prefix_cache()
    ended = monotonic()
    phases = {"weights_s": mapped - began, "fill_s": filled - mapped, "cache_s": ended - filled}
    return {"seconds": ended - began, **phases}


def handle_command(engine: Any, order: Mapping[str, Any]) -> Mapping[str, float]:
    if "sleep" in order:
        return sleep(engine, order["sleep"])
    if "wake" in order:
        return wake(engine)
    return run_prompts(engine, order["prompts"], order["tokens"], order["streams"])


def main(arguments: Mapping[str, Any]) -> None:
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the library prints goes elsewhere
    from vllm import LLM

    engine = LLM(**arguments).llm_engine
    print(json.dumps({"ready": True}), file=said)
    for line in sys.stdin:
        print(json.dumps(handle_command(engine, json.loads(line))), file=said)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
