"""Drawing the next token of every row at once.

A token is drawn by a race: each candidate runs for an exponential time at the rate of its probability, and the first
one in wins. The times are hashed from the row's luck and the token's number, so the winner changes only if two finish
within a rounding error. Walking along the sum of all probabilities would need one random number instead of many, but
rounding shifts every later token, and a seed would not survive a change of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from enginebay.contract import TokenLogprobs
from enginebay.engines.transformers.decoding import penalties
from enginebay.engines.transformers.decoding.sampled_token import SampledToken
from enginebay.engines.transformers.decoding.sequence_state import SequenceState

# Sorting a whole vocabulary costs as much as the model's own step, and nearly always the best thousand decide.
_MAX_CANDIDATES = 1024
_RANDOM_BITS_RANGE = float(1 << 62)


def sample_tokens(logits: Any, rows: Sequence[SequenceState], outputs: Sequence[Sequence[int]]) -> list[SampledToken]:
    """One token for each row of `logits` [rows, vocabulary] (float32), to follow its output so far."""
    return read_sampled(sample_on_device(logits, rows, outputs), logits, rows)


def sample_on_device(logits: Any, rows: Sequence[SequenceState], outputs: Sequence[Sequence[int]]) -> Any:
    """The same, still on the device, which may not have come to it yet."""
    scores = process_logits(logits, rows, outputs)
    greedy = [i for i, row in enumerate(rows) if row.greedy]
    if len(greedy) == len(rows):
        return scores.argmax(dim=-1)
    chancy = [i for i, row in enumerate(rows) if not row.greedy]
    lucks = [rows[i].derive_random_bits(len(outputs[i])) for i in chancy]
    drawn = _sample_scores(_apply_temperature(scores, rows, chancy), [rows[i] for i in chancy], lucks)
    if not greedy:
        return drawn
    tokens = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    tokens[greedy] = _select_rows(scores, greedy).argmax(dim=-1)
    tokens[chancy] = drawn
    return tokens


def read_sampled(tokens: Any, logits: Any, rows: Sequence[SequenceState]) -> list[SampledToken]:
    """What was chosen, with the log probabilities that rows ask for; waits for the device."""
    chosen: list[int] = tokens.tolist()
    logprobs = _collect_logprobs(logits, rows, chosen)
    return [SampledToken(token, logprobs.get(i, ())) for i, token in enumerate(chosen)]


def process_logits(logits: Any, rows: Sequence[SequenceState], outputs: Sequence[Sequence[int]]) -> Any:
    """Logits after biases, penalties and constraints; the original stays as it is."""
    asking = [i for i, row in enumerate(rows) if penalties.has_effect(row, outputs[i])]
    if not asking:
        return logits
    scores = logits.clone()
    for i in asking:
        penalties.apply(scores[i], rows[i], outputs[i])
    return scores


def _select_rows(scores: Any, indices: list[int]) -> Any:
    return scores if len(indices) == scores.shape[0] else scores[indices]


def _to_column(values: Sequence[float], like: Any) -> Any:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _apply_temperature(scores: Any, rows: Sequence[SequenceState], indices: list[int]) -> Any:
    temperatures = [rows[i].sampling.value("temperature") for i in indices]
    taken = _select_rows(scores, indices)
    return taken if all(t == 1.0 for t in temperatures) else taken / _to_column(temperatures, scores)


def _sample_scores(
    scores: Any, rows: Sequence[SequenceState], random_bits: Sequence[int], candidates: int = _MAX_CANDIDATES
) -> Any:
    """A token for each row of scores. Who races whole is decided row by row: a seed must not depend on neighbours."""
    whole = (
        [i for i, row in enumerate(rows) if not has_filters(row)] if _should_race_full_vocabulary(scores.device) else []
    )
    if not whole:
        return _sample_candidates(scores, rows, random_bits, candidates)
    raced = _race_full_vocabulary(_select_rows(scores, whole).softmax(dim=-1), [random_bits[i] for i in whole])
    if len(whole) == len(rows):
        return raced
    rest = [i for i, row in enumerate(rows) if has_filters(row)]
    picked = torch.empty(len(rows), dtype=torch.long, device=scores.device)
    picked[whole] = raced
    picked[rest] = _sample_candidates(scores[rest], [rows[i] for i in rest], [random_bits[i] for i in rest], candidates)
    return picked


def _should_race_full_vocabulary(device: Any) -> bool:
    """Whether a race of the whole vocabulary costs less than to find its best candidates."""
    return bool(device.type == "cuda")


def _sample_candidates(scores: Any, rows: Sequence[SequenceState], random_bits: Sequence[int], candidates: int) -> Any:
    """A token among each row's best candidates; among all where those cannot decide."""
    width = min(scores.shape[-1], max(candidates, *(row.sampling.value("top_k") for row in rows)))
    best, tokens = scores.topk(width, dim=-1)
    weights = (best - scores.logsumexp(dim=-1, keepdim=True)).exp()  # probabilities, of the whole vocabulary
    kept = filter_candidates(weights, rows)
    picked = tokens.gather(-1, _run_exponential_race(weights * kept, tokens, random_bits)[:, None])[:, 0]
    if width == scores.shape[-1]:
        return picked
    beyond = (kept[:, -1] & (weights[:, -1] > 0)).tolist()  # rows whose choice does not end with the candidates
    filtered = [i for i, row in enumerate(rows) if beyond[i] and has_filters(row)]
    if filtered:
        again = [rows[i] for i in filtered], [random_bits[i] for i in filtered]
        picked[filtered] = _sample_candidates(scores[filtered], *again, candidates=scores.shape[-1])
    heads = weights.sum(dim=-1).tolist()
    tails = [
        i
        for i, row in enumerate(rows)
        if beyond[i] and not has_filters(row) and random_bits[i] / _RANDOM_BITS_RANGE >= heads[i]
    ]
    if tails:
        picked[tails] = _sample_tail(scores[tails], tokens[tails], [random_bits[i] for i in tails])
    return picked


