"""Any value as plain JSON data, the same bytes for the same value."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec


def to_plain(value: Any) -> Any:
    """Dicts, lists, strings, numbers, true, false and null only; a number that is not finite is null."""
    return _replace_non_finite(msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_other))


def to_canonical_json(value: Any) -> bytes:
    """What is hashed: sorted keys, no spaces."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def hash_value(value: Any) -> str:
    return hashlib.sha256(to_canonical_json(value)).hexdigest()


def _encode_other(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # a number or array of numpy, which need not be installed
        return value.tolist()
    return str(value)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        # Half a character, which a server may send and UTF-8 cannot hold.
        return value.encode("utf-8", "replace").decode("utf-8")
    return value
