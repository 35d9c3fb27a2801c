"""The echo engine: gives the prompt's tokens back; the hotter, the less faithfully. Tokens are bytes."""

from codecs import getincrementaldecoder
from importlib.metadata import version
from itertools import cycle
from random import Random

from enginebay.contract import GenerateRequest, Load, Probe
from enginebay.engines.stepping import SteppingEngine, Tokens


class EchoEngine(SteppingEngine):
    kind = "echo"

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.step_s = float(load.settings.get("step_s") or 0)

    @classmethod
    def probe(cls) -> Probe:
        found = version("engine-echo")
        return Probe(found, versions={"engine-echo": found})

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return list(text.encode())

    def answer(self, request: GenerateRequest, choice: int) -> Tokens:
        prompt, sampling = request.token_ids or (), request.sampling
        heat = 0.0 if sampling.greedy else sampling.value("temperature") / 4
        random = Random(None if sampling.seed is None else f"{sampling.seed} {choice}")
        decode = getincrementaldecoder("utf-8")("replace").decode
        for heard in cycle(prompt) if sampling.ignore_eos else prompt:
            token = random.choice(prompt) if random.random() < heat else heard
            yield token, decode(bytes((token,)))
