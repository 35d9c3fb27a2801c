"""Resolves which server the admin commands talk to."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from enginebay.errors import EnginebayError, UsageError
from enginebay.util.http_policy import is_loopback

if TYPE_CHECKING:
    from enginebay.config.resolved_config import Config

DEFAULT_URL = "http://127.0.0.1:8000"
START_HINT = "start one with `bay serve`, or pass --url"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's URL, whether it is on this host, and the hint if it does not respond."""

    url: str
    is_local: bool
    hint: str = START_HINT
    untrusted_file: str = ""  # the config file that sets the address; whoever wrote it may listen there


_config_file: Path | None = None  # of this command


def use_config_file(path: Path | None) -> Path | None:
    """Read the configured address from this file; None: from the default one. Every command calls it."""
    global _config_file
    _config_file = path
    return path


def resolve_server(url: str | None) -> ServerAddress:
    """Resolve the server at this URL, with or without /v1; None: the configured one."""
    return _read_configured_address() if url is None else _parse_url(url)


def build_url(address: IPv4Address | IPv6Address, port: int) -> str:
    """Build the URL of a server that listens on this address. A wildcard address becomes loopback. Pure."""
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://{address}:{port}" if address.version == 4 else f"http://[{address}]:{port}"


def _parse_url(url: str) -> ServerAddress:
    from urllib.parse import urlsplit

    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        is_valid = False
    if not is_valid or parts.hostname is None:
        raise UsageError(f"{url!r} is not a server URL", "use http://HOST:PORT", param="url")
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
    return ServerAddress(base, is_loopback(parts.hostname))


def _read_configured_address() -> ServerAddress:
    """Return the address where `bay serve` would listen. Config problems only show up in the hint."""
    from enginebay.config.loader import validate_config

    try:
        result = validate_config(_config_file)
    except EnginebayError as error:
        return _build_address_with_hint(DEFAULT_URL, error.message)
    host, port = result.config.server.host, result.config.server.port
    address = _find_local_address(host)
    if address is None:  # a remote host could collect the key
        return _build_address_with_hint(DEFAULT_URL, f"server.host is {host}, which is not an address of this host")
    url = build_url(address, port) if port else DEFAULT_URL
    hint = f"{START_HINT}; the configuration is invalid: see `bay config validate`" if result.problems else START_HINT
    return ServerAddress(url, True, hint, "" if url == DEFAULT_URL else _find_untrusted_file(result.config))


def _find_untrusted_file(config: Config) -> str:
    from enginebay.config.entries.config_entry import find_untrusted_file

    entries = config.section_entries["server"]
    return next(filter(None, (find_untrusted_file(entries[name]) for name in ("host", "port") if name in entries)), "")


def _build_address_with_hint(url: str, reason: str) -> ServerAddress:
    return ServerAddress(url, True, f"{START_HINT}; {reason}")


def _find_local_address(host: str) -> IPv4Address | IPv6Address | None:
    """Resolve the host to an address that this host can listen on. A name could resolve differently the next time."""
    try:
        family, _, _, _, endpoint = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        address = ip_address(endpoint[0])
        if address.is_unspecified or address.is_loopback:
            return address
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect(endpoint)
            if ip_address(probe.getsockname()[0]) == address:
                return address
        if _can_bind_nonlocal():
            return None
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # a secondary address of an interface
            probe.bind((endpoint[0], 0, *endpoint[2:]))
        return address
    except (OSError, ValueError):
        return None


def _can_bind_nonlocal() -> bool:
    """Return whether processes may bind addresses that this host does not have."""
    settings = (Path(f"/proc/sys/net/{kind}/ip_nonlocal_bind") for kind in ("ipv4", "ipv6"))
    return any(path.read_text().strip() != "0" for path in settings if path.exists())
