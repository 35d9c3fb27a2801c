"""The remote server, from the settings: address, API key, timeouts."""

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
from enginebay.util.http_policy import Proxy, find_proxy, is_loopback

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_KEY_LENGTH = 16_384


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """Address, key and timeouts of the server. The key never appears in its repr."""

    uses_tls: bool
    host: str
    port: int
    base_path: str  # the path before /chat/completions
    model: str
    api_key: str = field(default="", repr=False)
    connect_timeout_s: float = 10.0
    first_token_timeout_s: float = 120.0
    token_timeout_s: float = 60.0
    retries: int = 2
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """Host and port, as messages and the Host header show them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS["https" if self.uses_tls else "http"] else f"{host}:{self.port}"

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.api_key and not self.uses_tls and not is_loopback(self.host):
            return (f"the API key is sent to {self.authority} unencrypted; use https",)
        return ()

    def build_get(self, path: str) -> bytes:
        return self._build_head("GET", path, "application/json") + b"\r\n"

    def build_post(self, path: str, body: bytes) -> bytes:
        head = self._build_head("POST", path, "text/event-stream")
        return head + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def _build_head(self, method: str, path: str, accept: str) -> bytes:
        forwarded = self.proxy is not None and not self.uses_tls  # a proxy sees requests without TLS
        lines = [
            f"{method} {f'http://{self.authority}' if forwarded else ''}{self.base_path}{path} HTTP/1.1",
            f"Host: {self.authority}",
            f"User-Agent: enginebay/{__version__}",
            f"Accept: {accept}",
            "Accept-Encoding: identity",  # compression delays chunks
        ]
        if forwarded and self.proxy is not None:
            lines += (f"{name}: {value}" for name, value in self.proxy.headers.items())
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def resolve_settings(load: Load) -> dict[str, Any]:
    """Return every setting with its value or default. None holds a secret."""
    defaults = {name: setting.default for name, setting in SPEC.settings.items()}
    return {**defaults, **{name: value for name, value in load.settings.items() if value is not None}}


def parse_remote_server(load: Load, environ: Mapping[str, str] = os.environ) -> RemoteServer:
    """Parse the settings. Raises `ConfigError` for an invalid address or key."""
    settings = resolve_settings(load)
    address = _parse_url(settings["url"])
    host, port, uses_tls = (
        _parse_host(address),
        address.port or _DEFAULT_PORTS[address.scheme],
        address.scheme == "https",
    )
    return RemoteServer(
        uses_tls=uses_tls,
        host=host,
        port=port,
        base_path=quote(address.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"),
        model=settings["model"] or load.model,
        api_key=_read_key(settings["key_env"], settings["key_file"], environ),
        connect_timeout_s=settings["connect_timeout_s"],
        first_token_timeout_s=settings["first_token_timeout_s"],
        token_timeout_s=settings["token_timeout_s"],
        retries=settings["retries"],
        proxy=find_proxy(host, port, uses_tls),
    )


def _parse_url(url: str | None) -> SplitResult:
    hint = "set openai.url to a URL such as https://api.example.com/v1"
    if not url:
        raise ConfigError("the openai engine needs openai.url", hint, param="openai.url")
    try:
        address = urlsplit(url.strip())
        _ = address.port  # raises ValueError if it is not a number
    except ValueError:
        raise ConfigError("openai.url is not a valid URL", hint, param="openai.url") from None
    if address.scheme not in _DEFAULT_PORTS or not address.hostname:
        raise ConfigError("openai.url is not an http or https URL", hint, param="openai.url")
    if address.username is not None or address.password is not None or address.query or address.fragment:
        # Not shown, since it may hold a secret.
        raise ConfigError(
            "openai.url contains more than scheme, host, port and path",
            "set the API key with openai.key_env or openai.key_file",
            param="openai.url",
        )
    return address


def _parse_host(address: SplitResult) -> str:
    host = address.hostname or ""
    try:
        ascii_host = host if ":" in host else host.encode("idna").decode("ascii")
    except UnicodeError:
        ascii_host = ""
    if not ascii_host or not ascii_host.isprintable() or " " in ascii_host:
        raise ConfigError("the host in openai.url is invalid", "check openai.url", param="openai.url")
    return ascii_host


def _read_key(variable: str | None, file: str | None, environ: Mapping[str, str]) -> str:
    if variable and file:
        raise ConfigError(
            "openai.key_env and openai.key_file are mutually exclusive", "remove one of them", param="openai.key_env"
        )
    if variable:
        key = environ.get(variable, "").strip()
        if not key:
            raise ConfigError(
                f"openai.key_env: the environment variable {variable} is not set",
                f"set {variable} to the API key before starting bay",
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
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read the key file {path}: {reason}", "check openai.key_file", param="openai.key_file"
        ) from None


def _check_key(key: str, param: str) -> str:
    """Return the key if it fits a header. Errors must not show any part of it."""
    if not key or len(key) > _MAX_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"{param} does not refer to a valid API key",
            "the key must be one line of ASCII without spaces",
            param=param,
        )
    return key
