"""Rules for outgoing HTTP requests: trusted certificates and proxies. See ADR 19."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from enginebay.errors import ConfigError

if TYPE_CHECKING:
    from ssl import SSLContext

TRUST_HINT = "set SSL_CERT_FILE to a file with the certificates to trust"


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
