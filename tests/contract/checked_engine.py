"""An engine under test inside the transformers environment, with requests, reference answers and a graph recorder.

Used by the check_transformers*.py scripts. ENGINEBAY_CHECK_DEVICE selects the device; default: cpu.
"""

from __future__ import annotations

import os
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

from enginebay.contract import FinishReason, GenerateRequest, Load, Sampling, TokenLogprobs
from enginebay.engines.transformers import engine_builder
from enginebay.engines.transformers.decoding.sequence_state import derive_random_bits
from enginebay.engines.transformers.decoding.token_sampler import hash_to_uniform
from enginebay.engines.transformers.engine import TransformersEngine
from enginebay.errors import EnginebayError

DEVICE = os.environ.get("ENGINEBAY_CHECK_DEVICE", "cpu")
WAIT_S = 120
_MAX_LEAD = 0.01  # logits, whose spread is several: float32 rounding is far less, another token is far more


class RecordingSink:
    """A sink that records all events."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.ended: dict[tuple[int, int], FinishReason] = {}
        self.errors: dict[int, EnginebayError] = {}
        self.changed = threading.Condition()

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None: ...

    def token(
        self, number: int, text: str, token_ids: Sequence[int], choice: int = 0, logprobs: Sequence[TokenLogprobs] = ()
    ) -> None:
        self.tokens[number, choice] += token_ids

    def finish(self, number: int, reason: FinishReason, choice: int = 0, stop_reason: str | int | None = None) -> None:
        self.ended[number, choice] = reason

    def error(self, number: int, error: EnginebayError) -> None:
        self.errors[number] = error

    def flush(self) -> None:
        with self.changed:
            self.changed.notify_all()


class CheckedEngine:
    """An engine and its sink."""

    def __init__(self, path: str, **settings: Any) -> None:
        defaults = {"threads": 1, "device": DEVICE, "dtype": "float32"}
        named = {name.replace("__", "."): value for name, value in {**defaults, **settings}.items()}
        self.engine = TransformersEngine(Load("transformers", "", "tiny", path, named))
        self.sink = RecordingSink()
        self.engine.start(self.sink)
        self._next = 0

    def run(self, requests: Sequence[GenerateRequest]) -> list[list[list[int]]]:
        """Submit all requests at once, and return the tokens of every choice."""
        numbers = self._submit(requests)
        choices = [(n, c) for n, request in zip(numbers, requests, strict=True) for c in range(request.sampling.n)]
        with self.sink.changed:
            done = self.sink.changed.wait_for(
                lambda: self.sink.errors or all(choice in self.sink.ended for choice in choices), WAIT_S
            )
        assert done and not self.sink.errors, self.sink.errors or "timed out"
        return [
            [self.sink.tokens[n, c] for c in range(request.sampling.n)]
            for n, request in zip(numbers, requests, strict=True)
        ]

    def run_failing(self, requests: Sequence[GenerateRequest]) -> list[EnginebayError]:
        """Wait until all requests have failed or ended, and return the errors."""
        numbers = self._submit(requests)
        with self.sink.changed:
            assert self.sink.changed.wait_for(
                lambda: all(n in self.sink.errors or (n, 0) in self.sink.ended for n in numbers), WAIT_S
            )
        errors, self.sink.errors = self.sink.errors, {}
        return list(errors.values())

    def _submit(self, requests: Sequence[GenerateRequest]) -> list[int]:
        numbers = list(range(self._next, self._next + len(requests)))
        self._next += len(requests)
        for number, request in zip(numbers, requests, strict=True):
            self.engine.submit(number, request)
        return numbers


def make_request(prompt: Sequence[int], **sampling: Any) -> GenerateRequest:
    return GenerateRequest(token_ids=tuple(prompt), sampling=Sampling(ignore_eos=True, **sampling))


def make_prompts(count: int) -> list[list[int]]:
    source = random.Random(4)
    return [[source.randrange(10, 40_000) for _ in range(source.choice([1, 7, 90, 250, 300]))] for _ in range(count)]


def load_plain_model(path: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(DEVICE)


def generate_greedy(path: str) -> list[list[int]]:
    """Return the output of the library's generate(), one prompt at a time."""
    model = load_plain_model(path)
    model.generation_config.eos_token_id = None
    outputs = []
    for prompt in make_prompts(12):
        ids = torch.tensor([prompt], device=DEVICE)
        generated = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
        outputs.append(generated[0, len(prompt) :].tolist())
    return outputs


def assert_same(path: str, actual: list[list[list[int]]], expected: list[list[list[int]]]) -> None:
    """Assert the same outputs for `make_mixed_requests`.

    On a GPU, rounding depends on the batch: outputs may diverge where two tokens are nearly tied.
    """
    if DEVICE == "cpu":
        assert actual == expected
        return
    model = load_plain_model(path)
    for request, actual_choices, expected_choices in zip(make_mixed_requests(), actual, expected, strict=True):
        for choice, (ours, theirs) in enumerate(zip(actual_choices, expected_choices, strict=True)):
            index = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            assert index is not None or ours == theirs, "an output ended early"
            if index is not None:
                lead = measure_lead(model, request, choice, ours[:index], ours[index], theirs[index])
                assert lead < _MAX_LEAD, f"token {index} of choice {choice} differs, and the best leads by {lead}"


def measure_lead(model: Any, request: GenerateRequest, choice: int, output: list[int], *tokens: int) -> float:
    """Return how far the worst of these tokens is behind the sampled one, in logits."""
    with torch.no_grad():
        logits = model(torch.tensor([[*(request.token_ids or ()), *output]], device=DEVICE)).logits[0, -1].double()
    if not request.sampling.greedy:  # the exponential race in log space; temperature is 1 here
        random_bits = torch.tensor(derive_random_bits(request.sampling.seed or 0, choice, len(output)), device=DEVICE)
        logits -= (-hash_to_uniform(torch.arange(logits.shape[-1], device=DEVICE), random_bits).log()).log()
    return float(logits.max() - logits[list(tokens)].min())


class FunctionRecorder:
    """Captures a step as the function that computes it: tests the bookkeeping of CUDA graphs on any device."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def warm_up(self, work: Callable[[], None]) -> None:
        work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay

    def reset(self) -> None: ...


def open_recording_engine(path: str, recorder: FunctionRecorder, **settings: Any) -> CheckedEngine:
    with mock.patch.object(engine_builder, "choose_recorder", lambda *_: (recorder, None)):
        bench = CheckedEngine(path, **settings)
    get_runner(bench).is_async = True
    return bench


def get_runner(bench: CheckedEngine) -> Any:
    return bench.engine._components.runner


def make_mixed_requests() -> list[GenerateRequest]:
    return [
        make_request(
            prompt,
            seed=i,
            temperature=float(i % 2),
            max_tokens=300 if i % 3 else 20,
            n=1 + (i % 4 == 0),
            stop=("zz",) * (i % 5 == 0),
        )
        for i, prompt in enumerate(make_prompts(16))
    ]
