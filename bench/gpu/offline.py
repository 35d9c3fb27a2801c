"""vLLM without any server: what the engine itself gives, detokenization on. Reads orders, one JSON line each, and answers likewise.

    python -m bench.gpu.offline '{"model": "FOLDER", ...engine arguments...}'

An order: {"prompts": [[ids]...], "tokens": 128, "streams": 256}. At most so many are in flight, as under a load client.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any


def run(engine: Any, prompts: Sequence[Sequence[int]], tokens: int, streams: int) -> Mapping[str, float]:
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


def main(arguments: Mapping[str, Any]) -> None:
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the library prints goes elsewhere
    from vllm import LLM

    engine = LLM(**arguments).llm_engine
    print(json.dumps({"ready": True}), file=said)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(run(engine, order["prompts"], order["tokens"], order["streams"])), file=said)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
