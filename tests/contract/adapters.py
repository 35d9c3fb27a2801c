"""A small LoRA adapter for each engine, in the format it reads."""

from __future__ import annotations

from pathlib import Path


def adapter_for(kind: str, folder: Path) -> str:
    """Make the adapter and give back its path. Engines without weights take any name."""
    if kind == "llamacpp":
        from tests.contract.make_gguf_lora import make

        return str(make(folder / "tiny.gguf"))
    if kind in ("transformers", "vllm"):
        from tests.contract.make_peft_lora import make as make_peft

        return str(make_peft(folder / "tiny"))
    return str(folder)
