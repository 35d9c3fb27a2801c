"""Durations of `keep_alive`, and who may set them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.errors import EnginebayError, Forbidden, InvalidRequest
from enginebay.server.api.ollama.keep_alive import KeepAlivePlan, parse_keep_alive


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0), (5, 5), (1.5, 1.5), (-1, math.inf), ("0", 0), ("300", 300), ("-1", math.inf), ("5m", 300), ("1h30m", 5400),
     ("1.5s", 1.5), ("250ms", 0.25), ("-1m", math.inf), (" 10s ", 10), ("24h", 86400)],
)  # fmt: skip
def test_durations(value: Any, seconds: float) -> None:
    assert parse_keep_alive(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "soon", "5 m", "5d", "m", "1h-3m", "1e3", "٣s", "9" * 13, "1" * 10_000 + "s"])
def test_other_texts_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_keep_alive(value)
    assert caught.value.param == "keep_alive" and "5m" in caught.value.hint


class Fleet:
    def __init__(self, error: EnginebayError | None = None) -> None:
        self.commands: list[tuple[str, dict[str, Any]]] = []
        self.error = error

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> None:
        self.commands.append((command, arguments))
        if self.error is not None:
            raise self.error


def plan(
    value: Any,
    scopes: set[str] | None = None,
    open_to_all: bool = False,
    error: EnginebayError | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[KeepAlivePlan, Fleet, dict[str, str]]:
    """`scopes`: of the caller's key; None: the server has no keys."""
    fleet = Fleet(error)
    context: Any = SimpleNamespace(fleet=fleet, config=SimpleNamespace(allow_without_key=open_to_all))
    key = None if scopes is None else SimpleNamespace(scopes=scopes)
    request: Any = SimpleNamespace(key=key, ignored={}, variant="m@e", exchange=SimpleNamespace(headers=headers or {}))
    return KeepAlivePlan(context, request, value), fleet, request.ignored


@pytest.mark.parametrize("scopes", [None, {"inference", "admin"}])
@pytest.mark.parametrize(("value", "idle_s"), [("5m", 300.0), (0, 0.0), (-1, None)])
async def test_it_is_applied_after_the_response(scopes: Any, value: Any, idle_s: float | None) -> None:
    made, fleet, ignored = plan(value, scopes)
    assert fleet.commands == [] and ignored == {}
    await made.apply()
    assert fleet.commands == [("keep_alive", {"model": "m@e", "idle_s": idle_s})]


@pytest.mark.parametrize(("scopes", "open_to_all"), [({"inference"}, False), (None, True)])
async def test_others_cannot_take_a_model_away(scopes: Any, open_to_all: bool) -> None:
    made, fleet, ignored = plan(0, scopes, open_to_all)
    assert "admin" in ignored["keep_alive"]
    await made.apply()
    with pytest.raises(Forbidden, match="admin"):
        await made.unload("m")
    assert fleet.commands == []


@pytest.mark.parametrize("header", ["forwarded", "x-forwarded-for", "via"])
async def test_a_proxy_on_this_host_makes_no_one_an_administrator(header: str) -> None:
    made, fleet, ignored = plan(0, headers={header: "192.0.2.1"})
    assert "admin" in ignored["keep_alive"]
    await made.apply()
    with pytest.raises(Forbidden, match="admin"):
        await made.unload("m")
    assert fleet.commands == []
    made, fleet, ignored = plan(0, {"admin"}, headers={header: "192.0.2.1"})
    await made.unload("m")
    assert (fleet.commands, ignored) == ([("unload", {"model": "m"})], {})


async def test_without_it_nothing_changes() -> None:
    made, fleet, ignored = plan(None, {"inference"})
    await made.apply()
    assert (fleet.commands, ignored) == ([], {})


async def test_a_failure_after_the_response_is_no_ones_problem() -> None:
    made, fleet, _ = plan(0, error=EnginebayError("gone"))
    await made.apply()
    assert len(fleet.commands) == 1
    with pytest.raises(EnginebayError, match="gone"):
        await made.unload("m")
