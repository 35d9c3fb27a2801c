"""Several replicas of one model on the fake engine: spread, affinity, scaling, updates and crashes."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet.background_clients import BackgroundWorkload
from tests.integration.fleet.fleet_client import FleetClient, fake_model, run_fleet
from tests.integration.fleet.server_site import find_workers_for, wait_until
from tests.integration.fleet.test_changes import configured

HEADER = "x-enginebay-replica"
LONG = "You are a careful assistant. " * 20  # two blocks of the fake engine's tokens, which are bytes


def list_awake(fleet: FleetClient, model: str = "toy") -> list[str]:
    rows = fleet.list_admin_models().values()
    return [row["name"] for row in rows if row["model"] == model and row["state"] == "awake"]


def wait_awake(fleet: FleetClient, count: int, within_s: float = 60) -> None:
    wait_until(lambda: len(list_awake(fleet)) == count, within_s, f"{count} awake replicas")


async def ask_all(fleet: FleetClient, count: int, **fields: Any) -> list[Any]:
    return await asyncio.gather(*(asyncio.to_thread(fleet.ask, "toy", **fields) for _ in range(count)))


def assert_unharmed(load: BackgroundWorkload) -> None:
    assert (load.streamed.refused, load.unstreamed.refused, load.streamed.told, load.lost) == ({}, {}, {}, [])
    assert load.streamed.whole + load.unstreamed.whole == load.asked == load.ended > 0


@pytest.mark.parametrize("workers", [1, 2])
async def test_requests_are_spread_over_replicas(tmp_path: Path, workers: int) -> None:
    models = {"toy": fake_model(load="start", replicas=2, step_s=0.02)}
    with run_fleet(models, tmp_path, server={"workers": workers}) as fleet:
        wait_awake(fleet, 2)
        assert list_awake(fleet) == ["toy", "toy#2"]
        wait_until(lambda: fleet.ask("toy").headers[HEADER] == "toy#2", 30, "a request to the second one")
        answers = await ask_all(fleet, 16, max_tokens=40)
        assert [answer.status_code for answer in answers] == [200] * 16
        used = Counter(answer.headers[HEADER] for answer in answers)
        assert used.keys() == {"toy", "toy#2"} and min(used.values()) >= (8 if workers == 1 else 3)
        assert fleet.read_metric("enginebay_replica_requests_total", model="toy", reason="load") >= 17
        assert fleet.read_metric("enginebay_replicas_ready", model="toy") == 2
        assert fleet.read_metric("enginebay_replica_prompt_tokens_total", replica="toy#2") > 0
        assert len(fleet.list_models()) == 1


async def test_what_belongs_together_goes_to_one_replica(tmp_path: Path) -> None:
    with run_fleet({"toy": fake_model(load="start", replicas=4)}, tmp_path) as fleet:
        wait_awake(fleet, 4)

        def ask(headers: dict[str, str] | None = None, **fields: Any) -> str:
            answer = fleet.ask("toy", headers, **fields)
            assert answer.status_code == 200, answer.text
            return str(answer.headers[HEADER])

        wait_until(lambda: len({ask() for _ in range(8)}) == 4, 30, "connections to all")
        by_session = {name: {ask({"x-session-id": name}) for _ in range(4)} for name in "abcdefgh"}
        assert all(len(used) == 1 for used in by_session.values())
        assert len(set.union(*by_session.values())) > 1
        assert ask(prompt_cache_key="a") == ask({"session_id": "a"}) == by_session["a"].pop()
        talk = [{"role": "user", "content": LONG}]
        home = ask(messages=talk)
        for turn in range(3):
            talk += [{"role": "assistant", "content": f"Answer {turn}."}, {"role": "user", "content": "Go on."}]
            assert ask(messages=talk) == home
        assert fleet.read_metric("enginebay_replica_requests_total", replica=home, reason="prefix") == 3


@pytest.mark.slow
async def test_replicas_follow_the_load(tmp_path: Path) -> None:
    """From one to four, to none, and to one again for the next request."""
    policy = {"min": 0, "max": 4, "target_running": 2, "idle_s": 2}
    with run_fleet({"toy": fake_model(load="start", replicas=policy, step_s=0.005)}, tmp_path) as fleet:
        assert list_awake(fleet) == ["toy"]
        async with BackgroundWorkload(fleet.server.url, ["toy"], streams=6, wholes=6) as load:
            await asyncio.to_thread(wait_awake, fleet, 4)
            await load.wait_answers_for_all(streams=True)
        assert_unharmed(load)
        wait_until(lambda: fleet.read_states() == {"toy": "cold"}, 60, "the replicas are unloaded")
        assert fleet.ask("toy").status_code == 200
        assert list_awake(fleet) == ["toy"]
        added, removed = fleet.read_log(event="adding a replica"), fleet.read_log(event="removing a replica")
        assert [line["replica"] for line in added[:3]] == ["toy#2", "toy#3", "toy#4"]
        assert all("requests run" in line["reason"] for line in added)
        assert removed and removed[-1]["reason"] == "no request for 2 s"


async def test_waiting_requests_add_a_replica_that_never_evicts(tmp_path: Path) -> None:
    """There is memory for three models of which one is another: the third replica finds none."""
    policy = {"max": 3, "idle_s": 60}
    models = {
        "toy": fake_model(load="start", replicas=policy, step_s=0.01, max_batch=2, memory_bytes=1 << 20),
        "other": fake_model(load="start", memory_bytes=1 << 20),
    }
    with run_fleet(models, tmp_path, memory_bytes=3 << 20) as fleet:
        async with BackgroundWorkload(fleet.server.url, ["toy"], streams=6, wholes=6) as load:
            await asyncio.to_thread(wait_awake, fleet, 2)
            wait = "no free memory for another replica"
            await asyncio.to_thread(wait_until, lambda: fleet.read_log(event=wait), 30, wait)
            await load.wait_answers_for_all(streams=True)
        assert_unharmed(load)
        assert fleet.read_states() == {"toy": "awake", "toy#2": "awake", "other": "awake"}


async def test_commands_act_on_all_replicas(tmp_path: Path) -> None:
    models = {"toy": fake_model(load="start", replicas=3), "other": fake_model()}
    with run_fleet(models, tmp_path) as fleet:
        wait_awake(fleet, 3)
        fleet.post_admin("sleep", {"model": "toy"})
        assert fleet.read_states() == {"toy": "asleep", "toy#2": "asleep", "toy#3": "asleep", "other": "cold"}
        assert fleet.ask("toy").status_code == 200
        wait_awake(fleet, 3)
        fleet.post_admin("unload", {"model": "toy"})
        assert fleet.read_states() == {"toy": "cold", "other": "cold"}
        assert fleet.post_admin("load", {"model": "toy"})["state"] == "awake"
        wait_awake(fleet, 3)
        fleet.post_admin("switch", {"from": "toy", "to": "other"})
        assert list_awake(fleet) == [] and list_awake(fleet, "other") == ["other"]


@pytest.mark.parametrize("room", ["beside", "in place"])
async def test_replicas_are_replaced_one_by_one_under_load(tmp_path: Path, room: str) -> None:
    """With memory for another worker, and without."""

    def make(length: int, replicas: int = 3) -> dict[str, Any]:
        settings = {"step_s": 0.004, "context_length": length, "memory_bytes": 1 << 20}
        return {"toy": fake_model(load="start", replicas=replicas, **settings)}

    limits: dict[str, Any] = {} if room == "beside" else {"fleet": {"memory_bytes": 3 << 20}}
    with configured(tmp_path, make(512), tmp_path, **limits) as fleet:
        wait_awake(fleet, 3)
        before = {worker.pid for worker in find_workers_for(fleet.server, "toy")}
        async with BackgroundWorkload(fleet.server.url, ["toy"], streams=6, wholes=6) as load:
            await load.wait_answers_for_all(streams=True)
            fleet.write(make(1024), **limits)
            told = await asyncio.to_thread(fleet.post_admin, "reload")
            assert told["changed"] == ["toy"]
            await load.wait_answers_for_all(2, streams=True)
            await asyncio.to_thread(wait_awake, fleet, 3)
            after = {row["pid"] for row in fleet.list_admin_models().values()}
            assert not after & before and len(after) == 3
            fleet.write(make(1024, replicas=2), **limits)
            await asyncio.to_thread(fleet.post_admin, "reload")
            await asyncio.to_thread(wait_awake, fleet, 2)
            await load.wait_answers_for_all(streams=True)
        assert_unharmed(load)
        assert fleet.describe_model("toy")["context_length"] == 1024


async def test_one_replica_is_killed_under_load(tmp_path: Path) -> None:
    """The other answers what had no output yet; the first comes back."""
    models = {"toy": fake_model(load="start", replicas=2, step_s=0.01)}
    with run_fleet(models, tmp_path, backoff_s=0.05, restarts=100) as fleet:
        wait_awake(fleet, 2)
        async with BackgroundWorkload(fleet.server.url, ["toy"], streams=0, wholes=8) as load:
            for _ in range(3):
                await load.wait_answers_for_all()
                [victim, kept] = find_workers_for(fleet.server, "toy")
                victim.kill()
                await load.wait_answers_for_all()
                assert kept.is_running()
                await asyncio.to_thread(wait_awake, fleet, 2)
        assert_unharmed(load)
        assert len(fleet.read_log(event="worker died")) == 3
        assert fleet.read_metric("enginebay_worker_deaths_total", model="toy") == 3


async def test_a_deadly_request_takes_one_replica_at_a_time(tmp_path: Path) -> None:
    """It is tried on one replica alone, while the others go on."""
    models = {"toy": fake_model(load="start", replicas=3, step_s=0.005, crash_on_prompt="deadly")}
    with run_fleet(models, tmp_path, backoff_s=0.05, restarts=100) as fleet:
        wait_awake(fleet, 3)
        async with BackgroundWorkload(fleet.server.url, ["toy"], streams=0, wholes=6) as load:
            await load.wait_answers_for_all()
            deadly = [{"role": "user", "content": "deadly"}]
            answer = await asyncio.to_thread(fleet.ask, "toy", messages=deadly)
            assert answer.status_code == 422 and "ended two workers" in answer.text
            await load.wait_answers_for_all()
        assert_unharmed(load)
        assert len(fleet.read_log(event="worker died")) == 2
