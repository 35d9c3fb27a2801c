"""Which server the commands ask that look at one or manage it, and what to do when it is not there."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from enginebay.errors import EnginebayError, UsageError

DEFAULT_URL = "http://127.0.0.1:8000"
START_HINT = "start one with `bay serve`, or name another with --url"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's address, whether it is one of this host, and what to do when nobody answers there."""

    url: str
    is_local: bool
    hint: str = START_HINT


def resolve_server(url: str | None) -> ServerAddress:
    """The server at this address, whichever of its places was named; unset: the one of the configuration."""
    return _read_configured_address() if url is None else _parse_url(url)


def build_url(address: IPv4Address | IPv6Address, port: int) -> str:
    """Where to ask a server that listens like this; one that listens everywhere is asked on this host. Pure."""
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://{address}:{port}" if address.version == 4 else f"http://[{address}]:{port}"


def _parse_url(url: str) -> ServerAddress:
    from urllib.parse import urlsplit

    whole = url if "://" in url else f"http://{url}"
    parts = urlsplit(whole)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not a server's address", "give it as http://HOST:PORT", param="url")
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
    return ServerAddress(base, _is_loopback(parts.hostname))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _read_configured_address() -> ServerAddress:
    """Where `bay serve` would listen. What is wrong with the configuration is told only when nobody answers."""
    from enginebay.config.loader import validate_config

    try:
        found = validate_config()
    except EnginebayError as error:
        return _build_address_with_hint(DEFAULT_URL, error.message)
    host, port = found.config.server.host, found.config.server.port
    address = _find_local_address(host)
    if address is None:  # whoever wrote the file would be sent the key
        return _build_address_with_hint(DEFAULT_URL, f"server.host is {host}, which is not an address of this host")
    url = build_url(address, port) if port else DEFAULT_URL
    if found.problems:
        return _build_address_with_hint(url, "the configuration has problems: `bay config validate` names them")
    return ServerAddress(url, True)


def _build_address_with_hint(url: str, why: str) -> ServerAddress:
    return ServerAddress(url, True, f"{START_HINT}; {why}")


def _find_local_address(host: str) -> IPv4Address | IPv6Address | None:
    """The address at which a server could listen. Not its name: that may have others, or mean another one the next time."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        address = ip_address(place[0])
        if address.is_unspecified or address.is_loopback:
            return address
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect(place)
            if ip_address(probe.getsockname()[0]) == address:
                return address
        if _can_bind_nonlocal():
            return None
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # a second address of an interface
            probe.bind((place[0], 0, *place[2:]))
        return address
    except (OSError, ValueError):
        return None


def _can_bind_nonlocal() -> bool:
    """Whether this host lets a process bind addresses that it does not have."""
    settings = (Path(f"/proc/sys/net/{kind}/ip_nonlocal_bind") for kind in ("ipv4", "ipv6"))
    return any(one.read_text().strip() != "0" for one in settings if one.exists())
