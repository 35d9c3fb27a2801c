"""vLLM without a server, detokenization on. Reads commands as JSON lines from stdin and replies with a JSON line to each.

    python -m bench.gpu.offline_vllm '{"model": "FOLDER", ...engine arguments...}'

{"prompts": [[ids]...], "tokens": 128, "streams": 256} runs prompts with at most `streams` in flight, as a load generator does.
An engine that can sleep and has random weights (`dummy_weights`) also knows {"sleep": 2} and {"wake": true}.
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
        for request in engine.step():
            if request.finished:
                output += len(request.outputs[0].token_ids)
                assert request.outputs[0].text
                ended += 1
                running += add() - 1
    window_s = monotonic() - began
    return {"window_s": window_s, "output_tokens": output, "ended": ended, "output_tokens_per_s": output / window_s}


def sleep(engine: Any, level: int) -> Mapping[str, float]:
    """Put the engine to sleep. Level 2 discards the weights."""
    began = monotonic()
    engine.collective_rpc("keep_small_weights")
    engine.sleep(level=level)
    return {"seconds": monotonic() - began}


def wake(engine: Any) -> Mapping[str, float]:
    """Wake from level 2 and return the seconds by phase."""
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


def handle_command(engine: Any, command: Mapping[str, Any]) -> Mapping[str, float]:
    if "sleep" in command:
        return sleep(engine, command["sleep"])
    if "wake" in command:
        return wake(engine)
    return run_prompts(engine, command["prompts"], command["tokens"], command["streams"])


def main(arguments: Mapping[str, Any]) -> None:
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # redirect what the library prints to stderr
    from vllm import LLM

    engine = LLM(**arguments).llm_engine
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        print(json.dumps(handle_command(engine, json.loads(line))), file=replies)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
