"""The echo engine: repeats the prompt; a higher temperature adds noise. Tokens are bytes."""

from codecs import getincrementaldecoder
from importlib.metadata import version
from itertools import cycle, islice
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
        installed = version("engine-echo")
        return Probe(installed, versions={"engine-echo": installed})

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return list(text.encode())

    def answer(self, request: GenerateRequest, choice: int) -> Tokens:
        prompt, sampling = request.token_ids or (), request.sampling
        noise = 0.0 if sampling.greedy else sampling.value("temperature") / 4
        random = Random(None if sampling.seed is None else f"{sampling.seed} {choice}")
        decode = getincrementaldecoder("utf-8")("replace").decode
        length = None if sampling.ignore_eos else max(len(prompt), sampling.value("min_tokens"))
        for prompt_token in islice(cycle(prompt), length):
            token = random.choice(prompt) if random.random() < noise else prompt_token
            yield token, decode(bytes((token,)))
