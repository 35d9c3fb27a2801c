"""Keys at a reload: revoked keys stop working even if the reload fails, and an exposed server is locked without keys."""

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


def desired(keyring: Keyring, **server: Any) -> DesiredState:
    return DesiredState(Config(server=ServerConfig(**server)), (), keyring)


class FakeRollingUpdate:
    """Stands in for the fleet's part of a reload."""

    def __init__(self, server: Server) -> None:
        self.calls = 0
        self.server, self.keyring = server, server.now.keyring
        self.error: EnginebayError | None = None

    async def apply(self, *_: Any) -> dict[str, list[str]]:
        self.calls += 1
        self.keyring = self.server.now.keyring  # while models are reloaded
        if self.error is not None:
            raise self.error
        return {"added": [], "changed": [], "removed": []}


class Server:
    """Records the applied state. `on_disk`: the current configuration, or its error."""

    def __init__(
        self, before: DesiredState, on_disk: DesiredState | ConfigError, keys: Keyring | ConfigError = OTHER_KEYS
    ) -> None:
        self.now, self.on_disk, self.keys = before, on_disk, keys
        self.rolling_update = FakeRollingUpdate(self)
        self.commands = AdminCommands(cast("Any", None), before, self._apply, self._read_desired, self._read_keys)
        self.commands._rolling_update = cast("Any", self.rolling_update)

    async def _apply(self, state: DesiredState) -> None:
        self.now = state

    def _read_desired(self) -> DesiredState:
        if isinstance(self.on_disk, ConfigError):
            raise self.on_disk
        return self.on_disk

    def _read_keys(self, config: Config) -> Keyring:
        assert config is self.now.config, "the key file of the applied configuration"
        if isinstance(self.keys, ConfigError):
            raise self.keys
        return self.keys

    def accepts(self, headers: dict[str, str]) -> bool:
        try:
            authenticate(self.now.keyring, headers, "inference")
        except Unauthorized:
            return False
        return True

    async def reload(self) -> Any:
        return await self.commands.execute("reload", {})


async def test_an_exposed_server_without_its_last_key_refuses_everyone() -> None:
    before = desired(KEYS, host="0.0.0.0")
    server = Server(before, desired(Keyring(), host="0.0.0.0", drain_s=1.0))
    with pytest.raises(ConfigError, match="all requests are now refused"):
        await server.reload()
    assert server.now.config is before.config and not server.rolling_update.calls
    setup = ServerSetup(server.now.config.server, (), server.now.keyring)
    assert not setup.keyless
    for headers in (LEAKED, {}, {"authorization": "Bearer other"}):
        for scope in ("inference", "admin", "any"):
            with pytest.raises(Unauthorized, match="requires an API key, but none exists"):
                authenticate(setup.keyring, headers, scope)


async def test_a_new_key_unlocks_it() -> None:
    server = Server(desired(KEYS, host="0.0.0.0"), desired(Keyring(), host="0.0.0.0"))
    with pytest.raises(ConfigError):
        await server.reload()
    server.on_disk = desired(Keyring([ApiKey("new", hash_key("new-key"))]), host="0.0.0.0")
    await server.reload()
    assert authenticate(server.now.keyring, {"authorization": "Bearer new-key"}, "inference") is not None
    with pytest.raises(Unauthorized):
        authenticate(server.now.keyring, LEAKED, "inference")


async def test_removing_allow_without_key_locks_an_exposed_server() -> None:
    server = Server(desired(Keyring(), host="::", allow_without_key=True), desired(Keyring(), host="::"))
    with pytest.raises(ConfigError):
        await server.reload()
    with pytest.raises(Unauthorized):
        authenticate(server.now.keyring, {}, "inference")


@pytest.mark.parametrize(
    "server", [{"host": "127.0.0.1"}, {"host": "localhost"}, {"host": "0.0.0.0", "allow_without_key": True}]
)
async def test_the_last_key_may_be_revoked_if_none_is_required(server: dict[str, Any]) -> None:
    reloaded = Server(desired(KEYS, **server), desired(Keyring(), **server))
    await reloaded.reload()
    assert reloaded.rolling_update.calls and authenticate(reloaded.now.keyring, {}, "inference") is None