def has_filters(row: SequenceState) -> bool:
    """Whether the row wants less than the whole vocabulary."""
    sampling = row.sampling
    return bool(sampling.value("top_k") > 0 or sampling.value("top_p") < 1.0 or sampling.value("min_p") > 0.0)


def filter_candidates(weights: Any, rows: Sequence[SequenceState]) -> Any:
    """Which candidates (best first) pass top_k, then top_p of what is left, then min_p. The best always does."""
    top_k = [row.sampling.value("top_k") for row in rows]
    places = torch.arange(weights.shape[-1], device=weights.device)
    kept = places < _to_column([k if k > 0 else weights.shape[-1] for k in top_k], weights)
    left = weights * kept
    limited = torch.tensor([k > 0 for k in top_k], device=weights.device)[:, None]
    total = torch.where(limited, left.sum(dim=-1, keepdim=True), 1.0)
    # top_p 1 keeps all, also where rounding makes the sum reach it early.
    top_p = [p if (p := row.sampling.value("top_p")) < 1.0 else 2.0 for row in rows]
    kept &= left.cumsum(dim=-1) - left < _to_column(top_p, weights) * total
    kept &= weights >= _to_column([row.sampling.value("min_p") for row in rows], weights) * weights[:, :1]
    kept[:, 0] = True
    return kept


def _sample_tail(scores: Any, candidates: Any, random_bits: Sequence[int]) -> Any:
    """Tokens that are not among the heads: rare, so that the whole vocabulary may race."""
    weights = scores.softmax(dim=-1).scatter_(-1, candidates, 0.0)
    return _race_full_vocabulary(weights, random_bits)


def _race_full_vocabulary(weights: Any, random_bits: Sequence[int]) -> Any:
    """A race of the whole vocabulary: the winner's place is its number."""
    return _run_exponential_race(weights, torch.arange(weights.shape[-1], device=weights.device)[None], random_bits)


def _run_exponential_race(weights: Any, tokens: Any, random_bits: Sequence[int]) -> Any:
    """The place of each row's winner; a weight of zero never wins."""
    uniform = hash_to_uniform(tokens, torch.tensor(random_bits, device=tokens.device)[:, None])
    return (weights.double() / -uniform.log()).argmax(dim=-1)


def hash_to_uniform(tokens: Any, random_bits: Any) -> Any:
    """A uniform number in (0, 1) for each token under its row's luck: the finisher of splitmix64."""
    x = tokens * -7046029254386353131 + random_bits
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * -7723592293110705685
    x = x ^ (x >> 31 & 0x1FFFFFFFF)
    return ((x >> 11 & 0x1FFFFFFFFFFFFF).double() + 0.5) / float(1 << 53)


def _collect_logprobs(
    logits: Any, rows: Sequence[SequenceState], tokens: Sequence[int]
) -> dict[int, tuple[TokenLogprobs, ...]]:
    asking = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
    if not asking:
        return {}
    counts = [rows[i].sampling.logprobs or 0 for i in asking]
    known = compute_logprobs(_select_rows(logits, asking), [tokens[i] for i in asking], counts)
    return {i: (entry,) for i, entry in zip(asking, known, strict=True)}


def compute_logprobs(logits: Any, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Of the model's own distribution, before temperature, penalties and constraints; the best `counts` beside each."""
    known = logits.log_softmax(dim=-1)
    chosen = known.gather(-1, torch.tensor(tokens, device=known.device)[:, None])[:, 0].tolist()
    values, ids = known.topk(max(counts), dim=-1)
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    tops = [tuple(zip(row_ids, row_values, strict=True)) for row_ids, row_values in pairs]
    return [TokenLogprobs(token, chosen[i], tops[i][: counts[i]]) for i, token in enumerate(tokens)]
