"""Two small engine specs for the generic rules, and a loader isolated from this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from enginebay.config.loader import load_config
from enginebay.config.resolved_config import Config
from enginebay.contract import EngineSpec, Retired, Runtime, Setting, honours, parameters, refuses

Load = Callable[..., Config]


def _spec(kind: str, settings: dict[str, Setting], **more: Any) -> EngineSpec:
    request = {name: honours() for name in parameters()} | more.pop("request", {})
    return EngineSpec(kind, kind, "", "", (), (), Runtime(), request, settings, **more)


UNIVERSAL = {
    "fp_precision": Setting("str", "", choices=("float16", "bfloat16", "float32")),
    "batching.batch_size": Setting("int", "", minimum=1),
}

SPECS = {
    "fast": _spec(
        "fast",
        {
            **UNIVERSAL,
            "max_num_seqs": Setting("int", "", minimum=1, maximum=1024, aliases=("parallel",), tune=(8, 16)),
            "memory": Setting("float", "", minimum=0.5, maximum=0.99, default=0.9),
            "block_size": Setting("int", "", choices=(8, 16, 32)),
            "eager": Setting("bool", ""),
            "speculative.method": Setting("str", "", choices=("ngram", "eagle")),
            "speculative.num_tokens": Setting("int", "", minimum=1, maximum=10),
            "batching.strategy": Setting("str", "", capability=refuses("it always batches continuously")),
            "logprobs": Setting("int", "", minimum=1, maximum=20),
            "extra": Setting("map", ""),
        },
        retired={"swap_space": Retired("0.11", "offload")},
        request={"no_repeat_ngram_size": refuses("repetition_penalty")},
    ),
    "wide": _spec(
        "wide",
        {
            **UNIVERSAL,
            "fp_precision": Setting("str", "", choices=("float32",)),
            "batching.strategy": Setting("str", "", choices=("static", "dynamic")),
            "compile": Setting("bool|str", "", choices=(False, "default")),
            "max_memory": Setting("map", ""),
        },
        aliases=("broad",),
    ),
}


@pytest.fixture
def specs() -> Mapping[str, EngineSpec]:
    return SPECS


@pytest.fixture
def far_too() -> Mapping[str, EngineSpec]:
    """The two small engines, and one on another host."""
    return {**SPECS, "far": _spec("far", {}, aliases=("away",), remote=True)}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """`load(text, environ=..., flags=..., strict=...)` with the two small engines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))

    def load(text: str = "", **more: Any) -> Config:
        Path("bay.yaml").write_text(text, encoding="utf-8")
        return load_config(Path("bay.yaml"), **{"environ": {}, "specs": SPECS, **more})

    return load