# When the configuration is refused

EXPOSED = {"host": "0.0.0.0"}
BAD = ConfigError("bay.yaml:1: bad: unknown key", "`bay config schema` lists every key")
KEYS_ONLY = "the keys were reloaded, but the configuration is unchanged: "


@pytest.mark.parametrize(
    "on_disk", [BAD, desired(KEYS, host="0.0.0.0", workers=2), desired(KEYS, port=1, keys_file=Path("x"), **EXPOSED)]
)
async def test_keys_are_reloaded_despite_a_refused_configuration(on_disk: Any) -> None:
    before = desired(KEYS, **EXPOSED)
    server = Server(before, on_disk)
    with pytest.raises(ConfigError) as refused:
        await server.reload()
    assert refused.value.message.startswith(KEYS_ONLY) and refused.value.hint
    assert server.now.config is before.config and not server.rolling_update.calls
    assert server.accepts(OTHER) and not server.accepts(LEAKED)
    assert BAD.message == "bay.yaml:1: bad: unknown key", "the original error is not modified"


async def test_keys_are_reloaded_before_models() -> None:
    server = Server(desired(KEYS, **EXPOSED), desired(OTHER_KEYS, **EXPOSED))
    await server.reload()
    assert server.rolling_update.keyring is OTHER_KEYS


async def test_keys_are_reloaded_although_a_model_does_not_load() -> None:
    before = desired(KEYS, **EXPOSED)
    server = Server(before, desired(KEYS, keys_file=Path("elsewhere"), **EXPOSED))
    server.rolling_update.error = LoadFailed("it was told to fail")
    with pytest.raises(LoadFailed) as refused:
        await server.reload()
    assert refused.value.message == f"{KEYS_ONLY}it was told to fail"
    assert server.rolling_update.keyring is KEYS, "another key file applies only with its configuration"
    assert server.now.config is before.config and server.accepts(OTHER) and not server.accepts(LEAKED)


async def test_the_last_key_is_revoked_with_a_refused_configuration() -> None:
    server = Server(desired(KEYS, **EXPOSED), BAD, Keyring())
    with pytest.raises(
        ConfigError, match="all requests are now refused, and the configuration is unchanged"
    ) as refused:
        await server.reload()
    assert BAD.message in refused.value.message and f"`kill -HUP {os.getpid()}`" in refused.value.hint
    assert not server.accepts(LEAKED) and not server.accepts({})
    server.keys = OTHER_KEYS
    with pytest.raises(ConfigError, match=KEYS_ONLY):
        await server.reload()
    assert server.accepts(OTHER)


async def test_a_locked_server_stays_locked_after_a_bad_reload() -> None:
    server = Server(desired(Keyring(), allow_without_key=True, **EXPOSED), desired(Keyring(), **EXPOSED), Keyring())
    for on_disk in (server.on_disk, BAD):
        server.on_disk = on_disk
        with pytest.raises(ConfigError):
            await server.reload()
        assert not server.accepts({})


async def test_unreadable_keys_are_reported_and_unchanged() -> None:
    server = Server(desired(KEYS, **EXPOSED), BAD, ConfigError("keys.yaml:1: not valid YAML"))
    with pytest.raises(ConfigError) as refused:
        await server.reload()
    assert refused.value.message == (
        f"neither the configuration nor the keys were reloaded (keys.yaml:1: not valid YAML): {BAD.message}"
    )
    assert server.accepts(LEAKED)


async def test_a_failed_reload_is_logged_by_command_and_by_signal() -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    server = Server(desired(KEYS, **EXPOSED), BAD, Keyring())
    log = SimpleNamespace(log_event=lambda event, **fields: logged.append((event, fields)))
    supervisor: Any = SimpleNamespace(_admin=server.commands, _log=log)
    supervisor.run_admin_command = lambda *args: Supervisor.run_admin_command(supervisor, *args)
    with pytest.raises(ConfigError):
        await supervisor.run_admin_command("reload", {})
    await Supervisor._reload_on_signal(supervisor)
    (event, fields), again = logged
    assert event == "reload failed" and fields["level"] == "error" and again == (event, fields)
    assert f"kill -HUP {os.getpid()}" in fields["error"]
