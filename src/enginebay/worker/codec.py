"""Encodes the contract's data as wire messages and back. The only module that knows both."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from enginebay.contract import Facts, FinishReason, GenerateRequest, Guided, Load, Sampling, TokenLogprobs
from enginebay.contract.engine_messages import Done, Energy, Timing, Usage
from enginebay.errors import EnginebayError, Overloaded, from_kind
from enginebay.worker.proto import worker_pb2 as pb

_REPEATED_FIELDS = ("stop", "stop_token_ids")
_SCALAR_FIELDS = tuple(
    field.name for field in fields(Sampling) if field.name not in (*_REPEATED_FIELDS, "logit_bias", "guided")
)
_get_scalars = attrgetter(*_SCALAR_FIELDS)


def encode_submit(number: int, request: GenerateRequest) -> pb.Submit:
    message = pb.Submit(
        number=number,
        token_ids=request.token_ids or (),
        sampling=_encode_sampling(request.sampling),
        lora=request.lora or "",
        energy=request.energy,
        generated=request.generated,
    )
    if request.token_ids is None:
        message.text = request.text or ""
        message.messages = json.dumps(request.messages) if request.messages is not None else ""
        message.extras = json.dumps(request.extras) if request.extras else ""
    return message


def decode_submit(message: pb.Submit) -> GenerateRequest:
    return GenerateRequest(
        token_ids=tuple(message.token_ids) or None,
        text=message.text or None,
        messages=tuple(json.loads(message.messages)) if message.messages else None,
        sampling=_decode_sampling(message.sampling),
        lora=message.lora or None,
        extras=json.loads(message.extras) if message.extras else {},
        energy=message.energy,
        generated=tuple(message.generated),
    )


def _encode_sampling(sampling: Sampling) -> pb.Sampling:
    scalars = zip(_SCALAR_FIELDS, _get_scalars(sampling), strict=True)
    message = pb.Sampling(**{name: value for name, value in scalars if value is not None})
    if sampling.stop:
        message.stop.extend(sampling.stop)
    if sampling.stop_token_ids:
        message.stop_token_ids.extend(sampling.stop_token_ids)
    if sampling.logit_bias:
        message.logit_bias.update(sampling.logit_bias)
    if sampling.guided is not None:
        for name in ("json", "regex", "grammar"):
            if getattr(sampling.guided, name) is not None:
                setattr(message.guided, name, getattr(sampling.guided, name))
        if sampling.guided.choice is not None:
            message.guided.choice.extend(sampling.guided.choice)
    return message


def _decode_sampling(message: Any) -> Sampling:
    values: dict[str, Any] = {"n": message.n, "ignore_eos": message.ignore_eos}
    for field in fields(Sampling):
        if field.name in _REPEATED_FIELDS:
            values[field.name] = tuple(getattr(message, field.name))
        elif field.name == "logit_bias":
            values[field.name] = dict(message.logit_bias)
        elif field.name == "guided":
            values[field.name] = _decode_guided(message.guided) if message.HasField("guided") else None
        elif field.name not in values and message.HasField(field.name):
            values[field.name] = getattr(message, field.name)
    return Sampling(**values)


def _decode_guided(message: pb.Guided) -> Guided:
    return Guided(
        json=message.json if message.HasField("json") else None,
        regex=message.regex if message.HasField("regex") else None,
        grammar=message.grammar if message.HasField("grammar") else None,
        choice=tuple(message.choice) or None,
    )


def encode_logprobs(row: int, logprobs: Iterable[TokenLogprobs]) -> pb.Logprobs:
    return pb.Logprobs(
        row=row,
        tokens=[
            pb.TokenLogprobs(
                token_id=entry.token_id,
                logprob=entry.logprob,
                top_ids=[token for token, _ in entry.top],
                top_logprobs=[value for _, value in entry.top],
            )
            for entry in logprobs
        ],
    )


def decode_logprobs(message: pb.Logprobs) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(token.token_id, token.logprob, tuple(zip(token.top_ids, token.top_logprobs, strict=True)))
        for token in message.tokens
    )


def encode_finish(request: int, choice: int, reason: FinishReason, stop_reason: str | int | None) -> pb.Finish:
    message = pb.Finish(request=request, choice=choice, reason=reason.value)
    if isinstance(stop_reason, str):
        message.stop_text = stop_reason
    elif stop_reason is not None:
        message.stop_token_id = stop_reason
    return message


def decode_stop_reason(message: pb.Finish) -> str | int | None:
    if message.HasField("stop_text"):
        return message.stop_text
    return message.stop_token_id if message.HasField("stop_token_id") else None


def encode_done(request: int, done: Done) -> pb.Done:
    usage, timing, energy = done.usage, done.timing, done.energy
    message = pb.Done(
        request=request,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        ttft_s=timing.ttft_s,
        total_s=timing.total_s,
    )
    if energy is not None:
        if energy.joules is not None:
            message.energy_j = energy.joules
        else:
            message.energy_absent = energy.absent
        if energy.idle_w is not None:
            message.idle_w = energy.idle_w
    return message


def decode_done(message: pb.Done) -> Done:
    return Done(
        Usage(message.prompt_tokens, message.completion_tokens, message.cached_tokens),
        Timing(message.ttft_s, message.total_s),
        _decode_energy(message),
    )


def _decode_energy(message: pb.Done) -> Energy | None:
    idle_w = message.idle_w if message.HasField("idle_w") else None
    if message.HasField("energy_j"):
        return Energy(message.energy_j, idle_w)
    return Energy(None, idle_w, message.energy_absent) if message.HasField("energy_absent") else None


def encode_failure(request: int, error: EnginebayError) -> pb.Failure:
    retry_after_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
    return pb.Failure(
        request=request, kind=error.kind, message=error.message, hint=error.hint, param=error.param or "",
        retry_after_s=retry_after_s,
    )  # fmt: skip


def decode_failure(message: pb.Failure) -> EnginebayError:
    error = from_kind(message.kind, message.message, message.hint, message.param or None)
    if isinstance(error, Overloaded) and message.retry_after_s:
        error.retry_after_s = message.retry_after_s
    return error


def encode_facts(facts: Facts) -> str:
    return json.dumps(asdict(facts), default=str)


def decode_facts(text: str) -> Facts:
    data = json.loads(text)
    return Facts(**{**data, "sleep_levels": tuple(data.get("sleep_levels", ()))})


def encode_load(load: Load) -> str:
    return json.dumps(asdict(load))


def decode_load(text: str) -> Load:
    return Load(**json.loads(text))
