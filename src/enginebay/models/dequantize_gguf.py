"""Converts a GGUF file to dense float32 safetensors. A script for an engine environment; imports no Enginebay code.

    python dequantize_gguf.py MODEL.gguf FOLDER [--tokenizer]

`--tokenizer` also writes the tokenizer as Transformers converts it.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts a script's folder first on sys.path, where sibling modules could shadow other packages.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]


def main(gguf: Path, folder: Path, with_tokenizer: bool) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Blocks of 4-bit weights have float16 scales: the products fit neither float16 nor bfloat16.
    options = {"gguf_file": gguf.name, "dtype": torch.float32, "local_files_only": True}
    try:
        from transformers import GgufConfig
    except ImportError:  # before version 5 a GGUF file was always dequantized
        pass
    else:
        options["quantization_config"] = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), **options)
    # Enginebay writes generation_config.json from the GGUF file itself.
    for name in ("temperature", "top_p", "top_k", "do_sample"):
        setattr(model.generation_config, name, None)
    model.save_pretrained(str(folder), safe_serialization=True)
    if with_tokenizer:
        AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(str(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute(), "--tokenizer" in sys.argv[3:])
