"""Selects which files of a model to fetch: weights in safe formats and their auxiliary files. Pure.

Pickle files (`.bin`, `.pt`, …) can run code when loaded, so they are never selected.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from enginebay.errors import ModelInvalid
from enginebay.models.model_sources import list_split_files

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".ot")
AUXILIARY_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken")  # configs, templates, vocabularies
LICENSE_PREFIXES = ("LICENSE", "LICENCE", "NOTICE", "COPYING")
IGNORED_FOLDERS = ("onnx", "openvino", "original", "coreml", "tf", "flax")  # copies for other libraries


def select_files(names: Iterable[str], requested_file: str | None, label: str, with_code: bool = False) -> list[str]:
    """Return the files to fetch from a repository or folder. Raises `ModelInvalid` if it has no supported weights."""
    files = sorted(names)
    if requested_file is not None:
        return _select_gguf(files, requested_file, label)
    weights = _list_safetensors(files)
    if weights:
        return sorted(
            {*weights, *(name for name in files if _is_auxiliary(name) or (with_code and name.endswith(".py")))}
        )
    ggufs = _list_gguf_models(name for name in files if name.endswith(".gguf"))
    if len(ggufs) == 1:
        return _select_gguf(files, ggufs[0], label)
    if ggufs:
        raise ModelInvalid(f"{label} has {len(ggufs)} GGUF models", f"choose one: {', '.join(ggufs[:8])}")
    raise build_no_weights_error(files, label)


def build_no_weights_error(files: Iterable[str], label: str) -> ModelInvalid:
    pickles = [name for name in files if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        return ModelInvalid(
            f"{label} has its weights only as pickle ({pickles[0]}), which can run arbitrary code when loaded",
            "use a copy of the model in safetensors or GGUF",
        )
    return ModelInvalid(f"{label} has no safetensors or GGUF weights", "use a model in one of these formats")


def _select_gguf(files: list[str], requested_file: str, label: str) -> list[str]:
    needed = list_split_files(requested_file)
    missing = [name for name in needed if name not in files]
    if missing:
        ggufs = _list_gguf_models(name for name in files if name.endswith(".gguf"))
        raise ModelInvalid(
            f"{label} has no file {missing[0]}", f"it has: {', '.join(ggufs[:8])}" if ggufs else "it has no GGUF files"
        )
    return needed


def _list_gguf_models(ggufs: Iterable[str]) -> list[str]:
    """Return one name per model. Image encoders (`mmproj`) are not models."""
    first = {list_split_files(name)[0] for name in ggufs if not PurePosixPath(name).name.startswith("mmproj")}
    return sorted(first)


def _list_safetensors(files: list[str]) -> list[str]:
    weights = [name for name in files if name.endswith(".safetensors") and "/" not in name]
    usual = [name for name in weights if not name.startswith("consolidated")]
    return usual or weights  # `consolidated` is a second copy for the vendor's own library


def _is_auxiliary(name: str) -> bool:
    path = PurePosixPath(name)
    if len(path.parts) > 2 or path.parts[0] in IGNORED_FOLDERS or path.parts[0].startswith("."):
        return False
    return path.suffix in AUXILIARY_SUFFIXES or path.name.startswith(LICENSE_PREFIXES)
