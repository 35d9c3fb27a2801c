"""API keys: who may ask the server. Only hashes are kept, so a stolen key file opens nothing.

A key is `bay-<id>-<secret>`: the id tells keys apart in listings, the secret is 256 random bits.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import tempfile
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
from enginebay.util.file_lock import exclusive_lock
from enginebay.util.paths import home_dir

INFERENCE, ADMIN = "inference", "admin"
SCOPES = (INFERENCE, ADMIN)
INFERENCE_VARIABLE, ADMIN_VARIABLE = "ENGINEBAY_API_KEY", "ENGINEBAY_ADMIN_KEY"
MIN_KEY_CHARS = 16  # characters of a key in a variable, which a person may have chosen
MAX_KEY_FILE_BYTES = 1 << 20

_HEADER = (
    "# API keys of Enginebay, written by `bay keys`. It holds hashes only; the keys themselves are kept nowhere.\n"
)
_FIELDS = ("id", "name", "hash", "scopes", "requests_per_minute", "tokens_per_minute", "created")
_ID = re.compile(r"[0-9a-f]{8}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_HEADER_SAFE = re.compile(r"[!-~]+")  # what an HTTP header can carry without quoting


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key as the server knows it. The name is unique; None: no such limit."""

    name: str
    digest: bytes
    scopes: frozenset[str] = frozenset({INFERENCE})
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One entry of a key file."""

    id: str
    key: ApiKey
    created: str = ""

    def to_json(self) -> dict[str, Any]:
        """Everything but the hash."""
        return {
            "id": self.id,
            "name": self.key.name,
            "scopes": [scope for scope in SCOPES if scope in self.key.scopes],
            "requests_per_minute": self.key.requests_per_minute,
            "tokens_per_minute": self.key.tokens_per_minute,
            "created": self.created,
        }


def hash_key(text: str) -> bytes:
    """What is kept of a key.

    A plain SHA-256 is enough: slow password hashes protect texts that people can remember, and nobody can try all
    values of 256 random bits. It also keeps `Keyring.find` in the microseconds, on every single request.
    """
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


class Keyring:
    """All keys that are accepted now. True when a key is asked for: there is one, or none is left and it is `needed`."""

    def __init__(self, keys: Sequence[ApiKey] = (), warnings: Sequence[str] = (), required: bool = False) -> None:
        # Should one text be given twice, the entry with more rights is found: it is the one that was meant to add some.
        self.keys = tuple(sorted(keys, key=lambda key: len(key.scopes)))
        self.warnings = tuple(warnings)
        self.required = required

    @classmethod
    def load(cls, file: Path | None, environ: Mapping[str, str]) -> Keyring:
        """Keys of the file and of the variables. None: the default file, which need not exist. Raises `ConfigError`."""
        path = default_key_file() if file is None else file
        stored = read_keys(path, must_exist=file is not None)
        given = [*_read_env_keys(environ, INFERENCE_VARIABLE, (INFERENCE,))]
        given += _read_env_keys(environ, ADMIN_VARIABLE, SCOPES)
        return cls([*(one.key for one in stored), *given], _check_permissions(path))

    def __bool__(self) -> bool:
        return self.required or bool(self.keys)

    def find(self, presented: str) -> ApiKey | None:
        """The key with this text. Takes as long for a wrong one as for any right one: no early exit."""
        digest = hash_key(presented)
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def default_key_file() -> Path:
    return home_dir() / "keys.yaml"


def list_keys(file: Path) -> list[StoredKey]:
    """The keys of a file; none when it does not exist."""
    return read_keys(file)


def create_key(
    file: Path,
    name: str,
    *,
    admin: bool = False,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> tuple[str, StoredKey]:
    """Add a key to the file: its text, which is to be had only here, and the entry that was written."""
    if not _NAME.fullmatch(name) or _ID.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} cannot be the name of a key",
            "use up to 64 letters, digits, '.', '_' and '-'; and not eight hex digits, which are an id",
        )
    with _edit_key_file(file) as stored:
        if any(one.key.name == name for one in stored):
            raise UsageError(
                f"there is a key called {name!r} already", f"take another name, or: bay keys revoke {name}"
            )
        taken = {one.id for one in stored}
        identity = next(one for one in iter(lambda: secrets.token_hex(4), "") if one not in taken)
        text = f"bay-{identity}-{secrets.token_urlsafe(32)}"
        scopes = frozenset(SCOPES if admin else (INFERENCE,))
        key = ApiKey(name, hash_key(text), scopes, requests_per_minute, tokens_per_minute)
        created = StoredKey(identity, key, datetime.now(UTC).isoformat(timespec="seconds"))
        stored.append(created)
    return text, created


def revoke_key(file: Path, name_or_id: str) -> StoredKey:
    """Remove a key from the file. Raises `UsageError` when it has no such key."""
    with _edit_key_file(file) as stored:
        found = next((one for one in stored if name_or_id in (one.key.name, one.id)), None)
        if found is None:
            near = get_close_matches(name_or_id, [one.key.name for one in stored], n=1)
            hint = f"did you mean {near[0]}?" if near else "`bay keys list` shows all keys"
            raise UsageError(f"there is no key {name_or_id[:80]!r} in {file}", hint)
        stored.remove(found)
    return found


@contextmanager
def _edit_key_file(file: Path) -> Iterator[list[StoredKey]]:
    """The file's keys, to be changed in place; written back unless something is raised."""
    file = file.resolve()  # a link stays a link
    with exclusive_lock(file.with_name(f".{file.name}.lock")):
        stored = read_keys(file)
        yield stored
        _write_key_file(file, stored)


