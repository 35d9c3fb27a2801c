"""Checks a request against an engine's capabilities before it is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from enginebay.contract.engine_messages import GenerateRequest
from enginebay.contract.engine_spec import Capability, Support
from enginebay.contract.sampling_parameters import collect_requested_parameters
from enginebay.errors import Unsupported


def negotiate(
    kind: str, capabilities: Mapping[str, Capability], request: GenerateRequest, refused: Mapping[str, str]
) -> dict[str, str]:
    """Return the translated parameters and their translations. Raises `Unsupported` for a refused one.

    `refused`: parameters that this version or model cannot do although the engine in general can.
    """
    translated: dict[str, str] = {}
    for name in collect_requested_parameters(request.sampling, request.lora):
        capability = capabilities.get(name)
        if name in refused:
            raise Unsupported(f"{kind} does not support {name} here: {refused[name]}", param=name)
        if capability is None or capability.support is Support.REFUSES:
            instead = f"use instead: {capability.detail}" if capability and capability.detail else ""
            raise Unsupported(f"{kind} does not support {name}", instead, param=name)
        if capability.support is Support.TRANSLATES:
            translated[name] = capability.detail
    return translated
