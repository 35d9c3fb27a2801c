"""Tiny models of every format the store supports."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zipfile
from pathlib import Path

from tests.unit.text.tiny_gguf import build_tiny_llama


def build_safetensors(values: int = 4) -> bytes:
    head = json.dumps({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, values * 4]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(values * 4)


def build_directory_files(values: int = 4) -> dict[str, bytes]:
    """The files of a safetensors repository, including some that must not be fetched."""
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64, "model_type": "llama"}
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "1_Pooling/config.json": b"{}",
        "model.safetensors": build_safetensors(values),
        "pytorch_model.bin": b"pickle",
        "modeling_evil.py": b"raise SystemExit",
        "README.md": b"hi",
        "LICENSE": b"yours",
        "onnx/config.json": b"{}",
        ".gitattributes": b"",
    }


TAKEN = {
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "1_Pooling/config.json",
    "model.safetensors",
    "LICENSE",
}


def write_directory(folder: Path, files: dict[str, bytes] | None = None) -> Path:
    for name, content in (build_directory_files() if files is None else files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_gguf(path: Path) -> Path:
    path.write_bytes(build_tiny_llama())
    return path


def write_wheel(folder: Path, files: dict[str, bytes], dist: str = "tiny_model", record: bool = True) -> Path:
    """A valid wheel with a dependency that does not exist: it must not be fetched."""
    information = f"{dist}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\nRequires-Dist: no-such-thing\n"
    members = {
        **files,
        f"{information}/METADATA": metadata.encode(),
        f"{information}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},sha256={_hash_content(content)},{len(content)}" for name, content in members.items()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{dist}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{information}/RECORD", "\n".join([*rows, f"{information}/RECORD,,"]) if record else "")
    return path


def _hash_content(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def list_files(folder: Path) -> set[str]:
    """All files below a folder, without locks."""
    found = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()}
    return {name for name in found if not name.startswith(".locks/")}
