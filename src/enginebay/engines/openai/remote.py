"""The server to ask, as the settings describe it: its address, its key, its patience."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from enginebay import __version__
from enginebay.contract import Load
from enginebay.engines.openai.spec import SPEC
from enginebay.errors import ConfigError

_PORTS = {"http": 80, "https": 443}
_LONGEST_KEY = 16_384
_OF_THIS_HOST = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Remote:
    """Where requests go. The key is in nothing that is printed."""

    secure: bool
    host: str
    port: int
    base: str  # the path in front of /chat/completions
    model: str
    key: str = field(default="", repr=False)
    connect_timeout_s: float = 10.0
    first_token_timeout_s: float = 120.0
    token_timeout_s: float = 60.0
    retries: int = 2

    @property
    def place(self) -> str:
        """What messages call it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.key and not self.secure and self.host not in _OF_THIS_HOST:
            return (f"the key travels to {self.place} unencrypted; use https",)
        return ()

    def get(self, path: str) -> bytes:
        return self._head("GET", path, "application/json") + b"\r\n"

    def post(self, path: str, body: bytes) -> bytes:
        head = self._head("POST", path, "text/event-stream")
        return head + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def _head(self, method: str, path: str, accept: str) -> bytes:
        lines = [
            f"{method} {self.base}{path} HTTP/1.1",
            f"Host: {self.place}",
            f"User-Agent: enginebay/{__version__}",
            f"Accept: {accept}",
            "Accept-Encoding: identity",  # what is compressed comes in lumps
        ]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def settings_of(load: Load) -> dict[str, Any]:
    """Every setting with its value or default; none holds a secret."""
    defaults = {name: setting.default for name, setting in SPEC.settings.items()}
    return {**defaults, **{name: value for name, value in load.settings.items() if value is not None}}


def read_remote(load: Load, environ: Mapping[str, str] = os.environ) -> Remote:
    """Raises `ConfigError` for an address or a key that cannot be used."""
    given = settings_of(load)
    address = _address(given["url"])
    return Remote(
        secure=address.scheme == "https",
        host=_host(address),
        port=address.port or _PORTS[address.scheme],
        base=quote(address.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"),
        model=given["model"] or load.model,
        key=_key(given["key_env"], given["key_file"], environ),
        connect_timeout_s=given["connect_timeout_s"],
        first_token_timeout_s=given["first_token_timeout_s"],
        token_timeout_s=given["token_timeout_s"],
        retries=given["retries"],
    )


def _address(url: str | None) -> SplitResult:
    wanted = "set openai.url to an address such as https://api.example.com/v1"
    if not url:
        raise ConfigError("the engine openai needs the address of a server", wanted, param="openai.url")
    try:
        found = urlsplit(url.strip())
        _ = found.port  # read only now, and refused when it is no number
    except ValueError:
        raise ConfigError("openai.url is not an address", wanted, param="openai.url") from None
    if found.scheme not in _PORTS or not found.hostname:
        raise ConfigError("openai.url is not an http or https address", wanted, param="openai.url")
    if found.username is not None or found.password is not None or found.query or found.fragment:
        # Not shown: whatever stands there may be a secret.
        raise ConfigError(
            "openai.url holds more than scheme, host, port and path",
            "give the key as openai.key_env or openai.key_file",
            param="openai.url",
        )
    return found


def _host(address: SplitResult) -> str:
    host = address.hostname or ""
    try:
        found = host if ":" in host else host.encode("idna").decode("ascii")
    except UnicodeError:
        found = ""
    if not found or not found.isprintable() or " " in found:
        raise ConfigError("the host in openai.url is not a name", "check the address", param="openai.url")
    return found


def _key(variable: str | None, file: str | None, environ: Mapping[str, str]) -> str:
    if variable and file:
        raise ConfigError("openai.key_env and openai.key_file are both set", "keep one of them", param="openai.key_env")
    if variable:
        key = environ.get(variable, "").strip()
        if not key:
            raise ConfigError(
                f"the environment variable {variable} of openai.key_env is not set",
                f"set {variable} to the API key where bay is started",
                param="openai.key_env",
            )
        return _checked(key, "openai.key_env")
    if file:
        return _checked(_from_file(Path(file).expanduser()), "openai.key_file")
    return ""


def _from_file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as opened:
            return opened.read(_LONGEST_KEY + 2).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"the key file {path} cannot be read: {reason}", "check openai.key_file", param="openai.key_file"
        ) from None


def _checked(key: str, param: str) -> str:
    """A key that fits a header; nothing of it may be shown."""
    if not key or len(key) > _LONGEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"what {param} names holds no API key", "it must be one line without spaces", param=param)
    return key
