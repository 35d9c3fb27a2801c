"""Reads the metadata and tensor infos of a GGUF file, never the weights.

    file = read_gguf(path)
    file.architecture, file.context_length, file.quantisation, file.parameter_count, file.chat_template
    file.metadata["llama.block_count"], file.tensors[0].shape

Every length is checked against the file size before use, so a truncated or hostile file raises a one-line
`ModelInvalid`. Vocabularies stay bytes until first access.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from enginebay.errors import ModelInvalid
from enginebay.text.gguf.ggml_types import FILE_TYPES, TENSOR_TYPES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

# Name of the special token in templates -> metadata key of its id ("seperator" is the format's spelling).
SPECIAL_TOKEN_KEYS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "sep_token": "tokenizer.ggml.seperator_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
    "cls_token": "tokenizer.ggml.cls_token_id",
    "mask_token": "tokenizer.ggml.mask_token_id",
}
SENTENCEPIECE_DEFAULTS = {"bos_token": 1, "eos_token": 2, "unk_token": 0}

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_MIN_ENTRY_BYTES = 8 + 4 + 1  # the key's length, the value's type, the smallest value
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # the name's length, dimensions, type, offset

T = TypeVar("T")


class TensorInfo(NamedTuple):
    name: str
    shape: tuple[int, ...]  # fastest dimension first, as in GGUF
    type: str
    offset: int  # from the start of the file
    size_bytes: int | None  # None for an unknown type

    @property
    def element_count(self) -> int:
        product = 1
        for dimension in self.shape:
            product *= dimension
        return product


class StringArray(Sequence[str]):
    """An array of strings as raw bytes, decoded on first access."""

    def __init__(self, raw: bytes, count: int) -> None:
        self._raw = raw
        self._count = count
        self._decoded: list[str] | None = None

    def decode(self) -> list[str]:
        if self._decoded is None:
            raw, position, strings = self._raw, 0, []
            unpack = _U64.unpack_from
            for _ in range(self._count):
                end = position + 8 + unpack(raw, position)[0]
                strings.append(raw[position + 8 : end].decode("utf-8", "replace"))
                position = end
            self._decoded = strings
        return self._decoded

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.decode()[index]

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"StringArray({self._count} strings)"


@dataclass(frozen=True)
class GgufFile:
    """One GGUF file; one part of a split model."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]

    @property
    def architecture(self) -> str:
        return self.get("general.architecture", str, "unknown")

    @property
    def context_length(self) -> int | None:
        return self.get(f"{self.architecture}.context_length", int, None)

    @property
    def parameter_count(self) -> int:
        """Number of weights in this file."""
        return sum(tensor.element_count for tensor in self.tensors)

    @property
    def quantisation(self) -> str:
        """The type of most weights: as declared, else the type with the most bytes."""
        declared = FILE_TYPES.get(self.get("general.file_type", int, -1))
        if declared or not self.tensors:
            return declared or "unknown"
        sizes: Counter[str] = Counter()
        for tensor in self.tensors:
            sizes[tensor.type] += tensor.size_bytes or 0
        return sizes.most_common(1)[0][0]

    @property
    def chat_template(self) -> str | None:
        return self.get("tokenizer.chat_template", str, None)

    @property
    def split_count(self) -> int:
        """Number of files the model is split into."""
        return max(1, self.get("split.count", int, 1))

    @overload
    def get(self, key: str, kind: type[T], default: None) -> T | None: ...
    @overload
    def get(self, key: str, kind: type[T], default: T) -> T: ...
    def get(self, key: str, kind: type[T], default: T | None) -> T | None:
        """Return the value of a key, or `default` if absent. Raises `ModelInvalid` for a value of another type."""
        value = self.metadata.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise _invalid_gguf(self.path, f"{key} must be {kind.__name__}, not {type(value).__name__}")
        return value

    def get_number(self, name: str) -> int:
        """Return a number under the architecture's prefix, such as `block_count`; 0 if it is missing.

        Returns the largest if the model has one per layer.
        """
        value = self.metadata.get(f"{self.architecture}.{name}")
        if isinstance(value, tuple):
            value = max((number for number in value if isinstance(number, int)), default=0)
        return value if isinstance(value, int) else 0


