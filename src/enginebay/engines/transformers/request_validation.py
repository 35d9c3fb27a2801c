"""What makes a request impossible for this model, before anything is computed. Pure."""

from __future__ import annotations

from collections.abc import Set

from enginebay.contract import GenerateRequest
from enginebay.errors import ContextOverflow, InvalidRequest


def check_request(request: GenerateRequest, context_length: int, adapters: Set[str]) -> None:
    """Raise for what cannot be served; a prompt is never cut to fit, and an answer ends where the context does."""
    prompt = len(request.token_ids or ())
    if prompt >= context_length:
        raise ContextOverflow(
            f"the prompt has {prompt} tokens, the context holds {context_length}",
            "shorten the prompt, or load the model with a larger context_length",
            param="prompt",
        )
    if request.lora is not None and request.lora not in adapters:
        raise InvalidRequest(
            f"no LoRA adapter named {request.lora}", f"loaded: {', '.join(sorted(adapters)) or 'none'}", param="lora"
        )
    beams = request.sampling.num_beams or 1
    if beams > 1 and request.sampling.n > beams:
        raise InvalidRequest(f"n is {request.sampling.n}, above num_beams = {beams}", "raise num_beams", param="n")
