"""Penalties, biases, bans and constraints on the logits of single rows. Other rows cost nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from enginebay.engines.ngrams import find_ngram_completions
from enginebay.engines.transformers.decoding.sequence_state import SequenceState


def has_effect(row: SequenceState, output: Sequence[int]) -> bool:
    """Return whether `apply` would change this row."""
    return row.needs_logit_processing or len(output) < row.min_tokens


def apply(scores: Any, row: SequenceState, output: Sequence[int]) -> None:
    """Process one row's logits [vocabulary] in place, for the token after `output`."""
    sampling = row.sampling
    original = scores.clone() if row.constraint is not None else None
    if sampling.logit_bias:
        _add_to_scores(scores, sampling.logit_bias)
    if sampling.value("repetition_penalty") != 1.0:
        _penalise_repetition(scores, sampling.value("repetition_penalty"), row.prompt, output)
    presence, frequency = sampling.value("presence_penalty"), sampling.value("frequency_penalty")
    if (presence or frequency) and output:
        _add_to_scores(scores, {token: -(presence + frequency * count) for token, count in Counter(output).items()})
    if sampling.value("no_repeat_ngram_size"):
        _ban(scores, find_ngram_completions(sampling.value("no_repeat_ngram_size"), [*row.prompt, *output]))
    if len(output) < row.min_tokens:
        _ban(scores, row.end_token_ids)
    if row.constraint is not None:
        _constrain(scores, original, row.constraint.compute_bitmask(output))


def _to_token_indices(scores: Any, tokens: Sequence[int]) -> Any:
    return torch.tensor(
        [token for token in tokens if 0 <= token < scores.shape[0]], dtype=torch.long, device=scores.device
    )


def _add_to_scores(scores: Any, amounts: Mapping[int, float]) -> None:
    valid = {token: amount for token, amount in amounts.items() if 0 <= token < scores.shape[0]}
    indices = _to_token_indices(scores, list(valid))
    scores[indices] += torch.tensor(list(valid.values()), dtype=scores.dtype, device=scores.device)


def _ban(scores: Any, tokens: Sequence[int] | set[int] | frozenset[int]) -> None:
    if tokens:
        scores[_to_token_indices(scores, list(tokens))] = -torch.inf


def _penalise_repetition(scores: Any, penalty: float, prompt: Sequence[int], output: Sequence[int]) -> None:
    indices = _to_token_indices(scores, list({*prompt, *output}))
    repeated = scores[indices]
    scores[indices] = torch.where(repeated < 0, repeated * penalty, repeated / penalty)


def _constrain(scores: Any, original: Any, bitmask: Any) -> None:
    """Mask all tokens that the constraint forbids. If none is left, the constraint overrides the bans."""
    if bitmask is None:
        return
    bits = torch.arange(32, dtype=torch.int32)
    allowed = ((bitmask[0][:, None] >> bits) & 1).bool().flatten()[: scores.shape[0]].to(scores.device)
    scores.masked_fill_(~allowed, -torch.inf)
    if not torch.isfinite(scores).any():
        scores.copy_(original.masked_fill_(~allowed, -torch.inf))
