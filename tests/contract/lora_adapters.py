"""Small LoRA adapters and models of the suite, made by scripts in the transformers environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

from enginebay import environments, models

HERE = Path(__file__).parent


def run_make_script(script: str, *arguments: object) -> None:
    """Run a make_*.py script of this folder."""
    python = environments.find_environment("transformers").python
    result = subprocess.run(
        [str(python), str(HERE / script), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def ensure_dense_smollm2() -> Path:
    return models.ensure_dense_weights(
        models.ensure_model("smollm2"), environments.find_environment("transformers").python
    )


def make_adapter(kind: str, folder: Path) -> str:
    """Make an adapter in the engine's format. Engines without weights accept any path."""
    if kind == "llamacpp":
        run_make_script("make_gguf_lora.py", folder / "tiny.gguf")
        return str(folder / "tiny.gguf")
    if kind in ("transformers", "vllm"):
        run_make_script("make_peft_lora.py", ensure_dense_smollm2(), folder / "tiny")
        return str(folder / "tiny")
    return str(folder)
