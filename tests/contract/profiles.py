"""How each engine is set up for the contract suite, and prompts that make its model do what a check needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Profile:
    name: str
    kind: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    long: str = "Once upon a time, in a small village by the sea, there lived"  # goes on for at least 64 tokens
    # What follows is beyond doubt: engines whose arithmetic depends on the batch still agree on it.
    certain: str = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,"
    also_certain: str = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday,"
    short: str = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n"  # ends within 30 tokens
    short_sampling: Mapping[str, Any] = field(default_factory=dict)
    repeats: str = "la la la la la la la la la la la la la la la la la la la la"  # goes on repeating itself
    more: tuple[str, ...] = (
        "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    )
    unicode: str = (
        "🌍🎉 日本語 ü 🌍🎉 日本語 ü 🌍🎉 日本語 ü 🌍🎉"  # makes the model answer in characters of several tokens
    )
    lora: str = "tiny"


_BABBLE = {
    "long": "hello",
    "certain": "hello",
    "also_certain": "other",
    "short": "hello",
    "short_sampling": {"logit_bias": {256: 6.0}},
    "repeats": "bg",
    "more": ("some", "other", "words"),
}

PROFILES: dict[str, Profile] = {
    one.name: one
    for one in (
        Profile("fake", "fake", "toy", {"step_s": 0.002}, **_BABBLE),
        Profile("echo", "echo", "toy", {"step_s": 0.002}, short="Say yes.", repeats="abababab", more=("some", "other")),
        Profile("llamacpp", "llamacpp", "smollm2", {"context_length": 512, "max_batch": 32}),
        Profile(
            "transformers",
            "transformers",
            "smollm2",
            {"context_length": 512, "dtype": "float32", "batching.batch_size": 32},
        ),
        Profile(
            "vllm",
            "vllm",
            "smollm2",
            {
                "max_model_len": 512,
                "dtype": "float32",
                "max_num_seqs": 32,
                "enforce_eager": True,
                "cpu_kvcache_space_gib": 2,
            },
        ),
    )
}
