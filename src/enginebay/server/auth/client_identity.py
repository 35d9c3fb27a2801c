"""Who sends a request: for fair shares its API key, or its address if the server has no keys; and whose state it sees."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from hashlib import sha256

from enginebay.server.auth.api_keys import ApiKey
from enginebay.server.sessions.admission_queue import QueueClient

_CLIENT_PREFIX_BITS = 64  # of an IPv6 address: what one client usually has


def identify_client(key: ApiKey | None, peer: str) -> QueueClient:
    """Return the client of a request. `peer`: its address with the port, or "local"."""
    if key is not None:
        return QueueClient(key.name, key.weight, key.max_running)
    return _identify_host(peer.rpartition(":")[0] or peer)


def identify_owner(key: ApiKey | None) -> str:
    """Return whose stored responses a request sees: those of its key. A new key of the same name does not see them.

    Without keys, all clients share theirs: ids cannot be guessed.
    """
    return "" if key is None else sha256(b"state:" + key.digest).hexdigest()[:32]


@lru_cache(maxsize=4096)
def _identify_host(host: str) -> QueueClient:
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return QueueClient(host)
    if address.ipv4_mapped is not None:  # a client of a dual-stack socket
        return QueueClient(str(address.ipv4_mapped))
    return QueueClient(str(ipaddress.IPv6Network((address, _CLIENT_PREFIX_BITS), strict=False)))
