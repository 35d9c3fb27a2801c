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

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_KEY_LENGTH = 16_384
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """Where requests go. The key is in nothing that is printed."""

    uses_tls: bool
    host: str
    port: int
    base_path: str  # the path in front of /chat/completions
    model: str
    api_key: str = field(default="", repr=False)
    connect_timeout_s: float = 10.0
    first_token_timeout_s: float = 120.0
    token_timeout_s: float = 60.0
    retries: int = 2

    @property
    def authority(self) -> str:
        """What messages call it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS["https" if self.uses_tls else "http"] else f"{host}:{self.port}"

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.api_key and not self.uses_tls and self.host not in _LOOPBACK_HOSTS:
            return (f"the key travels to {self.authority} unencrypted; use https",)
        return ()

    def build_get(self, path: str) -> bytes:
        return self._build_head("GET", path, "application/json") + b"\r\n"

    def build_post(self, path: str, body: bytes) -> bytes:
        head = self._build_head("POST", path, "text/event-stream")
        return head + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def _build_head(self, method: str, path: str, accept: str) -> bytes:
        lines = [
            f"{method} {self.base_path}{path} HTTP/1.1",
            f"Host: {self.authority}",
            f"User-Agent: enginebay/{__version__}",
            f"Accept: {accept}",
            "Accept-Encoding: identity",  # what is compressed comes in lumps
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def resolve_settings(load: Load) -> dict[str, Any]:
    """Every setting with its value or default; none holds a secret."""
    defaults = {name: setting.default for name, setting in SPEC.settings.items()}
    return {**defaults, **{name: value for name, value in load.settings.items() if value is not None}}


def parse_remote_server(load: Load, environ: Mapping[str, str] = os.environ) -> RemoteServer:
    """Raises `ConfigError` for an address or a key that cannot be used."""
    given = resolve_settings(load)
    address = _parse_url(given["url"])
    return RemoteServer(
        uses_tls=address.scheme == "https",
        host=_parse_host(address),
        port=address.port or _DEFAULT_PORTS[address.scheme],
        base_path=quote(address.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"),
        model=given["model"] or load.model,
        api_key=_read_key(given["key_env"], given["key_file"], environ),
        connect_timeout_s=given["connect_timeout_s"],
        first_token_timeout_s=given["first_token_timeout_s"],
        token_timeout_s=given["token_timeout_s"],
        retries=given["retries"],
    )


def _parse_url(url: str | None) -> SplitResult:
    wanted = "set openai.url to an address such as https://api.example.com/v1"
    if not url:
        raise ConfigError("the engine openai needs the address of a server", wanted, param="openai.url")
    try:
        found = urlsplit(url.strip())
        _ = found.port  # read only now, and refused when it is no number
    except ValueError:
        raise ConfigError("openai.url is not an address", wanted, param="openai.url") from None
    if found.scheme not in _DEFAULT_PORTS or not found.hostname:
        raise ConfigError("openai.url is not an http or https address", wanted, param="openai.url")
    if found.username is not None or found.password is not None or found.query or found.fragment:
        # Not shown: whatever stands there may be a secret.
        raise ConfigError(
            "openai.url holds more than scheme, host, port and path",
            "give the key as openai.key_env or openai.key_file",
            param="openai.url",
        )
    return found


def _parse_host(address: SplitResult) -> str:
    host = address.hostname or ""
    try:
        found = host if ":" in host else host.encode("idna").decode("ascii")
    except UnicodeError:
        found = ""
    if not found or not found.isprintable() or " " in found:
        raise ConfigError("the host in openai.url is not a name", "check the address", param="openai.url")
    return found


def _read_key(variable: str | None, file: str | None, environ: Mapping[str, str]) -> str:
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
        return _check_key(key, "openai.key_env")
    if file:
        return _check_key(_read_key_file(Path(file).expanduser()), "openai.key_file")
    return ""


def _read_key_file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as opened:
            return opened.read(_MAX_KEY_LENGTH + 2).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"the key file {path} cannot be read: {reason}", "check openai.key_file", param="openai.key_file"
        ) from None


def _check_key(key: str, param: str) -> str:
    """A key that fits a header; nothing of it may be shown."""
    if not key or len(key) > _MAX_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"what {param} names holds no API key", "it must be one line without spaces", param=param)
    return key
