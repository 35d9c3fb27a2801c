"""Small LoRA adapters and models for the suite, made by scripts that run in the Transformers environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

from enginebay.fleet import environments, models

HERE = Path(__file__).parent


def made_by(script: str, *arguments: object) -> None:
    """Run one of the make_*.py scripts beside this file."""
    python = environments.find("transformers").python
    done = subprocess.run(
        [str(python), str(HERE / script), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def dense_smollm2() -> Path:
    return models.dense_path(models.ensure("smollm2"), environments.find("transformers").python)


def adapter_for(kind: str, folder: Path) -> str:
    """An adapter in the format the engine reads. Engines without weights take any name."""
    if kind == "llamacpp":
        made_by("make_gguf_lora.py", folder / "tiny.gguf")
        return str(folder / "tiny.gguf")
    if kind in ("transformers", "vllm"):
        made_by("make_peft_lora.py", dense_smollm2(), folder / "tiny")
        return str(folder / "tiny")
    return str(folder)