def read_special_tokens(file: GgufFile) -> dict[str, str]:
    """Return the special tokens by their names in chat templates."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, StringArray):
        return {}
    defaults = SENTENCEPIECE_DEFAULTS if file.get("tokenizer.ggml.model", str, "") == "llama" else {}
    ids = {name: file.get(key, int, defaults.get(name, -1)) for name, key in SPECIAL_TOKEN_KEYS.items()}
    return {name: tokens[number] for name, number in ids.items() if 0 <= number < len(tokens)}


def is_gguf(path: Path) -> bool:
    """Return whether the file starts with the GGUF magic."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_gguf(path: Path) -> GgufFile:
    """Read the metadata and tensor infos of a GGUF file. Raises `ModelInvalid` if it is not a complete, valid one."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise _invalid_gguf(path, "it does not start with GGUF")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _GgufReader(path, data).read()
    except OSError as error:
        raise ModelInvalid(f"{path} cannot be read: {error.strerror or error}") from error


def _invalid_gguf(path: Path, reason: str) -> ModelInvalid:
    if len(reason) > 250:  # it quotes a name, and a damaged one can be megabytes long
        reason = f"{reason[:150]} ... {reason[-80:]}"
    return ModelInvalid(f"{path} is not a valid GGUF model: {reason}", "fetch the file again")


class _GgufReader:
    """Reads the header of the file in one pass."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = len(MAGIC)

    def read(self) -> GgufFile:
        version = self.unpack(_U32, "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            raise self.invalid(
                "it is big-endian" if swapped in VERSIONS else f"version {version} is not supported (only 2 and 3)"
            )
        tensor_count = self.read_count("tensors", _MIN_TENSOR_BYTES)
        metadata = self.read_metadata(self.read_count("metadata entries", _MIN_ENTRY_BYTES))
        tensors = self.read_tensors(tensor_count, self.parse_alignment(metadata))
        return GgufFile(self.path, version, metadata, tensors)

    def invalid(self, reason: str) -> ModelInvalid:
        return _invalid_gguf(self.path, reason)

    def skip(self, size: int, part: str) -> int:
        """Skip `size` bytes. Return where they start."""
        start = self.position
        if size > self.size - start:
            raise self.invalid(f"it ends inside {part} ({self.size} bytes; is the file truncated?)")
        self.position = start + size
        return start

    def unpack(self, layout: struct.Struct, part: str) -> Any:
        return layout.unpack_from(self.data, self.skip(layout.size, part))[0]

    def read_count(self, part: str, smallest: int) -> int:
        number: int = self.unpack(_U64, f"the number of {part}")
        if number > (self.size - self.position) // smallest:
            raise self.invalid(f"it claims {number} {part}, more than fit in its {self.size} bytes")
        return number

    def read_string(self, part: str) -> str:
        length: int = self.unpack(_U64, part)
        start = self.skip(length, part)
        return self.data[start : start + length].decode("utf-8", "replace")

    def read_metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for number in range(count):
            key = self.read_string(f"metadata key {number}")
            if key in metadata:
                raise self.invalid(f"the metadata key {key!r} appears twice")
            metadata[key] = self.read_value(self.unpack(_U32, f"the type of {key!r}"), key)
        return metadata

    def read_value(self, kind: int, key: str) -> Any:
        part = f"the value of {key!r}"
        if kind == _STRING:
            return self.read_string(part)
        if kind == _ARRAY:
            return self.read_array(key)
        if kind not in _SCALARS:
            raise self.invalid(f"{part} has the unknown type {kind}")
        return self.unpack(_SCALARS[kind], part)

    def read_array(self, key: str) -> Sequence[Any]:
        part = f"the array {key!r}"
        kind: int = self.unpack(_U32, part)
        if kind == _STRING:
            return self.read_string_array(self.read_count(f"strings in {key!r}", _U64.size), part)
        if kind not in _SCALARS:
            raise self.invalid(f"{part} has elements of the unknown type {kind}")
        layout = _SCALARS[kind]
        count = self.read_count(f"elements in {key!r}", layout.size)
        start = self.skip(count * layout.size, part)
        values: tuple[Any, ...] = struct.unpack_from(f"<{count}{layout.format[1:]}", self.data, start)
        return values

    def read_string_array(self, count: int, part: str) -> StringArray:
        """Find the end of the strings without decoding them."""
        start = position = self.position
        data, last, unpack = self.data, self.size - 8, _U64.unpack_from
        for _ in range(count):
            if position > last:
                break
            position += 8 + unpack(data, position)[0]
        self.skip(position - start, part) if position <= self.size else self.skip(self.size + 1, part)
        return StringArray(data[start:position], count)

    def parse_alignment(self, metadata: Mapping[str, Any]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or value < 1 or value & (value - 1):
            raise self.invalid(f"general.alignment is {value!r}, not a power of two")
        return value

    def read_tensors(self, count: int, alignment: int) -> tuple[TensorInfo, ...]:
        relative = [self.read_tensor_info(number) for number in range(count)]
        names = Counter(info.name for info in relative)
        if relative and names.most_common(1)[0][1] > 1:
            raise self.invalid(f"the tensor {names.most_common(1)[0][0]!r} appears twice")
        start = -(-self.position // alignment) * alignment
        return tuple(self.resolve_offset(info, start, alignment) for info in relative)

    def read_tensor_info(self, number: int) -> TensorInfo:
        name = self.read_string(f"the name of tensor {number}")
        part = f"the tensor info of {name!r}"
        dimensions: int = self.unpack(_U32, part)
        if dimensions > MAX_DIMENSIONS:
            raise self.invalid(f"the tensor {name!r} has {dimensions} dimensions, more than {MAX_DIMENSIONS}")
        shape: tuple[int, ...] = struct.unpack_from(f"<{dimensions}Q", self.data, self.skip(8 * dimensions, part))
        kind: int = self.unpack(_U32, part)
        info = TensorInfo(name, shape, f"type {kind}", self.unpack(_U64, part), None)
        if kind not in TENSOR_TYPES:
            return info
        known = TENSOR_TYPES[kind]
        if shape and shape[0] % known.block_size:
            raise self.invalid(f"the rows of tensor {name!r} ({shape[0]}) are not a multiple of {known.name} blocks")
        return info._replace(type=known.name, size_bytes=info.element_count // known.block_size * known.block_bytes)

    def resolve_offset(self, info: TensorInfo, start: int, alignment: int) -> TensorInfo:
        if info.offset % alignment:
            raise self.invalid(f"the tensor {info.name!r} is not aligned to {alignment} bytes")
        end = start + info.offset + (info.size_bytes or 0)
        if end > self.size:
            raise self.invalid(
                f"the data of tensor {info.name!r} ends at byte {end}, but the file is truncated at {self.size}"
            )
        return info._replace(offset=start + info.offset)