def _write_key_file(file: Path, stored: Sequence[StoredKey]) -> None:
    """Replace the file as a whole: a reader sees the old one or the new one, and nobody else reads either."""
    entries = [
        {
            **{name: value for name, value in one.to_json().items() if value is not None},
            "hash": f"sha256:{one.key.digest.hex()}",
        }
        for one in stored
    ]
    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(_HEADER + yaml.safe_dump(entries, sort_keys=False))
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _check_permissions(path: Path) -> list[str]:
    try:
        mode = path.stat().st_mode
    except OSError:
        return []
    return [f"{path} is open to other users of this host; run: chmod 600 {path}"] if mode & 0o077 else []


def _read_env_keys(environ: Mapping[str, str], variable: str, scopes: Sequence[str]) -> Iterator[ApiKey]:
    texts = [text.strip() for text in environ.get(variable, "").split(",")]
    for number, text in enumerate(filter(None, texts), 1):
        which = variable if number == 1 else f"{variable}:{number}"
        if len(text) < MIN_KEY_CHARS:
            reason = f"{which} is {len(text)} characters long, at least {MIN_KEY_CHARS} are needed"
            raise ConfigError(reason, "use a long random text, as `bay keys create` makes one", param=variable)
        if not _HEADER_SAFE.fullmatch(text):
            reason = f"{which} has characters that no HTTP header can carry"
            raise ConfigError(reason, "use letters, digits and signs of ASCII, without spaces", param=variable)
        yield ApiKey(f"env:{which}", hash_key(text), frozenset(scopes))


# --- reading a key file


def read_keys(path: Path, must_exist: bool = False) -> list[StoredKey]:
    """The entries of a key file. Raises `ConfigError` with the line of what is wrong."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEY_FILE_BYTES + 1)
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"there is no key file {path}", "`bay keys create NAME` makes one") from None
        return []
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}", "check its permissions") from None
    if len(text) > MAX_KEY_FILE_BYTES:
        raise ConfigError(
            f"the key file {path} is over {MAX_KEY_FILE_BYTES >> 20} MiB", "revoke keys that are not used"
        )
    return _KeyFileReader(path).read(text)


class _KeyFileReader:
    """Checks a key file by hand, node by node: each complaint has its line, and nothing is ever expanded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, text: bytes) -> list[StoredKey]:
        try:
            root = yaml.compose(text, yaml.SafeLoader)
        except RecursionError:
            raise self.make_error("it is nested too deeply") from None
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
            one = self.parse_entry(node)
            if taken & {one.id, one.key.name}:
                raise self.make_error(f"the key {one.key.name} ({one.id}) is there twice", node.start_mark)
            taken |= {one.id, one.key.name}
            stored.append(one)
        return stored

    def parse_entry(self, node: Any) -> StoredKey:
        if not isinstance(node, yaml.MappingNode):
            raise self.make_error("expected a key with id, name and hash", node.start_mark)
        found: dict[str, Any] = {}
        for name, value in node.value:
            if name.value not in _FIELDS:
                near = get_close_matches(str(name.value), _FIELDS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_FIELDS)}"
                raise self.make_error(f"unknown field {str(name.value)[:40]!r}; {hint}", name.start_mark)
            found[name.value] = value
        key = ApiKey(
            self.match_field(node, found, "name", _NAME).group(),
            bytes.fromhex(self.match_field(node, found, "hash", _HASH).group(1)),
            self.parse_scopes(found.get("scopes")),
            self.parse_rate(found, "requests_per_minute"),
            self.parse_rate(found, "tokens_per_minute"),
        )
        created = found.get("created")
        return StoredKey(
            self.match_field(node, found, "id", _ID).group(),
            key,
            created.value if isinstance(created, yaml.ScalarNode) else "",
        )

    def match_field(self, entry: Any, found: Mapping[str, Any], name: str, form: re.Pattern[str]) -> re.Match[str]:
        node = found.get(name)
        matched = form.fullmatch(node.value) if isinstance(node, yaml.ScalarNode) else None
        if matched is None:
            state = "is missing" if node is None else f"does not look like {form.pattern}"
            raise self.make_error(f"{name} {state}", (node or entry).start_mark)
        return matched

    def parse_scopes(self, node: Any) -> frozenset[str]:
        if node is None:
            return frozenset({INFERENCE})
        values: list[Any] = [one.value for one in node.value] if isinstance(node, yaml.SequenceNode) else []
        if not values or not all(value in SCOPES for value in values):
            raise self.make_error(f"scopes takes a list of {' and '.join(SCOPES)}", node.start_mark)
        return frozenset(values)

    def parse_rate(self, found: Mapping[str, Any], name: str) -> int | None:
        node = found.get(name)
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return None
        if not isinstance(node, yaml.ScalarNode) or not re.fullmatch(r"[1-9][0-9]{0,14}", node.value):
            raise self.make_error(f"{name} takes a whole number from 1 on", node.start_mark)
        return int(node.value)

    def make_error(self, reason: str, mark: Any = None) -> ConfigError:
        line = "" if mark is None else f":{mark.line + 1}"
        return ConfigError(f"{self.path}{line}: {reason}", "correct the file; `bay keys create` writes proper entries")
