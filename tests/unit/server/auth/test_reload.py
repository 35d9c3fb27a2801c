"""Keys at a reload: revoked ones go, whatever becomes of the rest; where the last one goes, nobody gets in."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.config.resolved_config import Config
from enginebay.config.sections.server_section import ServerConfig
from enginebay.errors import ConfigError, EnginebayError, LoadFailed, Unauthorized
from enginebay.server.auth.access_control import authenticate
from enginebay.server.auth.api_keys import ApiKey, Keyring, hash_key
from enginebay.server.supervisor.admin_commands import AdminCommands
from enginebay.server.supervisor.desired_state import DesiredState
from enginebay.server.supervisor.server_instance import ServerSetup
from enginebay.server.supervisor.supervisor import Supervisor

LEAKED = {"authorization": "Bearer leaked-key"}
KEYS = Keyring([ApiKey("only", hash_key("leaked-key"), frozenset({"inference", "admin"}))])
OTHER = {"authorization": "Bearer other-key"}
OTHER_KEYS = Keyring([ApiKey("other", hash_key("other-key"))])


def wanted(keyring: Keyring, **server: Any) -> DesiredState:
    return DesiredState(Config(server=ServerConfig(**server)), (), keyring)


class Changes:
    """Stands for the fleet's part of a reload."""

    def __init__(self, server: Server) -> None:
        self.asked = 0
        self.server, self.keyring = server, server.now.keyring
        self.error: EnginebayError | None = None

    async def to(self, *_: Any) -> dict[str, list[str]]:
        self.asked += 1
        self.keyring = self.server.now.keyring  # while models are made anew
        if self.error is not None:
            raise self.error
        return {"added": [], "changed": [], "removed": []}


class Server:
    """Keeps what it was told to serve with. `found`: the configuration there is now, or what is wrong with it."""

    def __init__(
        self, before: DesiredState, found: DesiredState | ConfigError, keys: Keyring | ConfigError = OTHER_KEYS
    ) -> None:
        self.now, self.found, self.keys = before, found, keys
        self.changes = Changes(self)
        self.orders = AdminCommands(cast("Any", None), before, self._take_in, self._read_again, self._read_keys)
        self.orders._rolling_update = cast("Any", self.changes)

    async def _take_in(self, given: DesiredState) -> None:
        self.now = given

    def _read_again(self) -> DesiredState:
        if isinstance(self.found, ConfigError):
            raise self.found
        return self.found

    def _read_keys(self, config: Config) -> Keyring:
        assert config is self.now.config, "the file of the present configuration"
        if isinstance(self.keys, ConfigError):
            raise self.keys
        return self.keys

    def lets_in(self, headers: dict[str, str]) -> bool:
        try:
            authenticate(self.now.keyring, headers, "inference")
        except Unauthorized:
            return False
        return True

    async def reload(self) -> Any:
        return await self.orders.execute("reload", {})


async def test_without_its_last_key_a_reachable_server_lets_nobody_in() -> None:
    before = wanted(KEYS, host="0.0.0.0")
    server = Server(before, wanted(Keyring(), host="0.0.0.0", drain_s=1.0))
    with pytest.raises(ConfigError, match="every request is refused"):
        await server.reload()
    assert server.now.config is before.config and not server.changes.asked
    setup = ServerSetup(server.now.config.server, (), server.now.keyring)
    assert not setup.keyless
    for headers in (LEAKED, {}, {"authorization": "Bearer other"}):
        for scope in ("inference", "admin", "any"):
            with pytest.raises(Unauthorized, match="no API key is left"):
                authenticate(setup.keyring, headers, scope)


async def test_a_new_key_opens_it_again() -> None:
    server = Server(wanted(KEYS, host="0.0.0.0"), wanted(Keyring(), host="0.0.0.0"))
    with pytest.raises(ConfigError):
        await server.reload()
    server.found = wanted(Keyring([ApiKey("new", hash_key("new-key"))]), host="0.0.0.0")
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


# When the configuration is refused

