"""LoRA adapters that come and go while their model serves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.contract.adapters import adapter_for
from tests.integration.fleet.asking import REAL, Fleet
from tests.integration.fleet.load import Load


async def test_in_the_running_worker(mixed_fleet: Fleet, tmp_path: Path) -> None:
    """Transformers takes adapters in without a new start."""
    fleet, path = mixed_fleet, adapter_for("transformers", tmp_path)
    plain = fleet.says("dense", body=REAL)
    pid = fleet.models()["dense"]["pid"]
    assert fleet.ask("tuned").status_code == 404
    async with Load(fleet.server.url, ["dense"], streams=1, wholes=1, max_tokens=8) as load:
        await load.answers_for_all(streams=True)
        added = await asyncio.to_thread(fleet.order, "adapters", {"model": "dense", "name": "tuned", "path": path})
        assert added["adapters"] == ["tuned"] and added["pid"] == pid
        assert "tuned" in fleet.listed() and fleet.described("dense")["adapters"] == ["tuned"]
        assert (await asyncio.to_thread(fleet.says, "tuned", body=REAL)) != plain
        await asyncio.to_thread(fleet.order, "adapters/remove", {"model": "dense", "name": "tuned"})
        await load.answers_for_all(streams=True)
    _unharmed(load)
    assert fleet.ask("tuned").status_code == 404 and "tuned" not in fleet.listed()
    assert fleet.says("dense", body=REAL) == plain
    assert fleet.models()["dense"]["pid"] == pid


async def test_in_a_worker_that_takes_over(mixed_fleet: Fleet, tmp_path: Path) -> None:
    """llama.cpp reads adapters with the model only: a new worker comes, and nobody notices."""
    fleet, path = mixed_fleet, adapter_for("llamacpp", tmp_path)
    plain = fleet.says("small", body=REAL)
    pid = fleet.models()["small"]["pid"]
    async with Load(fleet.server.url, ["small"], streams=2, wholes=2, max_tokens=16) as load:
        await load.answers_for_all(streams=True)
        added = await asyncio.to_thread(fleet.order, "adapters", {"model": "small", "name": "tiny", "path": path})
        assert added["adapters"] == ["tiny"] and added["pid"] != pid
        assert (await asyncio.to_thread(fleet.says, "tiny", body=REAL)) != plain
        await load.answers_for_all(streams=True)
        removed = await asyncio.to_thread(fleet.order, "adapters/remove", {"model": "small", "name": "tiny"})
        assert removed["adapters"] == [] and removed["pid"] not in (pid, added["pid"])
        await load.answers_for_all(streams=True)
    _unharmed(load)
    assert fleet.ask("tiny").status_code == 404
    assert fleet.says("small", body=REAL) == plain


def _unharmed(load: Load) -> None:
    assert load.streamed.whole + load.unstreamed.whole == load.asked == load.ended > 0


@pytest.mark.parametrize("model", ["small", "dense"])
def test_an_adapter_that_is_none_changes_nothing(mixed_fleet: Fleet, model: str, tmp_path: Path) -> None:
    said = mixed_fleet.says(model, body=REAL)
    (tmp_path / "none").write_text("no adapter")
    refused = mixed_fleet.try_order("adapters", {"model": model, "name": "none", "path": str(tmp_path / "none")})
    assert refused.status_code in (400, 503), refused.text
    assert "none" not in mixed_fleet.listed() and mixed_fleet.models()[model]["adapters"] == []
    assert mixed_fleet.says(model, body=REAL) == said
