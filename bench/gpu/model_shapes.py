"""Create models with a shape but no weights, for engines that load random ones: they measure speed, not quality.

    python -m bench.gpu.model_shapes FOLDER TOKENIZER_FOLDER

The tokenizer is a real one, padded to the vocabulary of the shape, so that every token has a text.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    },
    "llama-70b": {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    },
    "llama-tiny": {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 50000,
    },
}  # fmt: skip


def build_shape_config(name: str) -> dict[str, Any]:
    return {**_LLAMA, **SHAPES[name]}


def make_shape(name: str, folder: Path, tokenizer: Path) -> Path:
    """Create the folder of one shape: a config, a tokenizer, and a weights file without weights."""
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    config = build_shape_config(name)
    (target / "config.json").write_text(json.dumps(config, indent=1))
    (target / "tokenizer.json").write_text(
        json.dumps(_fill_vocabulary(tokenizer / "tokenizer.json", config["vocab_size"]))
    )
    (target / "tokenizer_config.json").write_text((tokenizer / "tokenizer_config.json").read_text())
    head = json.dumps({"none": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (target / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    return target


def make_tokenizer(folder: Path) -> Path:
    """Make a tokenizer with one letter per byte; `make_shape` extends it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(letters[:3])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}))
    return folder


def _fill_vocabulary(tokenizer: Path, size: int) -> Any:
    data = json.loads(tokenizer.read_text())
    for token in data["added_tokens"]:
        token["special"] = False  # special tokens have no text, and random weights sample them too
    vocabulary = data["model"]["vocab"]
    for number in range(len(vocabulary), size):
        vocabulary[f"Ġtoken{number}"] = number
    return data


if __name__ == "__main__":
    for shape in SHAPES:
        print(make_shape(shape, Path(sys.argv[1]), Path(sys.argv[2])))
