"""LoRA adapters are added and removed while their model serves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.contract.lora_adapters import make_adapter
from tests.integration.fleet.background_clients import BackgroundWorkload
from tests.integration.fleet.fleet_client import REAL, FleetClient


@pytest.mark.slow
async def test_in_the_running_worker(mixed_fleet: FleetClient, tmp_path: Path) -> None:
    """Transformers loads adapters without a restart."""
    fleet, path = mixed_fleet, make_adapter("transformers", tmp_path)
    plain = fleet.ask_text("dense", body=REAL)
    pid = fleet.list_admin_models()["dense"]["pid"]
    assert fleet.ask("tuned").status_code == 404
    async with BackgroundWorkload(fleet.server.url, ["dense"], streams=1, wholes=1, max_tokens=8) as load:
        await load.wait_answers_for_all(streams=True)
        added = await asyncio.to_thread(fleet.post_admin, "adapters", {"model": "dense", "name": "tuned", "path": path})
        assert added["adapters"] == ["tuned"] and added["pid"] == pid
        assert "tuned" in fleet.list_models() and fleet.describe_model("dense")["adapters"] == ["tuned"]
        assert (await asyncio.to_thread(fleet.ask_text, "tuned", body=REAL)) != plain
        await asyncio.to_thread(fleet.post_admin, "adapters/remove", {"model": "dense", "name": "tuned"})
        await load.wait_answers_for_all(streams=True)
    _unharmed(load)
    assert fleet.ask("tuned").status_code == 404 and "tuned" not in fleet.list_models()
    assert fleet.ask_text("dense", body=REAL) == plain
    assert fleet.list_admin_models()["dense"]["pid"] == pid


@pytest.mark.slow
async def test_in_a_worker_that_takes_over(mixed_fleet: FleetClient, tmp_path: Path) -> None:
    """llama.cpp loads adapters only with the model: a new worker takes over unnoticed."""
    fleet, path = mixed_fleet, make_adapter("llamacpp", tmp_path)
    plain = fleet.ask_text("small", body=REAL)
    pid = fleet.list_admin_models()["small"]["pid"]
    async with BackgroundWorkload(fleet.server.url, ["small"], streams=2, wholes=2, max_tokens=16) as load:
        await load.wait_answers_for_all(streams=True)
        added = await asyncio.to_thread(fleet.post_admin, "adapters", {"model": "small", "name": "tiny", "path": path})
        assert added["adapters"] == ["tiny"] and added["pid"] != pid
        assert (await asyncio.to_thread(fleet.ask_text, "tiny", body=REAL)) != plain
        await load.wait_answers_for_all(streams=True)
        removed = await asyncio.to_thread(fleet.post_admin, "adapters/remove", {"model": "small", "name": "tiny"})
        assert removed["adapters"] == [] and removed["pid"] not in (pid, added["pid"])
        await load.wait_answers_for_all(streams=True)
    _unharmed(load)
    assert fleet.ask("tiny").status_code == 404
    assert fleet.ask_text("small", body=REAL) == plain


def _unharmed(load: BackgroundWorkload) -> None:
    assert load.streamed.whole + load.unstreamed.whole == load.asked == load.ended > 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["small", "dense"])
def test_an_invalid_adapter_changes_nothing(mixed_fleet: FleetClient, model: str, tmp_path: Path) -> None:
    said = mixed_fleet.ask_text(model, body=REAL)
    (tmp_path / "none").write_text("no adapter")
    refused = mixed_fleet.try_post_admin("adapters", {"model": model, "name": "none", "path": str(tmp_path / "none")})
    assert refused.status_code in (400, 503), refused.text
    assert "none" not in mixed_fleet.list_models() and mixed_fleet.list_admin_models()[model]["adapters"] == []
    assert mixed_fleet.ask_text(model, body=REAL) == said
