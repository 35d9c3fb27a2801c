"""Convert any value to plain JSON data, with the same bytes for equal values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec


def to_plain(value: Any) -> Any:
    """Convert a value to dicts, lists, strings, numbers, booleans and None. Non-finite numbers become None."""
    return _replace_non_finite(msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_other))


def to_canonical_json(value: Any) -> bytes:
    """Encode a value for hashing: sorted keys, no spaces."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def hash_value(value: Any) -> str:
    return hashlib.sha256(to_canonical_json(value)).hexdigest()


def _encode_other(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # a numpy scalar or array; numpy may not be installed
        return value.tolist()
    return str(value)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        # A lone surrogate, which a server may send and UTF-8 cannot encode.
        return value.encode("utf-8", "replace").decode("utf-8")
    return value
