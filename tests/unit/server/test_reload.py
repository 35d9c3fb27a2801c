"""A reload that would leave the server open to others: nobody gets in, and nothing else changes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from enginebay.config.model import Config
from enginebay.config.server import ServerConfig
from enginebay.errors import ConfigError, Unauthorized
from enginebay.server.access import authenticate
from enginebay.server.instance import Setup
from enginebay.server.keys import Key, Keyring, digest_of
from enginebay.server.orders import Orders
from enginebay.server.wanted import Wanted

LEAKED = {"authorization": "Bearer leaked-key"}
KEYS = Keyring([Key("only", digest_of("leaked-key"), frozenset({"inference", "admin"}))])


def wanted(keyring: Keyring, **server: Any) -> Wanted:
    return Wanted(Config(server=ServerConfig(**server)), (), keyring)


class Changes:
    """Stands for the fleet's part of a reload."""

    def __init__(self) -> None:
        self.asked = 0

    async def to(self, _: Any) -> dict[str, list[str]]:
        self.asked += 1
        return {"added": [], "changed": [], "removed": []}


class Server:
    """Keeps what it was told to serve with."""

    def __init__(self, before: Wanted, after: Wanted) -> None:
        self.now, self.found, self.changes = before, after, Changes()
        self.orders = Orders(cast("Any", None), before, self._take_in, lambda: self.found)
        self.orders._changes = cast("Any", self.changes)

    async def _take_in(self, given: Wanted) -> None:
        self.now = given

    async def reload(self) -> Any:
        return await self.orders.carry_out("reload", {})


async def test_without_its_last_key_a_reachable_server_lets_nobody_in() -> None:
    before = wanted(KEYS, host="0.0.0.0")
    server = Server(before, wanted(Keyring(), host="0.0.0.0", drain_s=1.0))
    with pytest.raises(ConfigError, match="every request is refused"):
        await server.reload()
    assert server.now.config is before.config and not server.changes.asked
    setup = Setup(server.now.config.server, (), server.now.keyring)
    assert not setup.keyless
    for headers in (LEAKED, {}, {"authorization": "Bearer other"}):
        for scope in ("inference", "admin", "any"):
            with pytest.raises(Unauthorized, match="no API key is left"):
                authenticate(setup.keyring, headers, scope)


async def test_a_new_key_opens_it_again() -> None:
    server = Server(wanted(KEYS, host="0.0.0.0"), wanted(Keyring(), host="0.0.0.0"))
    with pytest.raises(ConfigError):
        await server.reload()
    server.found = wanted(Keyring([Key("new", digest_of("new-key"))]), host="0.0.0.0")
    await server.reload()
    assert authenticate(server.now.keyring, {"authorization": "Bearer new-key"}, "inference") is not None
    with pytest.raises(Unauthorized):
        authenticate(server.now.keyring, LEAKED, "inference")


async def test_leave_to_do_without_keys_cannot_be_taken_back_by_opening_the_server() -> None:
    server = Server(wanted(Keyring(), host="::", allow_without_key=True), wanted(Keyring(), host="::"))
    with pytest.raises(ConfigError):
        await server.reload()
    with pytest.raises(Unauthorized):
        authenticate(server.now.keyring, {}, "inference")


@pytest.mark.parametrize(
    "server", [{"host": "127.0.0.1"}, {"host": "localhost"}, {"host": "0.0.0.0", "allow_without_key": True}]
)
async def test_where_no_key_is_needed_the_last_one_may_go(server: dict[str, Any]) -> None:
    found = Server(wanted(KEYS, **server), wanted(Keyring(), **server))
    await found.reload()
    assert found.changes.asked and authenticate(found.now.keyring, {}, "inference") is None
