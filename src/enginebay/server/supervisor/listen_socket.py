"""Binds the listening socket, and refuses to expose a server without keys."""

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
    """Return a bound socket that does not listen yet. Raise `ConfigError` if it is exposed without keys or unavailable."""
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
    """Raise `ConfigError` if other hosts can reach the server and it requires no key."""
    if keyring or config.allow_without_key:
        return
    _, address = _resolve(config)
    if not is_loopback(str(address[0])):
        raise ConfigError(
            f"{config.host} is reachable from other hosts, and no API key is set",
            "create a key with `bay keys create NAME`, or pass --allow-without-key to let anyone use it",
        )


def start_listening(sock: socket.socket) -> None:
    """Start accepting connections into the backlog."""
    try:
        sock.listen(_BACKLOG)
    except OSError as error:  # two servers may bind the same port until one of them listens
        raise _make_port_in_use_error(sock.getsockname()[1]) if error.errno == errno.EADDRINUSE else error from None


def _make_port_in_use_error(port: int) -> ConfigError:
    other = port + 1 if port < 65535 else port - 1
    return ConfigError(f"port {port} is in use", f"choose another, such as --port {other}")


def _resolve(config: ServerConfig) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    try:
        addresses = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"cannot resolve the host {config.host}: {error.strerror}", "try 127.0.0.1") from None
    family, _, _, _, address = addresses[0]
    return family, tuple(address)


def build_url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
