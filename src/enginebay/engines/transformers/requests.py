"""What makes a request impossible for this model, before anything is computed. Pure."""

from __future__ import annotations

from collections.abc import Set

from enginebay.contract import GenerateRequest
from enginebay.errors import ContextOverflow, InvalidRequest


def check(request: GenerateRequest, context_length: int, adapters: Set[str]) -> None:
    """Raise for what cannot be served as asked; nothing is ever cut to fit."""
    prompt = len(request.token_ids or ())
    wanted = request.sampling.max_tokens
    if prompt + (wanted or 1) > context_length:
        asked = f"{prompt} prompt tokens" + (f" and {wanted} output tokens" if wanted else "")
        raise ContextOverflow(
            f"{asked} do not fit the context of {context_length} tokens",
            "shorten the prompt or lower max_tokens",
            param="prompt",
        )
    if request.lora is not None and request.lora not in adapters:
        raise InvalidRequest(
            f"no LoRA adapter named {request.lora}", f"loaded: {', '.join(sorted(adapters)) or 'none'}", param="lora"
        )
    beams = request.sampling.num_beams or 1
    if beams > 1 and request.sampling.n > beams:
        raise InvalidRequest(f"n is {request.sampling.n}, above num_beams = {beams}", "raise num_beams", param="n")
