"""API keys. Only hashes are stored, so a stolen key file grants no access.

A key is `bay-<id>-<secret>`: the id identifies it in listings, the secret is 256 random bits.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from enginebay.errors import ConfigError, UsageError
from enginebay.util.atomic_file import write_atomically
from enginebay.util.file_lock import exclusive_lock
from enginebay.util.paths import home_dir

INFERENCE, ADMIN = "inference", "admin"
SCOPES = (INFERENCE, ADMIN)
INFERENCE_VARIABLE, ADMIN_VARIABLE = "ENGINEBAY_API_KEY", "ENGINEBAY_ADMIN_KEY"
MIN_KEY_CHARS = 16  # for keys in environment variables, which a person may have chosen
MAX_KEY_FILE_BYTES = 1 << 20

_HEADER = "# Enginebay API keys, managed by `bay keys`. This file contains hashes only; the keys are not stored.\n"
_FIELDS = (
    "id", "name", "hash", "scopes", "requests_per_minute", "tokens_per_minute", "weight", "max_running", "created",
)  # fmt: skip
_DEFAULTS = {"weight": 1}  # not written, like limits of None: earlier versions do not know the field
_ID = re.compile(r"[0-9a-f]{8}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_HEADER_SAFE = re.compile(r"[!-~]+")  # characters that an HTTP header can carry unquoted


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. The name is unique; a limit of None means unlimited.

    While keys compete for a model, each gets time in its engine by `weight`. `max_running`: per model.
    """

    name: str
    digest: bytes
    scopes: frozenset[str] = frozenset({INFERENCE})
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    weight: int = 1
    max_running: int | None = None


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One entry of a key file."""

    id: str
    key: ApiKey
    created: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return everything but the hash."""
        return {
            "id": self.id,
            "name": self.key.name,
            "scopes": [scope for scope in SCOPES if scope in self.key.scopes],
            "requests_per_minute": self.key.requests_per_minute,
            "tokens_per_minute": self.key.tokens_per_minute,
            "weight": self.key.weight,
            "max_running": self.key.max_running,
            "created": self.created,
        }


def hash_key(text: str) -> bytes:
    """Return the hash that is stored of a key.

    Plain SHA-256 is enough: slow hashes protect guessable passwords, but 256 random bits cannot be guessed. It also
    keeps `Keyring.find`, which runs on every request, in the microseconds.
    """
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


class Keyring:
    """The accepted keys. Truthy if requests need a key: if it has any, or if it is `required`."""

    def __init__(self, keys: Sequence[ApiKey] = (), warnings: Sequence[str] = (), required: bool = False) -> None:
        # Sorted so that `find` returns the entry with more scopes if the same key is configured twice.
        self.keys = tuple(sorted(keys, key=lambda key: len(key.scopes)))
        self.warnings = tuple(warnings)
        self.required = required

    @classmethod
    def load(cls, file: Path | None, environ: Mapping[str, str]) -> Keyring:
        """Load keys from `file` and `environ`. None: the default file, which is optional. Raise `ConfigError`."""
        path = default_key_file() if file is None else file
        stored = read_keys(path, must_exist=file is not None)
        env_keys = [*_read_env_keys(environ, INFERENCE_VARIABLE, (INFERENCE,))]
        env_keys += _read_env_keys(environ, ADMIN_VARIABLE, SCOPES)
        return cls([*(entry.key for entry in stored), *env_keys], _check_permissions(path))

    def __bool__(self) -> bool:
        return self.required or bool(self.keys)

    def find(self, presented: str) -> ApiKey | None:
        """Return the matching key. No early exit: the time does not depend on which key matches."""
        digest = hash_key(presented)
        match = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                match = key
        return match


def default_key_file() -> Path:
    return home_dir() / "keys.yaml"


def list_keys(file: Path) -> list[StoredKey]:
    """Return the keys of a file; none if it does not exist."""
    return read_keys(file)


