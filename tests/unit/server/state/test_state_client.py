"""The state store's thread: what happens to the event loop, to errors, and to other processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from enginebay.config.sections.server_section import StateLimits
from enginebay.errors import ConfigError, StateUnavailable
from enginebay.server.state import state_client, state_schema
from enginebay.server.state.state_client import StateClient, check_state_file
from enginebay.server.state.state_store import StateStore
from enginebay.server.state.stored_records import NewResponse, NotStored, StoredItem

LIMITS = StateLimits(max_bytes=4 << 20)
NEW = NewResponse("resp_1", "completed", b"{}", [StoredItem("msg_1", b"hi")])


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[StateClient]:
    client = StateClient(tmp_path / "state", LIMITS)
    yield client
    await asyncio.to_thread(client.close)


async def test_calls_run_in_one_thread_and_in_order(state: StateClient) -> None:
    threads: list[str] = []

    def note(_: StateStore, number: int) -> int:
        threads.append(threading.current_thread().name)
        return number

    assert await asyncio.gather(*(state.call(note, number) for number in range(20))) == list(range(20))
    assert len(set(threads)) == 1 and threading.current_thread().name not in threads


async def test_the_event_loop_goes_on_while_the_disk_is_slow(state: StateClient) -> None:
    release = threading.Event()
    slow = asyncio.ensure_future(state.call(lambda _: release.wait(30)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not slow.done()
    release.set()
    assert await slow


async def test_a_cancelled_caller_does_not_cut_a_write(state: StateClient) -> None:
    begun, release = threading.Event(), threading.Event()

    def add(store: StateStore) -> None:
        begun.set()
        release.wait(30)
        store.add_response("a", NEW)

    writing = asyncio.ensure_future(state.call(add))
    await asyncio.to_thread(begun.wait, 30)
    writing.cancel()
    release.set()
    found = await state.call(StateStore.load_history, "a", "resp_1")
    assert found == [b"hi"]


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (NotStored("too large"), "too large"),
        (OSError(28, "No space left on device"), "No space left"),
        (sqlite3.OperationalError("odd"), "cannot be used"),
    ],
)
async def test_what_cannot_be_stored_has_a_reason(state: StateClient, problem: Exception, reason: str) -> None:
    def fail(_: StateStore) -> None:
        raise problem

    assert reason in await state.write(fail)
    assert await state.write(StateStore.add_response, "a", NEW) == "", "the next one is stored"


async def add_all(state: StateClient, responses: Sequence[NewResponse], owner: str = "a") -> list[str]:
    return await asyncio.gather(*(state.add_response(owner, lambda new=new: new) for new in responses))


async def test_responses_that_wait_share_a_transaction(state: StateClient) -> None:
    statements: list[str] = []
    release = threading.Event()
    await state.call(lambda store: store._database.set_trace_callback(statements.append))
    blocked = asyncio.ensure_future(state.call(lambda _: release.wait(30)))
    await asyncio.sleep(0)
    responses = [NewResponse(f"resp_{n}", "completed", b"{}", [StoredItem(f"i{n}", b"in")]) for n in range(200)]
    adding = asyncio.ensure_future(add_all(state, responses))
    await asyncio.sleep(0)
    release.set()
    await blocked
    assert await adding == [""] * 200
    assert statements.count("COMMIT") == 4, "at most 64 in each"
    for new in responses:
        assert await state.call(StateStore.load_history, "a", new.id) == [b"in"]
        assert await state.call(StateStore.get_response, "b", new.id) is None


async def test_one_response_of_a_batch_is_refused_alone(state: StateClient) -> None:
    release = threading.Event()
    blocked = asyncio.ensure_future(state.call(lambda _: release.wait(30)))
    await asyncio.sleep(0)
    good, twice = NewResponse("resp_1", "completed", b"{}"), NewResponse("resp_2", "completed", b"{}")
    large = NewResponse("resp_3", "completed", b"." * LIMITS.max_bytes)
    orphan = NewResponse("resp_4", "completed", b"{}", previous="resp_gone")
    adding = asyncio.ensure_future(add_all(state, [good, large, twice, twice, orphan]))
    await asyncio.sleep(0)
    release.set()
    await blocked
    reasons = await adding
    assert reasons[0] == reasons[2] == "" and "at most" in reasons[1] and "deleted" in reasons[4]
    assert "cannot be used" in reasons[3], "its id is taken"
    assert await state.call(StateStore.get_response, "a", "resp_1") is not None
    assert await state.call(StateStore.get_response, "a", "resp_3") is None


async def test_a_busy_file_keeps_a_batch_waiting_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_schema, "_BUSY_TIMEOUT_S", 0.2)
    state = StateClient(tmp_path / "state", LIMITS)
    await state.call(StateStore.count_used_bytes)
    other = sqlite3.connect(tmp_path / "state" / "responses.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waits: list[str] = []
    monkeypatch.setattr(StateStore, "add_response", lambda *_: waits.append("alone"))
    began = time.monotonic()
    reasons = await add_all(state, [NewResponse(f"resp_{n}", "completed", b"{}") for n in range(40)])
    assert set(reasons[1:]) == {"the state file is busy"} and len(waits) <= 1
    assert time.monotonic() - began < 4, "40 waits of 0.2 s"
    other.execute("ROLLBACK")
    other.close()
    await asyncio.to_thread(state.close)


async def test_nobody_waits_for_a_store_that_is_closed(tmp_path: Path) -> None:
    state = StateClient(tmp_path / "state", LIMITS)
    release = threading.Event()
    blocked = asyncio.ensure_future(state.call(lambda _: release.wait(30)))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(state.add_response("a", lambda: NEW))
    await asyncio.sleep(0)
    closing = asyncio.create_task(asyncio.to_thread(state.close))
    await asyncio.sleep(0.05)
    release.set()
    await asyncio.gather(blocked, closing)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 10)
    for _ in range(2):
        assert await asyncio.wait_for(state.add_response("a", lambda: NEW), 10) == "the server is stopping"


async def test_an_encoder_that_fails_keeps_nobody_waiting(state: StateClient) -> None:
    def fail() -> NewResponse:
        raise ValueError("odd")

    failed, stored = await asyncio.gather(
        state.add_response("a", fail), state.add_response("a", lambda: NEW), return_exceptions=True
    )
    assert isinstance(failed, ValueError) and stored == ""


async def test_a_full_disk_is_named(state: StateClient) -> None:
    def fill(store: StateStore) -> None:
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages}")

    await state.call(fill)
    large = NewResponse("resp_2", "completed", b"{}", [StoredItem("x", b"." * 200_000)])
    assert await state.write(StateStore.add_response, "a", large) == "the disk is full"
    assert await state.call(StateStore.get_response, "a", "resp_2") is None


async def test_a_damaged_file_does_not_stop_the_server(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "responses.db").write_bytes(b"not a database" * 1000)
    state = StateClient(tmp_path / "state", LIMITS)
    assert await state.write(StateStore.add_response, "a", NEW) == "the state file is damaged"
    with pytest.raises(StateUnavailable):
        await state.call(StateStore.get_response, "a", "resp_1")
    (tmp_path / "state" / "responses.db").unlink()
    assert await state.write(StateStore.add_response, "a", NEW) == "", "once it is moved away"
    await asyncio.to_thread(state.close)


async def test_too_many_calls_are_refused(state: StateClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_client, "_WAITING", 2)
    release = threading.Event()
    waiting = [asyncio.ensure_future(state.call(lambda _: release.wait(30))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(StateUnavailable, match="too many"):
        await state.call(StateStore.get_response, "a", "x")
    release.set()
    await asyncio.gather(*waiting)


def test_a_newer_file_keeps_the_server_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    check_state_file(StateLimits(0))
    assert not (tmp_path / "state").exists(), "off: nothing is made"
    check_state_file(LIMITS)
    database = sqlite3.connect(tmp_path / "state" / "responses.db")
    database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(ConfigError, match="schema version 2"):
        check_state_file(LIMITS)


async def test_a_process_that_is_killed_is_known_to_be_dead(state: StateClient, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from enginebay.server.state.runner_locks import RunnerLock\n"
        "lock = RunnerLock(Path(sys.argv[1])); print(lock.runner, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "state" / "runners")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        runner = process.stdout.readline().strip()
        assert state.is_alive(runner) and state.is_alive(state.runner)
        os.kill(process.pid, signal.SIGKILL)
    assert not state.is_alive(runner) and not state.is_alive(runner)
    assert not state.is_alive("../../etc/passwd") and not state.is_alive("never")


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    """Each is killed at a random moment: what it reported is there, and everything that is there is whole."""
    code = (
        "import sys; from pathlib import Path\n"
        "from enginebay.config.sections.server_section import StateLimits\n"
        "from enginebay.server.state.state_store import StateStore\n"
        "from enginebay.server.state.stored_records import NewResponse, StoredItem, make_id\n"
        "store = StateStore(Path(sys.argv[1]), StateLimits(64 << 20)); previous = None\n"
        "while True:\n"
        "    items = [StoredItem(make_id('msg'), b'x' * 3000) for _ in range(8)]\n"
        "    new = NewResponse(make_id('resp'), 'completed', b'{}', items[:4], items[4:], previous)\n"
        "    store.add_response(sys.argv[2], new); previous = new.id; print(new.id, flush=True)\n"
    )
    path = tmp_path / "responses.db"
    reported: dict[str, list[str]] = {"a": [], "b": []}
    for round_ in range(3):
        processes = {
            owner: subprocess.Popen([sys.executable, "-c", code, str(path), owner], stdout=subprocess.PIPE, text=True)
            for owner in reported
        }
        for process in processes.values():
            assert process.stdout is not None and process.stdout.readable()
        first = {owner: process.stdout.readline().strip() for owner, process in processes.items()}  # type: ignore[union-attr]
        time.sleep(0.05 + 0.07 * round_)
        for owner, process in processes.items():
            process.kill()
            rest, _ = process.communicate()
            reported[owner] += [first[owner], *(line for line in rest.split("\n")[:-1] if len(line) == 53)]
    store = StateStore(path, StateLimits(64 << 20))
    assert store._database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    for owner, ids in reported.items():
        for response_id in ids:
            assert store.load_history(owner, response_id), "what was reported is stored"
            assert store.get_response("ab"[owner == "a"], response_id) is None
    counts = store._database.execute("SELECT count(*) FROM items GROUP BY response").fetchall()
    assert counts and {count for (count,) in counts} == {8}, "a response is there with all its items, or not at all"


async def test_what_is_old_is_deleted_from_a_quiet_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_client, "_EXPIRY_S", 0.01)
    folder = tmp_path / "state"
    folder.mkdir()
    with_past = StateStore(folder / "responses.db", LIMITS, lambda: time.time() - 2 * LIMITS.max_age_s)
    for number in range(300):  # more than one call deletes
        with_past.add_response("a", NewResponse(f"resp_{number}", "completed", b"{}"))
    with_past.close()
    client = StateClient(folder, LIMITS)
    reader = sqlite3.connect(folder / "responses.db")
    async with asyncio.timeout(30):
        while reader.execute("SELECT count(*) FROM chains").fetchone()[0]:
            await asyncio.sleep(0.01)
    reader.close()
    await asyncio.to_thread(client.close)
