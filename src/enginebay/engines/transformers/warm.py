"""The modules that the library only imports when a model needs them."""

from __future__ import annotations

import contextlib
import importlib

_NEEDED = (
    "accelerate",
    "safetensors.torch",
    "transformers.core_model_loading",
    "transformers.generation",
    "transformers.integrations.peft",
    "transformers.integrations.sdpa_attention",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_tokenizers",
)  # not peft and xgrammar: two seconds, and few models have adapters, few requests constraints


def import_all() -> None:
    """What this environment does not have is left out: the load says what is missing, if it needs it."""
    for name in _NEEDED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
