"""Which server the commands ask that look at one or manage it, and what to do when it is not there."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from enginebay.errors import EnginebayError, UsageError

DEFAULT_URL = "http://127.0.0.1:8000"
START_ONE = "start one with `bay serve`, or name another with --url"


@dataclass(frozen=True, slots=True)
class Server:
    """A server's address, whether it is one of this host, and what to do when nobody answers there."""

    url: str
    is_near: bool
    hint: str = START_ONE


def server_at(url: str | None) -> Server:
    """The server at this address, whichever of its places was named; unset: the one of the configuration."""
    return _configured() if url is None else _named(url)


def url_of(address: IPv4Address | IPv6Address, port: int) -> str:
    """Where to ask a server that listens like this; one that listens everywhere is asked on this host. Pure."""
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://{address}:{port}" if address.version == 4 else f"http://[{address}]:{port}"


def _named(url: str) -> Server:
    from urllib.parse import urlsplit

    whole = url if "://" in url else f"http://{url}"
    parts = urlsplit(whole)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not a server's address", "give it as http://HOST:PORT", param="url")
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
    return Server(base, _is_loopback(parts.hostname))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _configured() -> Server:
    """Where `bay serve` would listen. What is wrong with the configuration is told only when nobody answers."""
    from enginebay.config.load import assess

    try:
        found = assess()
    except EnginebayError as error:
        return _doubtful(DEFAULT_URL, error.message)
    host, port = found.config.server.host, found.config.server.port
    address = _of_this_host(host)
    if address is None:  # whoever wrote the file would be sent the key
        return _doubtful(DEFAULT_URL, f"server.host is {host}, which is not an address of this host")
    url = url_of(address, port) if port else DEFAULT_URL
    if found.problems:
        return _doubtful(url, "the configuration has problems: `bay config validate` names them")
    return Server(url, True)


def _doubtful(url: str, why: str) -> Server:
    return Server(url, True, f"{START_ONE}; {why}")


def _of_this_host(host: str) -> IPv4Address | IPv6Address | None:
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
        if _may_bind_others():
            return None
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # a second address of an interface
            probe.bind((place[0], 0, *place[2:]))
        return address
    except (OSError, ValueError):
        return None


def _may_bind_others() -> bool:
    """Whether this host lets a process bind addresses that it does not have."""
    settings = (Path(f"/proc/sys/net/{kind}/ip_nonlocal_bind") for kind in ("ipv4", "ipv6"))
    return any(one.read_text().strip() != "0" for one in settings if one.exists())