HERE = {"host": "0.0.0.0"}
BAD = ConfigError("bay.yaml:1: bad: unknown key", "`bay config schema` lists every key")
STAYS = "the keys were taken in, but the configuration stays as it was: "


@pytest.mark.parametrize(
    "found", [BAD, wanted(KEYS, host="0.0.0.0", workers=2), wanted(KEYS, port=1, keys_file=Path("x"), **HERE)]
)
async def test_a_revoked_key_goes_and_a_new_one_comes_with_a_refused_configuration(found: Any) -> None:
    before = wanted(KEYS, **HERE)
    server = Server(before, found)
    with pytest.raises(ConfigError) as refused:
        await server.reload()
    assert refused.value.message.startswith(STAYS) and refused.value.hint
    assert server.now.config is before.config and not server.changes.asked
    assert server.lets_in(OTHER) and not server.lets_in(LEAKED)
    assert BAD.message == "bay.yaml:1: bad: unknown key", "it is not ours to change"


async def test_a_revoked_key_goes_before_models_are_made_anew() -> None:
    server = Server(wanted(KEYS, **HERE), wanted(OTHER_KEYS, **HERE))
    await server.reload()
    assert server.changes.keyring is OTHER_KEYS


async def test_a_revoked_key_goes_although_a_model_does_not_load() -> None:
    before = wanted(KEYS, **HERE)
    server = Server(before, wanted(KEYS, keys_file=Path("elsewhere"), **HERE))
    server.changes.error = LoadFailed("it was told to fail")
    with pytest.raises(LoadFailed) as refused:
        await server.reload()
    assert refused.value.message == f"{STAYS}it was told to fail"
    assert server.changes.keyring is KEYS, "another file counts with its configuration"
    assert server.now.config is before.config and server.lets_in(OTHER) and not server.lets_in(LEAKED)


async def test_the_last_key_goes_with_a_refused_configuration_and_nobody_gets_in() -> None:
    server = Server(wanted(KEYS, **HERE), BAD, Keyring())
    with pytest.raises(ConfigError, match="every request is refused now, and the configuration stays") as refused:
        await server.reload()
    assert BAD.message in refused.value.message and f"`kill -HUP {os.getpid()}`" in refused.value.hint
    assert not server.lets_in(LEAKED) and not server.lets_in({})
    server.keys = OTHER_KEYS
    with pytest.raises(ConfigError, match=STAYS):
        await server.reload()
    assert server.lets_in(OTHER)


async def test_who_was_locked_out_is_not_let_in_by_a_mistake() -> None:
    server = Server(wanted(Keyring(), allow_without_key=True, **HERE), wanted(Keyring(), **HERE), Keyring())
    for found in (server.found, BAD):
        server.found = found
        with pytest.raises(ConfigError):
            await server.reload()
        assert not server.lets_in({})


async def test_keys_that_cannot_be_read_stay_and_it_is_said() -> None:
    server = Server(wanted(KEYS, **HERE), BAD, ConfigError("keys.yaml:1: not valid YAML"))
    with pytest.raises(ConfigError) as refused:
        await server.reload()
    assert refused.value.message == (
        f"the configuration and the keys stay as they were (keys.yaml:1: not valid YAML): {BAD.message}"
    )
    assert server.lets_in(LEAKED)


async def test_a_reload_that_failed_is_logged_whoever_asked_for_it() -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    server = Server(wanted(KEYS, **HERE), BAD, Keyring())
    supervisor: Any = SimpleNamespace(
        _orders=server.orders, _log=SimpleNamespace(event=lambda what, **fields: logged.append((what, fields)))
    )
    supervisor.order = lambda *given: Supervisor.run_admin_command(supervisor, *given)
    with pytest.raises(ConfigError):
        await supervisor.order("reload", {})
    await Supervisor._reload_on_signal(supervisor)
    (what, fields), again = logged
    assert what == "the configuration stays as it was" and fields["level"] == "error" and again == (what, fields)
    assert f"kill -HUP {os.getpid()}" in fields["error"]
