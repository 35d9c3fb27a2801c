"""Rules for outgoing HTTP requests: trusted certificates, proxies, and the local admin token. See ADR 19."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from enginebay.errors import ConfigError
from enginebay.util.paths import find_runtime_dirs

if TYPE_CHECKING:
    from ssl import SSLContext

TRUST_HINT = "set SSL_CERT_FILE to a file with the certificates to trust"
TOKEN_HEADER = "x-enginebay-token"


@dataclass(frozen=True, slots=True)
class Proxy:
    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # its credentials


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is loopback. Pure."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def join_authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def create_tls_context() -> SSLContext:
    """Trust the system's certificates, or those in SSL_CERT_FILE and SSL_CERT_DIR. Nothing turns verification off."""
    from ssl import create_default_context

    return create_default_context()


def find_proxy(host: str, port: int, uses_tls: bool) -> Proxy | None:
    """Return the proxy that HTTPS_PROXY or HTTP_PROXY names, unless NO_PROXY lists the host or it is loopback."""
    if is_loopback(host):
        return None
    from urllib.request import getproxies, proxy_bypass  # slow to import

    scheme = "https" if uses_tls else "http"
    url = getproxies().get(scheme)
    if not url or proxy_bypass(join_authority(host, port)):
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        proxy_port = parts.port or 80
    except ValueError:
        proxy_port = 0
    if not proxy_port or parts.scheme != "http" or not parts.hostname:  # the URL may hold a password
        raise ConfigError(
            f"{scheme.upper()}_PROXY in the environment is not the URL of an HTTP proxy", "use http://HOST:PORT"
        )
    if parts.username is None:
        return Proxy(parts.hostname, proxy_port)
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(parts.hostname, proxy_port, {"Proxy-Authorization": f"Basic {b64encode(credentials).decode()}"})


def build_token_headers(url: str) -> dict[str, str]:
    """Return the header that lets this user manage a server on this host that has no keys; empty for any other URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return {}
    token = _find_admin_token(port) if is_loopback(parts.hostname or "") else None
    return {TOKEN_HEADER: token} if token else {}


def find_token_files(folder: Path, port: int | str) -> Iterator[tuple[Path, bool]]:
    """Yield the token files of servers on this port, and whether the server's process lives."""
    for path in folder.glob(f"admin-{port}-*.token"):
        try:
            os.kill(int(path.stem.rpartition("-")[2]), 0)
            yield path, True
        except PermissionError:
            yield path, True
        except (OSError, ValueError, OverflowError):
            yield path, False


def _find_admin_token(port: int) -> str | None:
    """Return the token of this user's server; of several on one port, the newest."""
    files = [path for folder in find_runtime_dirs() for path, is_live in find_token_files(folder, port) if is_live]
    tokens: list[tuple[float, str]] = []
    for path in files:
        with suppress(OSError):
            tokens.append((path.stat().st_mtime, path.read_text(encoding="ascii")))
    return max(tokens)[1] if tokens else None