def create_key(
    file: Path,
    name: str,
    *,
    admin: bool = False,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    weight: int = 1,
    max_running: int | None = None,
) -> tuple[str, StoredKey]:
    """Add a key to the file. Return its text, which is not stored, and the new entry."""
    if not _NAME.fullmatch(name) or _ID.fullmatch(name):
        raise UsageError(
            f"invalid key name {name[:80]!r}",
            "use up to 64 letters, digits, '.', '_' and '-', but not eight hex digits, which look like an id",
        )
    with _edit_key_file(file) as stored:
        if any(entry.key.name == name for entry in stored):
            raise UsageError(f"a key named {name!r} already exists", f"use another name, or: bay keys revoke {name}")
        taken = {entry.id for entry in stored}
        key_id = next(candidate for candidate in iter(lambda: secrets.token_hex(4), "") if candidate not in taken)
        text = f"bay-{key_id}-{secrets.token_urlsafe(32)}"
        scopes = frozenset(SCOPES if admin else (INFERENCE,))
        key = ApiKey(name, hash_key(text), scopes, requests_per_minute, tokens_per_minute, weight, max_running)
        created = StoredKey(key_id, key, datetime.now(UTC).isoformat(timespec="seconds"))
        stored.append(created)
    return text, created


def revoke_key(file: Path, name_or_id: str) -> StoredKey:
    """Remove a key from the file and return its entry. Raise `UsageError` if there is none."""
    with _edit_key_file(file) as stored:
        revoked = next((entry for entry in stored if name_or_id in (entry.key.name, entry.id)), None)
        if revoked is None:
            near = get_close_matches(name_or_id, [entry.key.name for entry in stored], n=1)
            hint = f"did you mean {near[0]}?" if near else "`bay keys list` shows all keys"
            raise UsageError(f"no key {name_or_id[:80]!r} in {file}", hint)
        stored.remove(revoked)
    return revoked


@contextmanager
def _edit_key_file(file: Path) -> Iterator[list[StoredKey]]:
    """Yield the file's keys for editing, under a lock. Write them back unless an exception is raised."""
    file = file.resolve()  # replace the target of a symlink, not the link
    with exclusive_lock(file.with_name(f".{file.name}.lock")):
        stored = read_keys(file)
        yield stored
        _write_key_file(file, stored)


def _write_key_file(file: Path, stored: Sequence[StoredKey]) -> None:
    """Replace the file with one that only its owner can read."""
    entries = [
        {
            **{name: value for name, value in entry.to_json().items() if value != _DEFAULTS.get(name)},
            "hash": f"sha256:{entry.key.digest.hex()}",
        }
        for entry in stored
    ]
    write_atomically(file, _HEADER + yaml.safe_dump(entries, sort_keys=False), sync=True, mode=0o600)


def _check_permissions(path: Path) -> list[str]:
    try:
        mode = path.stat().st_mode
    except OSError:
        return []
    return [f"{path} is accessible to other users; run: chmod 600 {path}"] if mode & 0o077 else []


def _read_env_keys(environ: Mapping[str, str], variable: str, scopes: Sequence[str]) -> Iterator[ApiKey]:
    texts = [text.strip() for text in environ.get(variable, "").split(",")]
    for number, text in enumerate(filter(None, texts), 1):
        name = variable if number == 1 else f"{variable}:{number}"
        if len(text) < MIN_KEY_CHARS:
            reason = f"{name} is {len(text)} characters long, at least {MIN_KEY_CHARS} are required"
            raise ConfigError(reason, "use a long random key such as `bay keys create` generates", param=variable)
        if not _HEADER_SAFE.fullmatch(text):
            reason = f"{name} has characters that an HTTP header cannot carry"
            raise ConfigError(reason, "use printable ASCII without spaces", param=variable)
        yield ApiKey(f"env:{name}", hash_key(text), frozenset(scopes))


# --- reading a key file


