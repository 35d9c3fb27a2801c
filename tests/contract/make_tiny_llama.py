"""Writes a small random Llama with an even number of heads, for tensor parallel 2.

    python make_tiny_llama.py TOKENIZER_DIR OUT_DIR

Runs in an environment with torch and transformers. The same seed gives the same weights.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def make(tokenizer_dir: Path, out: Path, seed: int = 7) -> None:
    """4 heads, 2 KV heads, 2 layers, the vocabulary of the tokenizer; float32 safetensors."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=256,  # heads of 64: vLLM has no CPU kernel for smaller ones
        head_dim=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,  # wide enough that the best token is far ahead of the second
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(out)
    for name in _TOKENIZER_FILES:
        if (tokenizer_dir / name).is_file():
            shutil.copy(tokenizer_dir / name, out / name)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
