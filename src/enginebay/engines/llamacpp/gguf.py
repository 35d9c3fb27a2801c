"""Reads a GGUF file's header: what the model is, whether the file is whole, and the bytes of each token."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginebay.errors import ModelInvalid

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_FIRST_VERSION, _LAST_VERSION = 2, 3

# ggml type -> (elements in a block, bytes of a block)
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Header:
    """The scalar facts of a GGUF file; arrays only where asked for."""

    tensors: int
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    def of_model(self, name: str) -> Any:
        """A value below the architecture's own prefix, such as `context_length`."""
        return self.values.get(f"{self.architecture}.{name}")

    @property
    def trained_context(self) -> int:
        return int(self.of_model("context_length") or 0)


class _Cursor:
    """A place in the mapped file. Every read checks that the file goes that far."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise _Truncated
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> bytes:
        return self.take(self.number("Q"))


class _Truncated(Exception):
    pass


def read_header(path: Path) -> Header:
    """The model's facts. Stops at the tokenizer's long arrays, which come last in practice and take time to walk."""
    with _mapped(path) as data:
        cursor = _Cursor(data)
        try:
            tensors, keys = _start(cursor, path)
            values: dict[str, Any] = {}
            for key, kind in _keys(cursor, keys):
                if kind == _ARRAY and key.startswith("tokenizer.") and _enough(values):
                    break
                value = _value(cursor, kind, keep=False)
                if value is not None:
                    values[key] = value
        except _Truncated:
            raise _cut(path, data) from None
    return Header(tensors, values)


def check_whole(path: Path) -> None:
    """Raise `ModelInvalid` when the file does not hold all the tensors its header promises."""
    with _mapped(path) as data:
        cursor = _Cursor(data)
        try:
            tensors, keys = _start(cursor, path)
            alignment = 32
            for key, kind in _keys(cursor, keys):
                value = _value(cursor, kind, keep=False)
                if key == "general.alignment":
                    alignment = int(value)
            needed = _data_end(cursor, tensors)
        except _Truncated:
            raise _cut(path, data) from None
        start = -(-cursor.at // alignment) * alignment
        if start + needed > len(data):
            raise _cut(path, data, start + needed)


def read_arrays(path: Path, names: frozenset[str]) -> dict[str, Any]:
    """The named keys' values, arrays included."""
    found: dict[str, Any] = {}
    with _mapped(path) as data:
        cursor = _Cursor(data)
        try:
            _, keys = _start(cursor, path)
            for key, kind in _keys(cursor, keys):
                value = _value(cursor, kind, keep=key in names)
                if key in names:
                    found[key] = value
        except _Truncated:
            raise _cut(path, data) from None
    return found


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelInvalid(f"there is no model file {path}", "check the path, or pull the model again") from None
    except (OSError, ValueError) as problem:  # ValueError: the file is empty
        raise ModelInvalid(f"{path} cannot be read as a GGUF file: {problem}", "pull the model again") from None


def _start(cursor: _Cursor, path: Path) -> tuple[int, int]:
    if cursor.data[:4] != _MAGIC:
        raise ModelInvalid(
            f"{path} is not a GGUF file (it does not begin with 'GGUF')",
            "llama.cpp runs GGUF files only; use the transformers or vllm engine for other formats",
        )
    cursor.at = 4
    version = cursor.number("I")
    if not _FIRST_VERSION <= version <= _LAST_VERSION:
        raise ModelInvalid(
            f"{path} has GGUF version {version}, known are {_FIRST_VERSION} to {_LAST_VERSION}",
            "the file is corrupt or of another byte order; pull the model again",
        )
    return cursor.number("Q"), cursor.number("Q")


def _keys(cursor: _Cursor, count: int) -> Iterator[tuple[str, int]]:
    """Each key and its type, with the cursor on its value; the caller reads the value before the next one."""
    for _ in range(count):
        key = cursor.text().decode("utf-8", "replace")
        kind = cursor.number("I")
        if kind not in _SCALARS and kind not in (_STRING, _ARRAY):
            raise _Truncated
        yield key, kind


def _value(cursor: _Cursor, kind: int, keep: bool) -> Any:
    """A scalar or a text; an array only when it is to be kept, else None."""
    if kind == _STRING:
        return cursor.text().decode("utf-8", "replace")
    if kind == _ARRAY:
        return _array(cursor, keep)
    return cursor.number(_SCALARS[kind])


def _array(cursor: _Cursor, keep: bool) -> Any:
    kind, count = cursor.number("I"), cursor.number("Q")
    if kind in _SCALARS:
        code = _SCALARS[kind]
        raw = cursor.take(count * struct.calcsize("<" + code))
        return struct.unpack(f"<{count}{code}", raw) if keep else None
    if kind == _STRING:
        if keep:
            return [cursor.text() for _ in range(count)]
        _skip_texts(cursor, count)
        return None
    if kind == _ARRAY:
        inner = [_array(cursor, keep) for _ in range(count)]
        return inner if keep else None
    raise _Truncated


def _skip_texts(cursor: _Cursor, count: int) -> None:
    """Step over texts without copying them: vocabularies hold hundreds of thousands."""
    data, at, size = cursor.data, cursor.at, len(cursor.data)
    read = struct.Struct("<Q").unpack_from
    for _ in range(count):
        if at + 8 > size:
            raise _Truncated
        at += 8 + read(data, at)[0]
    if at > size:
        raise _Truncated
    cursor.at = at


def _data_end(cursor: _Cursor, tensors: int) -> int:
    """Where the last tensor ends, from the start of the data. Types unknown here count one byte: a lower bound."""
    end = 0
    for _ in range(tensors):
        cursor.text()
        elements = 1
        for _ in range(cursor.number("I")):
            elements *= cursor.number("Q")
        block, size = _BLOCKS.get(cursor.number("I"), (max(elements, 1), 1))
        end = max(end, cursor.number("Q") + elements // block * size)
    return end


def _enough(values: dict[str, Any]) -> bool:
    return f"{values.get('general.architecture', '')}.context_length" in values


def _cut(path: Path, data: mmap.mmap, needed: int | None = None) -> ModelInvalid:
    size = f"{len(data)} bytes" + (f" of {needed}" if needed else "")
    return ModelInvalid(f"{path} is truncated or corrupt ({size})", "pull the model again, or `bay models verify` it")
