"""A toy language model over letters, and a sampler that supports every sampling parameter, in plain Python.

The next letter's logits are a fixed hash of the last two letters: no weights, the same on every machine.
"""

from __future__ import annotations

import math
import random
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from enginebay.contract import Sampling, TokenLogprobs
from enginebay.engines.ngrams import find_ngram_completions

EOS = 256
LETTERS = (*b"abcdefghijklmnopqrstuvwxyz ", EOS)
_EOS_LOGIT = -2.0


@lru_cache(maxsize=100_000)
def compute_logits(context: tuple[int, ...], salt: str) -> tuple[float, ...]:
    """Return one logit for each of LETTERS after this context."""
    seed = zlib.crc32(repr((context[-2:], salt)).encode())
    source = random.Random(seed)
    return (*(source.uniform(-2.0, 3.0) for _ in LETTERS[:-1]), _EOS_LOGIT)


class ToySampler:
    """Samples the tokens of one sequence."""

    def __init__(self, prompt: Sequence[int], sampling: Sampling, choice: int, salt: str) -> None:
        self._prompt = tuple(prompt)
        self._sampling = sampling
        self._salt = salt
        seed = random.getrandbits(63) if sampling.seed is None else sampling.seed
        self._random = random.Random(seed + choice * 1_000_003)
        self._prompt_tokens = set(prompt)
        self.output: list[int] = []

    def sample_next(self) -> tuple[int, TokenLogprobs | None]:
        """Return the next token, and its logprobs if requested."""
        raw = dict(zip(LETTERS, compute_logits((*self._prompt[-2:], *self.output[-2:])[-2:], self._salt), strict=True))
        raw.update({token: -10.0 for token in self._sampling.logit_bias if token not in raw and token < EOS})
        token = self._sample_token(self._adjust_logits(dict(raw)))
        self.output.append(token)
        if self._sampling.logprobs is None:
            return token, None
        return token, _compute_logprobs(raw, token, self._sampling.logprobs)

    def replay(self, token: int) -> None:
        """Continue after a token that was sampled elsewhere, with the random numbers that follow."""
        self.output.append(token)
        if not self._sampling.greedy:
            self._random.random()

    def _adjust_logits(self, scores: dict[int, float]) -> dict[int, float]:
        """Apply logit bias, penalties and bans in place, and return the logits."""
        sampling, counts = self._sampling, Counter(self.output)
        for token in scores:
            penalty = sampling.value("repetition_penalty")
            if token in self._prompt_tokens or token in counts:
                scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
            scores[token] -= sampling.value("frequency_penalty") * counts[token]
            scores[token] -= sampling.value("presence_penalty") * (counts[token] > 0)
            scores[token] += sampling.logit_bias.get(token, 0.0)
        for token in self._find_banned_tokens(scores):
            scores[token] = -math.inf
        return scores

    def _find_banned_tokens(self, scores: dict[int, float]) -> set[int]:
        sampling = self._sampling
        banned: set[int] = set()
        if sampling.ignore_eos or len(self.output) < sampling.value("min_tokens"):
            banned.add(EOS)
        size = sampling.value("no_repeat_ngram_size")
        if size:
            banned |= find_ngram_completions(size, self.output)
        if sampling.guided is not None and sampling.guided.choice is not None:
            allowed = _find_allowed_tokens(sampling.guided.choice, self.output)
            scores.update({token: 0.0 for token in allowed if token not in scores})
            if allowed <= banned:  # the constraint overrides the bans
                banned = set()
            banned |= set(scores) - allowed
        return banned & set(scores)

    def _sample_token(self, scores: dict[int, float]) -> int:
        sampling = self._sampling
        ranked = sorted(scores, key=lambda token: (-scores[token], token))
        best = scores[ranked[0]]
        if sampling.greedy or best == -math.inf:  # with all tokens banned, any will do
            return ranked[0]
        temperature = sampling.value("temperature")
        weights = [math.exp((scores[token] - best) / temperature) for token in ranked]
        keep = sampling.value("top_k") if sampling.value("top_k") > 0 else len(ranked)
        total, cumulative = sum(weights), 0.0
        for rank, weight in enumerate(weights):
            if rank >= keep or (
                rank and (cumulative >= sampling.value("top_p") * total or weight < sampling.value("min_p"))
            ):
                weights[rank:] = [0.0] * (len(weights) - rank)
                break
            cumulative += weight
        return self._random.choices(ranked, weights)[0]


def _find_allowed_tokens(choices: Sequence[str], output: Sequence[int]) -> set[int]:
    prefix = bytes(output)
    texts = [choice.encode() for choice in choices]
    allowed = {text[len(prefix)] for text in texts if text.startswith(prefix) and len(text) > len(prefix)}
    return allowed | ({EOS} if prefix in texts else set())


def _compute_logprobs(raw: dict[int, float], token: int, top: int) -> TokenLogprobs:
    norm = math.log(sum(map(math.exp, raw.values())))
    ranked = sorted(raw, key=lambda candidate: (-raw[candidate], candidate))[:top]
    return TokenLogprobs(token, raw.get(token, -100.0) - norm, tuple((other, raw[other] - norm) for other in ranked))
