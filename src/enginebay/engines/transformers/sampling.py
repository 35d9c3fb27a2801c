"""Drawing the next token of every row at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from enginebay.contract import TokenLogprobs
from enginebay.engines.transformers import penalties
from enginebay.engines.transformers.drawn import Drawn
from enginebay.engines.transformers.row import Row

_CANDIDATES = 1024  # sorting a vocabulary costs more than the model's own step; nearly always the best thousand decide


def draw(logits: Any, rows: Sequence[Row], outputs: Sequence[Sequence[int]]) -> list[Drawn]:
    """One token for each row of `logits` [rows, vocabulary] (float32), to follow its output so far."""
    scores = shaped(logits, rows, outputs)
    tokens = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    greedy = [i for i, row in enumerate(rows) if row.sampling.greedy]
    plain = [i for i, row in enumerate(rows) if not row.sampling.greedy and not _filters(row)]
    filtered = [i for i, row in enumerate(rows) if not row.sampling.greedy and _filters(row)]
    if greedy:
        tokens[greedy] = _take(scores, greedy).argmax(dim=-1)
    if plain:
        chances = [rows[i].chance(len(outputs[i])) for i in plain]
        tokens[plain] = _pick(_heated(scores, rows, plain).softmax(dim=-1), chances)
    if filtered:
        chances = [rows[i].chance(len(outputs[i])) for i in filtered]
        tokens[filtered] = _pick_filtered(_heated(scores, rows, filtered), [rows[i] for i in filtered], chances)
    chosen: list[int] = tokens.tolist()
    logprobs = _logprobs(logits, rows, chosen)
    return [Drawn(token, logprobs.get(i, ())) for i, token in enumerate(chosen)]


def shaped(logits: Any, rows: Sequence[Row], outputs: Sequence[Sequence[int]]) -> Any:
    """Logits after biases, penalties and constraints; the original stays as it is."""
    asking = [i for i, row in enumerate(rows) if penalties.changes(row, outputs[i])]
    if not asking:
        return logits
    scores = logits.clone()
    for i in asking:
        penalties.apply(scores[i], rows[i], outputs[i])
    return scores


def _filters(row: Row) -> bool:
    sampling = row.sampling
    return bool(sampling.value("top_k") > 0 or sampling.value("top_p") < 1.0 or sampling.value("min_p") > 0.0)


def _take(scores: Any, indices: list[int]) -> Any:
    return scores if len(indices) == scores.shape[0] else scores[indices]


def _column(values: Sequence[float], like: Any) -> Any:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _heated(scores: Any, rows: Sequence[Row], indices: list[int]) -> Any:
    temperatures = [rows[i].sampling.value("temperature") for i in indices]
    taken = _take(scores, indices)
    return taken if all(t == 1.0 for t in temperatures) else taken / _column(temperatures, scores)


def _pick(weights: Any, chances: Sequence[float]) -> Any:
    """The token at which the running sum of weights passes chance × total: always one with a weight above zero."""
    sums = weights.cumsum(dim=-1)
    total = sums[:, -1:]
    target = torch.minimum(total * _column(chances, sums), torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, target, right=True)[:, 0]


def _pick_filtered(scores: Any, rows: Sequence[Row], chances: Sequence[float], candidates: int = _CANDIDATES) -> Any:
    """top_k, then top_p, then min_p, over the best candidates; over all where those cannot decide."""
    size = scores.shape[-1]
    top_k = [row.sampling.value("top_k") for row in rows]
    limits = [k if k > 0 else size for k in top_k]
    width = min(size, max(candidates, *(k for k in limits if k < size), 1))
    best, tokens = scores.topk(width, dim=-1)
    weights = (best - scores.logsumexp(dim=-1, keepdim=True)).exp()
    weights.masked_fill_(torch.arange(width, device=scores.device) >= _column(limits, weights), 0.0)
    limited = _column([float(k < size) for k in limits], weights) > 0
    totals = torch.where(limited, weights.sum(dim=-1, keepdim=True), torch.ones_like(weights[:, :1]))
    top_p = _column([row.sampling.value("top_p") for row in rows], weights) * totals
    min_p = _column([row.sampling.value("min_p") for row in rows], weights) * weights[:, :1]
    before = weights.cumsum(dim=-1) - weights
    keep = (before < top_p) & (weights >= min_p)
    keep[:, 0] = True
    picked = tokens.gather(-1, _pick(weights * keep, chances)[:, None])[:, 0]
    undecided = (keep[:, -1] & (weights[:, -1] > 0)) if width < size else torch.zeros_like(keep[:, -1])
    if bool(undecided.any()):
        again = undecided.nonzero()[:, 0].tolist()
        picked[again] = _pick_filtered(scores[again], [rows[i] for i in again], [chances[i] for i in again], size)
    return picked


def _logprobs(logits: Any, rows: Sequence[Row], tokens: Sequence[int]) -> dict[int, tuple[TokenLogprobs, ...]]:
    asking = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
    if not asking:
        return {}
    counts = [rows[i].sampling.logprobs or 0 for i in asking]
    known = logprobs_of(_take(logits, asking), [tokens[i] for i in asking], counts)
    return {i: (entry,) for i, entry in zip(asking, known, strict=True)}


def logprobs_of(logits: Any, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Of the model's own distribution, before temperature, penalties and constraints; the best `counts` beside each."""
    known = logits.log_softmax(dim=-1)
    chosen = known.gather(-1, torch.tensor(tokens, device=known.device)[:, None])[:, 0].tolist()
    values, ids = known.topk(max(counts), dim=-1)
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    tops = [tuple(zip(row_ids, row_values, strict=True)) for row_ids, row_values in pairs]
    return [TokenLogprobs(token, chosen[i], tops[i][: counts[i]]) for i, token in enumerate(tokens)]
