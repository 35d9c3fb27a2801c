"""Samples the next token of every row of a batch.

Sampling is an exponential race: each candidate gets an exponential time with its probability as the rate, and the
shortest time wins. The times are hashed from the row's random bits and the token id, so rounding changes the winner only
if two times are nearly equal. Inverting the cumulative distribution would need one random number instead of many, but
rounding shifts the sum at every later token, and a seed would give different outputs in different batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from enginebay.contract import TokenLogprobs
from enginebay.engines.transformers.decoding import penalties
from enginebay.engines.transformers.decoding.sequence_state import SampledToken, SequenceState

# Sorting the whole vocabulary costs as much as a forward pass, and the top thousand nearly always suffice.
_MAX_CANDIDATES = 1024
_RANDOM_BITS_RANGE = float(1 << 62)
# Divides float32 logits without overflow, and is as good as greedy.
MIN_TEMPERATURE = 1e-6


def sample_tokens(logits: Any, rows: Sequence[SequenceState], outputs: Sequence[Sequence[int]]) -> list[SampledToken]:
    """Sample one token for each row of `logits` [rows, vocabulary] (float32), given its output so far."""
    return read_sampled(sample_on_device(logits, rows, outputs), logits, rows)


def sample_on_device(logits: Any, rows: Sequence[SequenceState], outputs: Sequence[Sequence[int]]) -> Any:
    """Like `sample_tokens`, but return a tensor without waiting for the device."""
    scores = process_logits(logits, rows, outputs)
    greedy = [i for i, row in enumerate(rows) if row.greedy]
    if len(greedy) == len(rows):
        return scores.argmax(dim=-1)
    random = [i for i, row in enumerate(rows) if not row.greedy]
    random_bits = [rows[i].derive_random_bits(len(outputs[i])) for i in random]
    sampled = _sample_scores(_apply_temperature(scores, rows, random), [rows[i] for i in random], random_bits)
    if not greedy:
        return sampled
    tokens = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    tokens[greedy] = _select_rows(scores, greedy).argmax(dim=-1)
    tokens[random] = sampled
    return tokens


def read_sampled(tokens: Any, logits: Any, rows: Sequence[SequenceState]) -> list[SampledToken]:
    """Wait for the device, and return the sampled tokens with the requested log probabilities."""
    sampled: list[int] = tokens.tolist()
    logprobs = _collect_logprobs(logits, rows, sampled)
    return [SampledToken(token, logprobs.get(i, ())) for i, token in enumerate(sampled)]


def process_logits(logits: Any, rows: Sequence[SequenceState], outputs: Sequence[Sequence[int]]) -> Any:
    """Return the logits after biases, penalties and constraints; the input is unchanged."""
    affected = [i for i, row in enumerate(rows) if penalties.has_effect(row, outputs[i])]
    if not affected:
        return logits
    scores = logits.clone()
    for i in affected:
        penalties.apply(scores[i], rows[i], outputs[i])
    return scores


def _select_rows(scores: Any, indices: list[int]) -> Any:
    return scores if len(indices) == scores.shape[0] else scores[indices]


def _to_column(values: Sequence[float], like: Any) -> Any:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _apply_temperature(scores: Any, rows: Sequence[SequenceState], indices: list[int]) -> Any:
    temperatures = [max(rows[i].sampling.value("temperature"), MIN_TEMPERATURE) for i in indices]
    selected = _select_rows(scores, indices)
    return selected if all(t == 1.0 for t in temperatures) else selected / _to_column(temperatures, scores)


def _sample_scores(
    scores: Any, rows: Sequence[SequenceState], random_bits: Sequence[int], candidates: int = _MAX_CANDIDATES
) -> Any:
    """Sample a token for each row. The method depends on the row alone: a seed must not depend on the batch."""
    unfiltered = (
        [i for i, row in enumerate(rows) if not has_filters(row)] if _should_race_full_vocabulary(scores.device) else []
    )
    if not unfiltered:
        return _sample_candidates(scores, rows, random_bits, candidates)
    winners = _race_full_vocabulary(
        _select_rows(scores, unfiltered).softmax(dim=-1), [random_bits[i] for i in unfiltered]
    )
    if len(unfiltered) == len(rows):
        return winners
    filtered = [i for i, row in enumerate(rows) if has_filters(row)]
    sampled = torch.empty(len(rows), dtype=torch.long, device=scores.device)
    sampled[unfiltered] = winners
    sampled[filtered] = _sample_candidates(
        scores[filtered], [rows[i] for i in filtered], [random_bits[i] for i in filtered], candidates
    )
    return sampled


def _should_race_full_vocabulary(device: Any) -> bool:
    """Return whether a race over the whole vocabulary is cheaper than top-k."""
    return bool(device.type == "cuda")


def _sample_candidates(scores: Any, rows: Sequence[SequenceState], random_bits: Sequence[int], candidates: int) -> Any:
    """Sample among each row's top candidates; among the whole vocabulary if those do not suffice."""
    width = min(scores.shape[-1], max(candidates, *(row.sampling.value("top_k") for row in rows)))
    best, tokens = scores.topk(width, dim=-1)
    weights = (best - scores.logsumexp(dim=-1, keepdim=True)).exp()  # probabilities over the whole vocabulary
    passing = filter_candidates(weights, rows)
    sampled = tokens.gather(-1, _run_exponential_race(weights * passing, tokens, random_bits)[:, None])[:, 0]
    if width == scores.shape[-1]:
        return sampled
    beyond = (passing[:, -1] & (weights[:, -1] > 0)).tolist()  # rows whose filters pass tokens beyond the candidates
    filtered = [i for i, row in enumerate(rows) if beyond[i] and has_filters(row)]
    if filtered:
        subset = [rows[i] for i in filtered], [random_bits[i] for i in filtered]
        sampled[filtered] = _sample_candidates(scores[filtered], *subset, candidates=scores.shape[-1])
    head_mass = weights.sum(dim=-1).tolist()
    tails = [
        i
        for i, row in enumerate(rows)
        if beyond[i] and not has_filters(row) and random_bits[i] / _RANDOM_BITS_RANGE >= head_mass[i]
    ]
    if tails:
        sampled[tails] = _sample_tail(scores[tails], tokens[tails], [random_bits[i] for i in tails])
    return sampled


