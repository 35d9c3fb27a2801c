"""Request validation against the loaded model. Pure."""

from __future__ import annotations

from collections.abc import Set

from enginebay.contract import GenerateRequest
from enginebay.errors import ContextOverflow, InvalidRequest


def check_request(request: GenerateRequest, context_length: int, adapters: Set[str]) -> None:
    """Raise if the model cannot serve the request. Prompts are never truncated; outputs end with the context."""
    prompt = len(request.token_ids or ())
    if prompt >= context_length:
        raise ContextOverflow(
            f"the prompt ({prompt} tokens) plus output exceeds the model's context length of {context_length} tokens",
            "shorten the prompt, or load the model with a larger context_length",
            param="prompt",
        )
    if request.lora is not None and request.lora not in adapters:
        raise InvalidRequest(
            f"unknown LoRA adapter {request.lora!r}",
            f"available: {', '.join(sorted(adapters)) or 'none'}",
            param="lora",
        )
    beams = request.sampling.num_beams or 1
    if beams > 1 and request.sampling.n > beams:
        raise InvalidRequest(f"n = {request.sampling.n} exceeds num_beams = {beams}", "increase num_beams", param="n")