def read_keys(path: Path, must_exist: bool = False) -> list[StoredKey]:
    """Return the entries of a key file. Raise `ConfigError` with the line of an error."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEY_FILE_BYTES + 1)
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"key file not found: {path}", "create it with `bay keys create NAME`") from None
        return []
    except OSError as error:
        raise ConfigError(f"cannot read the key file {path}: {error.strerror}", "check its permissions") from None
    if len(text) > MAX_KEY_FILE_BYTES:
        raise ConfigError(f"the key file {path} exceeds {MAX_KEY_FILE_BYTES >> 20} MiB", "revoke unused keys")
    return _KeyFileReader(path).read(text)


class _KeyFileReader:
    """Validates a key file node by node: every error has its line, and aliases are never expanded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, text: bytes) -> list[StoredKey]:
        try:
            root = yaml.compose(text, yaml.SafeLoader)
        except RecursionError:
            raise self.make_error("nested too deeply") from None
        except yaml.MarkedYAMLError as error:
            raise self.make_error(f"not valid YAML: {error.problem}", error.problem_mark) from None
        except (yaml.YAMLError, ValueError):
            raise self.make_error("not valid YAML") from None
        if root is None:
            return []
        if not isinstance(root, yaml.SequenceNode):
            raise self.make_error("expected a list of keys", root.start_mark)
        stored: list[StoredKey] = []
        taken: set[str] = set()
        for node in root.value:
            entry = self.parse_entry(node)
            if taken & {entry.id, entry.key.name}:
                raise self.make_error(f"duplicate key {entry.key.name} ({entry.id})", node.start_mark)
            taken |= {entry.id, entry.key.name}
            stored.append(entry)
        return stored

    def parse_entry(self, node: Any) -> StoredKey:
        if not isinstance(node, yaml.MappingNode):
            raise self.make_error("expected a key with id, name and hash", node.start_mark)
        fields: dict[str, Any] = {}
        for name, value in node.value:
            if name.value not in _FIELDS:
                near = get_close_matches(str(name.value), _FIELDS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known fields: {', '.join(_FIELDS)}"
                raise self.make_error(f"unknown field {str(name.value)[:40]!r}; {hint}", name.start_mark)
            fields[name.value] = value
        key = ApiKey(
            self.match_field(node, fields, "name", _NAME).group(),
            bytes.fromhex(self.match_field(node, fields, "hash", _HASH).group(1)),
            self.parse_scopes(fields.get("scopes")),
            self.parse_count(fields, "requests_per_minute"),
            self.parse_count(fields, "tokens_per_minute"),
            self.parse_count(fields, "weight") or 1,
            self.parse_count(fields, "max_running"),
        )
        created = fields.get("created")
        return StoredKey(
            self.match_field(node, fields, "id", _ID).group(),
            key,
            created.value if isinstance(created, yaml.ScalarNode) else "",
        )

    def match_field(self, entry: Any, fields: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> re.Match[str]:
        node = fields.get(name)
        match = pattern.fullmatch(node.value) if isinstance(node, yaml.ScalarNode) else None
        if match is None:
            problem = "is missing" if node is None else f"does not match {pattern.pattern}"
            raise self.make_error(f"{name} {problem}", (node or entry).start_mark)
        return match

    def parse_scopes(self, node: Any) -> frozenset[str]:
        if node is None:
            return frozenset({INFERENCE})
        values: list[Any] = [item.value for item in node.value] if isinstance(node, yaml.SequenceNode) else []
        if not values or not all(value in SCOPES for value in values):
            raise self.make_error(f"scopes must be a list of {' and '.join(SCOPES)}", node.start_mark)
        return frozenset(values)

    def parse_count(self, fields: Mapping[str, Any], name: str) -> int | None:
        node = fields.get(name)
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return None
        if not isinstance(node, yaml.ScalarNode) or not re.fullmatch(r"[1-9][0-9]{0,14}", node.value):
            raise self.make_error(f"{name} must be a positive integer", node.start_mark)
        return int(node.value)

    def make_error(self, reason: str, mark: Any = None) -> ConfigError:
        line = "" if mark is None else f":{mark.line + 1}"
        return ConfigError(f"{self.path}{line}: {reason}", "correct the file; `bay keys create` writes valid entries")
