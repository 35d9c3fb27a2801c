"""Which server the commands ask that look at one or manage it, and what to do when it is not there."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address

from enginebay.errors import EnginebayError, UsageError

DEFAULT_URL = "http://127.0.0.1:8000"
START_ONE = "start one with `bay serve`, or name another with --url"


@dataclass(frozen=True, slots=True)
class Server:
    """A server's address, and what to do when nobody answers there."""

    url: str
    hint: str = START_ONE


def server_at(url: str | None) -> Server:
    """The server at this address, whichever of its places was named; unset: the one of the configuration."""
    return _configured() if url is None else Server(_base_url(url))


def url_of(host: str, port: int) -> str:
    """Where to ask a server that listens like this; one that listens everywhere is asked on this host. Pure."""
    try:
        address = ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://{address}:{port}" if address.version == 4 else f"http://[{address}]:{port}"


def _base_url(url: str) -> str:
    from urllib.parse import urlsplit

    whole = url if "://" in url else f"http://{url}"
    parts = urlsplit(whole)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not a server's address", "give it as http://HOST:PORT", param="url")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def _configured() -> Server:
    """Where `bay serve` would listen. What is wrong with the configuration is told only when nobody answers."""
    from enginebay.config.load import assess

    try:
        found = assess()
    except EnginebayError as error:
        return _doubtful(DEFAULT_URL, error.message)
    host, port = found.config.server.host, found.config.server.port
    if not _is_of_this_host(host):  # whoever wrote the file would be sent the key
        return _doubtful(DEFAULT_URL, f"server.host is {host}, which is not an address of this host")
    url = url_of(host, port) if port else DEFAULT_URL
    if found.problems:
        return _doubtful(url, "the configuration has problems: `bay config validate` names them")
    return Server(url)


def _doubtful(url: str, why: str) -> Server:
    return Server(url, f"{START_ONE}; {why}")


def _is_of_this_host(host: str) -> bool:
    """Whether a server could listen there."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except (OSError, ValueError):
        return False
    return True