def has_filters(row: SequenceState) -> bool:
    """Return whether the row uses top_k, top_p or min_p."""
    sampling = row.sampling
    return bool(sampling.value("top_k") > 0 or sampling.value("top_p") < 1.0 or sampling.value("min_p") > 0.0)


def filter_candidates(weights: Any, rows: Sequence[SequenceState]) -> Any:
    """Return which candidates (best first) pass top_k, then top_p of the rest, then min_p. The best always passes."""
    top_k = [row.sampling.value("top_k") for row in rows]
    ranks = torch.arange(weights.shape[-1], device=weights.device)
    passing = ranks < _to_column([k if k > 0 else weights.shape[-1] for k in top_k], weights)
    remaining = weights * passing
    limited = torch.tensor([k > 0 for k in top_k], device=weights.device)[:, None]
    total = torch.where(limited, remaining.sum(dim=-1, keepdim=True), 1.0)
    # top_p 1 passes all, even if rounding makes the sum reach 1 early.
    top_p = [p if (p := row.sampling.value("top_p")) < 1.0 else 2.0 for row in rows]
    passing &= remaining.cumsum(dim=-1) - remaining < _to_column(top_p, weights) * total
    passing &= weights >= _to_column([row.sampling.value("min_p") for row in rows], weights) * weights[:, :1]
    passing[:, 0] = True
    return passing


def _sample_tail(scores: Any, candidates: Any, random_bits: Sequence[int]) -> Any:
    """Sample outside the top candidates. This is rare, so a race over the whole vocabulary is affordable."""
    weights = scores.softmax(dim=-1).scatter_(-1, candidates, 0.0)
    return _race_full_vocabulary(weights, random_bits)


def _race_full_vocabulary(weights: Any, random_bits: Sequence[int]) -> Any:
    """Race the whole vocabulary; the index of the winner is its token id."""
    return _run_exponential_race(weights, torch.arange(weights.shape[-1], device=weights.device)[None], random_bits)


def _run_exponential_race(weights: Any, tokens: Any, random_bits: Sequence[int]) -> Any:
    """Return the index of each row's winner. A weight of zero never wins."""
    uniform = hash_to_uniform(tokens, torch.tensor(random_bits, device=tokens.device)[:, None])
    return (weights.double() / -uniform.log()).argmax(dim=-1)


def hash_to_uniform(tokens: Any, random_bits: Any) -> Any:
    """Return a uniform number in (0, 1) for each token and its row's random bits, by the finalizer of splitmix64."""
    x = tokens * -7046029254386353131 + random_bits
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * -7723592293110705685
    x = x ^ (x >> 31 & 0x1FFFFFFFF)
    return ((x >> 11 & 0x1FFFFFFFFFFFFF).double() + 0.5) / float(1 << 53)


def _collect_logprobs(
    logits: Any, rows: Sequence[SequenceState], tokens: Sequence[int]
) -> dict[int, tuple[TokenLogprobs, ...]]:
    requested = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
    if not requested:
        return {}
    counts = [rows[i].sampling.logprobs or 0 for i in requested]
    logprobs = compute_logprobs(_select_rows(logits, requested), [tokens[i] for i in requested], counts)
    return {i: (entry,) for i, entry in zip(requested, logprobs, strict=True)}


def compute_logprobs(logits: Any, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return log probabilities before temperature, penalties and constraints, with the top `counts` of each row."""
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(-1, torch.tensor(tokens, device=logprobs.device)[:, None])[:, 0].tolist()
    values, ids = logprobs.topk(max(counts), dim=-1)
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    tops = [tuple(zip(row_ids, row_values, strict=True)) for row_ids, row_values in pairs]
    return [TokenLogprobs(token, chosen[i], tops[i][: counts[i]]) for i, token in enumerate(tokens)]
