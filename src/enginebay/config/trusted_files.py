"""Config files that the user trusts, by path and content. `bay config trust` records them in ENGINEBAY_HOME."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from enginebay.util.atomic_file import read_json_or_none, write_json
from enginebay.util.file_lock import exclusive_lock
from enginebay.util.paths import home_dir


def is_trusted(path: Path, content: bytes) -> bool:
    """Return whether the user trusted this file with this content."""
    return _read_digests().get(_to_key(path)) == _hash(content)


def trust_file(path: Path, content: bytes) -> None:
    """Trust this file as long as its content stays the same."""
    _write_digest(path, _hash(content))


def revoke_trust(path: Path) -> bool:
    """Forget the file. Return whether it was trusted."""
    known = _to_key(path) in _read_digests()
    if known:
        _write_digest(path, None)
    return known


def _write_digest(path: Path, digest: str | None) -> None:
    store = _get_store()
    with exclusive_lock(store.with_name(f".{store.name}.lock")):
        digests = {**_read_digests(), _to_key(path): digest}
        write_json(store, {key: value for key, value in digests.items() if value is not None}, mode=0o600)


def _read_digests() -> dict[str, str | None]:
    stored = read_json_or_none(_get_store())
    return stored if isinstance(stored, dict) else {}


def _get_store() -> Path:
    return home_dir() / "trusted_configs.json"


def _to_key(path: Path) -> str:
    return str(path.resolve())


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()
