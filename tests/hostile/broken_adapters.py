"""Adapters that cannot be loaded: cut off, garbled, of another shape, or no adapters at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any


def make_broken_adapters(good: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Names and paths of broken copies of this adapter: a GGUF file or a PEFT directory."""
    yield from _make_gguf(good, folder) if good.is_file() else _make_peft(good, folder)


def _make_gguf(good: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    data = good.read_bytes()
    texts = {
        "empty": b"",
        "text": b"not a model\n" * 100,
        "header-alone": data[:24],
        "half": data[: len(data) // 2],
        "counts-huge": data[:8] + b"\xff" * 16 + data[24:],
        "version-unknown": data[:4] + b"\xff\xff\xff\x7f" + data[8:],
        "zeros": b"\x00" * len(data),
    }
    for number in range(4):
        texts[f"garbled-{number}"] = _garble(data, Random(number), within=min(len(data), 4000))
    for name, text in texts.items():
        path = folder / f"{name}.gguf"
        path.write_bytes(text)
        yield name, path
    yield "directory", folder
    pipe = folder / "pipe.gguf"
    os.mkfifo(pipe)
    yield "pipe", pipe
    yield "device", Path("/dev/zero")


def _garble(data: bytes, random: Random, within: int) -> bytes:
    changed = bytearray(data)
    for _ in range(20):
        changed[random.randrange(within)] = random.randrange(256)
    return bytes(changed)


def _make_peft(good: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    config = json.loads((good / "adapter_config.json").read_text())
    configs: dict[str, Any] = {
        "config-no-json": "{",
        "config-a-list": "[]",
        "rank-a-text": {**config, "r": "x"},
        "rank-zero": {**config, "r": 0},
        "rank-negative": {**config, "r": -1},
        "rank-of-millions": {**config, "r": 10**7},
        "rank-another": {**config, "r": 4 * int(config["r"])},
        "type-unknown": {**config, "peft_type": "NOTHING"},
        "modules-unknown": {**config, "target_modules": ["nothing"]},
        "modules-of-numbers": {**config, "target_modules": [7]},
    }
    for name, changed in configs.items():
        path = _copy(good, folder / name)
        (path / "adapter_config.json").write_text(changed if isinstance(changed, str) else json.dumps(changed))
        yield name, path
    weights = (good / "adapter_model.safetensors").read_bytes()
    texts = {
        "weights-empty": b"",
        "weights-half": weights[: len(weights) // 2],
        "weights-header-huge": b"\xff" * 8 + weights[8:],
        "weights-header-garbled": _garble(weights, Random(1), within=2000),
        "weights-none": (2).to_bytes(8, "little") + b"{}",
    }
    for name, text in texts.items():
        path = _copy(good, folder / name)
        (path / "adapter_model.safetensors").write_bytes(text)
        yield name, path
    yield "directory-empty", _make_folder(folder / "directory-empty")
    yield "pickle", _make_pickle(good, folder / "pickle")


def _copy(good: Path, target: Path) -> Path:
    shutil.copytree(good, target)
    return target


def _make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def _make_pickle(good: Path, target: Path) -> Path:
    _copy(good, target)
    (target / "adapter_model.safetensors").rename(target / "adapter_model.bin")
    return target
