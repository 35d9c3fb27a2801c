"""The child of bench/worker_overhead.py: drives one engine directly in its own environment, without a worker."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any


class TokenCounter:
    """A minimal sink: counts tokens and signals when every request has ended."""

    def __init__(self) -> None:
        self.tokens = 0
        self.left = 0
        self.finished = threading.Event()

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None: ...

    def token(self, number: int, text: str, token_ids: Sequence[int], choice: int = 0, logprobs: Any = ()) -> None:
        self.tokens += len(token_ids)

    def finish(self, number: int, reason: Any, choice: int = 0, stop_reason: Any = None) -> None:
        self.left -= 1
        if not self.left:
            self.finished.set()

    def error(self, number: int, error: Exception) -> None:
        raise SystemExit(str(error))

    def flush(self, ends_step: bool = True) -> None: ...


def send_message(message: dict[str, Any]) -> None:
    sys.stdout.write("@" + json.dumps(message) + "\n")
    sys.stdout.flush()


def main(bootstrap: str, load_text: str) -> None:
    spec = importlib.util.spec_from_file_location("bootstrap", bootstrap)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    from enginebay.contract import GenerateRequest, Load, Sampling

    load = Load(**json.loads(load_text))
    module, _, name = load.engine.partition(":")
    engine = getattr(importlib.import_module(module), name)(load)
    sink = TokenCounter()
    engine.start(sink)
    send_message({"ready": True})
    number = 0
    for line in sys.stdin:
        job = json.loads(line)
        sink.tokens, sink.left = 0, job["streams"]
        sink.finished.clear()
        started = time.perf_counter()
        for stream in range(job["streams"]):
            number += 1
            sampling = Sampling(temperature=0.0, max_tokens=job["tokens"], ignore_eos=True)
            engine.submit(number, GenerateRequest(token_ids=(*job["ids"], stream + 100), sampling=sampling))
        sink.finished.wait()
        send_message({"tokens_per_s": sink.tokens / (time.perf_counter() - started)})
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
