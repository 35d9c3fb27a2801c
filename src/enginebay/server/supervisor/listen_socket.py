"""Where the server listens, and whether it may."""

from __future__ import annotations

import errno
import socket
from typing import Any

from enginebay.config.sections.server_section import ServerConfig
from enginebay.errors import ConfigError
from enginebay.server.auth.access_control import is_loopback
from enginebay.server.auth.api_keys import Keyring

_BACKLOG = 2048


def bind_socket(config: ServerConfig, keyring: Keyring) -> socket.socket:
    """A bound socket that does not listen yet. Raises `ConfigError` when it may not be reachable or cannot be had."""
    check_exposure(config, keyring)
    family, address = _resolve(config)
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise _make_port_in_use_error(config.port) from None
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror}", "choose another address"
        ) from None
    return sock


def check_exposure(config: ServerConfig, keyring: Keyring) -> None:
    """Raises `ConfigError` when others could reach the server and none of them needs a key."""
    if keyring or config.allow_without_key:
        return
    _, address = _resolve(config)
    if not is_loopback(str(address[0])):
        raise ConfigError(
            f"{config.host} is reachable from other hosts, and no API key is set",
            "make a key with `bay keys create NAME`, or say --allow-without-key if anybody may use it",
        )


def start_listening(sock: socket.socket) -> None:
    """From here on connections are taken, or wait to be."""
    try:
        sock.listen(_BACKLOG)
    except OSError as error:  # two servers may hold the same port until one of them listens
        raise _make_port_in_use_error(sock.getsockname()[1]) if error.errno == errno.EADDRINUSE else error from None


def _make_port_in_use_error(port: int) -> ConfigError:
    other = port + 1 if port < 65535 else port - 1
    return ConfigError(f"port {port} is in use", f"choose another, as in: --port {other}")


def _resolve(config: ServerConfig) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"{config.host} is not an address of this host: {error.strerror}", "try 127.0.0.1") from None
    family, _, _, _, address = found[0]
    return family, tuple(address)


def build_url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
