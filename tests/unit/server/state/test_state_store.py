"""The state store: what it keeps, for whom, and how much."""

from __future__ import annotations

import random
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from enginebay.config.sections.server_section import StateLimits
from enginebay.errors import ConfigError
from enginebay.server.state.state_store import StateStore
from enginebay.server.state.stored_records import (
    NewResponse,
    NotStored,
    PageQuery,
    StoredItem,
    UnknownItem,
    make_id,
)

LARGE = StateLimits(max_bytes=64 << 20)
Open = Callable[..., StateStore]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock) -> Open:
    return lambda limits=LARGE: StateStore(tmp_path / "state" / "responses.db", limits, clock)


def items(*names: str, size: int = 0) -> list[StoredItem]:
    return [StoredItem(name, name.encode() + b"." * size) for name in names]


def add(store: StateStore, owner: str, *, previous: str | None = None, size: int = 0, name: str = "x") -> str:
    new = NewResponse(
        make_id("resp"), "completed", b"{}", items(f"in-{name}", size=size), items(f"out-{name}"), previous=previous
    )
    store.add_response(owner, new)
    return new.id


def test_a_chain_is_its_turns_in_order(open_store: Open) -> None:
    store = open_store()
    first = add(store, "a", name="1")
    second = add(store, "a", name="2", previous=first)
    other = add(store, "a", name="3", previous=first)  # a branch
    assert store.load_history("a", second) == [b"in-1", b"out-1", b"in-2", b"out-2"]
    assert store.load_history("a", other) == [b"in-1", b"out-1", b"in-3", b"out-3"]


def test_another_key_sees_nothing(open_store: Open) -> None:
    store = open_store()
    mine = add(store, "a", name="secret")
    store.add_conversation("a", "conv_a", b"{}", items("msg"))
    assert store.get_response("b", mine) is None and store.load_history("b", mine) is None
    assert store.find_items("b", ["in-secret", "msg"]) == {} and store.list_input_items("b", mine, PageQuery()) is None
    assert not store.delete_response("b", mine) and not store.delete_conversation("b", "conv_a")
    assert store.load_conversation("b", "conv_a") is None and store.set_metadata("b", "conv_a", b"1") is None
    assert store.get_conversation_item("b", "conv_a", "msg") is None
    assert not store.add_conversation_items("b", "conv_a", items("x"))
    assert not store.delete_conversation_item("b", "conv_a", "msg")
    with pytest.raises(NotStored):
        add(store, "b", previous=mine)
    assert store.find_items("a", ["in-secret", "msg"]) == {"in-secret": b"in-secret", "msg": b"msg"}


def test_it_survives_a_reopening(open_store: Open) -> None:
    store = open_store()
    mine = add(store, "a", name="1")
    store.close()
    assert open_store().load_history("a", mine) == [b"in-1", b"out-1"]


def test_a_deleted_turn_breaks_its_chain_and_only_that(open_store: Open) -> None:
    store = open_store()
    first = add(store, "a", name="1")
    second = add(store, "a", name="2", previous=first)
    alone = add(store, "a", name="3")
    assert store.delete_response("a", first) and not store.delete_response("a", first)
    assert store.get_response("a", second) is not None and store.load_history("a", second) is None
    assert store.find_items("a", ["in-1"]) == {}
    assert store.load_history("a", alone) == [b"in-3", b"out-3"]


def test_pages(open_store: Open) -> None:
    store = open_store()
    names = [f"m{number}" for number in range(5)]
    store.add_conversation("a", "conv", b"{}", items(*names))

    def read(**query: object) -> tuple[list[str], bool]:
        page = store.list_conversation_items("a", "conv", PageQuery(**query))  # type: ignore[arg-type]
        assert page is not None
        return [item.id for item in page.items], page.has_more

    assert read() == (names[::-1], False)
    assert read(order="asc", limit=2) == (["m0", "m1"], True)
    assert read(order="asc", limit=2, after="m1") == (["m2", "m3"], True)
    assert read(order="asc", limit=2, after="m3") == (["m4"], False)
    assert read(limit=2, after="m3") == (["m2", "m1"], True)
    with pytest.raises(UnknownItem):
        read(after="elsewhere")


def test_a_page_of_large_items_ends_early(open_store: Open) -> None:
    store = open_store()
    store.add_conversation("a", "conv", b"{}", items("m0", "m1", "m2", size=1000))
    query = PageQuery(order="asc", max_bytes=2500)
    page = store.list_conversation_items("a", "conv", query)
    assert page is not None and [item.id for item in page.items] == ["m0", "m1"] and page.has_more
    one = store.list_conversation_items("a", "conv", PageQuery(order="asc", max_bytes=1))
    assert one is not None and [item.id for item in one.items] == ["m0"] and one.has_more, "never an empty page"


def test_items_of_a_response_join_its_conversation_and_outlive_it(open_store: Open) -> None:
    store = open_store()
    store.add_conversation("a", "conv", b"{}", items("m0"))
    new = NewResponse("resp_1", "completed", b"{}", items("in"), items("out"), conversation="conv")
    store.add_response("a", new)
    assert store.load_conversation("a", "conv") == [b"m0", b"in", b"out"]
    store.delete_response("a", "resp_1")
    assert store.load_conversation("a", "conv") == [b"m0", b"in", b"out"]
    assert store.delete_conversation_item("a", "conv", "in")
    assert store.load_conversation("a", "conv") == [b"m0", b"out"]
    assert store.delete_conversation("a", "conv") and store.find_items("a", ["m0"]) == {}


def test_what_is_not_used_expires_and_what_is_used_does_not(open_store: Open, clock: Clock) -> None:
    store = open_store(StateLimits(max_bytes=64 << 20, max_age_s=100))
    unused, used = add(store, "a", name="1"), add(store, "a", name="2")
    clock.now += 60
    assert store.load_history("a", used) is not None
    clock.now += 60
    assert store.get_response("a", unused) is None and store.find_items("a", ["in-1"]) == {}
    assert store.get_response("a", used) is not None
    add(store, "a")  # a write deletes what has expired
    database = sqlite3.connect(store._database.execute("PRAGMA database_list").fetchone()[2])
    assert database.execute("SELECT count(*) FROM items WHERE id = 'in-1'").fetchone() == (0,)


def test_the_file_is_bounded_and_the_oldest_go_first(open_store: Open, clock: Clock, tmp_path: Path) -> None:
    limit = 4 << 20
    store = open_store(StateLimits(max_bytes=limit))
    stored = []
    for _ in range(400):
        clock.now += 1
        stored.append(add(store, "a", size=50_000))
    kept = [name for name in stored if store.get_response("a", name) is not None]
    assert kept == stored[-len(kept) :] and 30 < len(kept) < 90
    assert (tmp_path / "state" / "responses.db").stat().st_size <= limit
    used = sum(path.stat().st_size for path in (tmp_path / "state").iterdir())
    assert used <= limit + (8 << 20), "the write-ahead log is bounded too"


def test_a_key_that_stores_much_does_not_displace_another(open_store: Open, clock: Clock) -> None:
    store = open_store(StateLimits(max_bytes=4 << 20))
    small = [add(store, "small", size=1000) for _ in range(20)]
    for _ in range(300):
        clock.now += 1
        add(store, "large", size=50_000)
    assert all(store.get_response("small", name) is not None for name in small)


def test_what_is_too_large_is_refused_and_evicts_nothing(open_store: Open) -> None:
    store = open_store(StateLimits(max_bytes=4 << 20))
    kept = add(store, "a")
    with pytest.raises(NotStored, match="an eighth"):
        add(store, "a", size=1 << 20)
    with pytest.raises(NotStored, match="an eighth"):  # turn by turn
        for _ in range(20):
            kept = add(store, "a", size=100_000, previous=kept)
    assert store.load_history("a", kept) is not None


def test_only_the_owner_of_the_file_can_read_it(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    add(store, "a")
    for path in (tmp_path / "state").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("pragma", "message"), [("user_version = 99", "schema version 99"), ("application_id = 7", "not a state file")]
)
def test_a_newer_or_foreign_file_is_refused(open_store: Open, tmp_path: Path, pragma: str, message: str) -> None:
    open_store().close()
    with sqlite3.connect(tmp_path / "state" / "responses.db") as database:
        database.execute(f"PRAGMA {pragma}")
    database.close()
    with pytest.raises(ConfigError, match=message) as error:
        open_store()
    assert "server.state: off" in error.value.hint


def test_two_stores_on_one_file(open_store: Open) -> None:
    one, two = open_store(), open_store()
    first = add(one, "a", name="1")
    second = add(two, "a", name="2", previous=first)
    assert one.load_history("a", second) == [b"in-1", b"out-1", b"in-2", b"out-2"]


def test_a_full_disk_leaves_nothing_half_written(open_store: Open) -> None:
    store = open_store()
    kept = add(store, "a", name="1")
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count = {pages + 4}")  # SQLite fails just as on a full disk
    with pytest.raises(sqlite3.OperationalError, match="full"):
        add(store, "a", name="2", size=1 << 20)
    assert store.load_history("a", kept) == [b"in-1", b"out-1"] and store.find_items("a", ["in-2"]) == {}
    store._database.execute("PRAGMA max_page_count = 100000")
    add(store, "a", name="2", size=1 << 20)
    assert len(store.find_items("a", ["in-2"])) == 1


def test_responses_in_the_background(open_store: Open) -> None:
    store = open_store()
    new = NewResponse("resp_1", "queued", b'{"status":"queued"}', items("in"), runner="r1")
    store.add_response("a", new)
    assert store.list_running("r1") == {"resp_1"} and store.list_running("r2") == set()
    store.set_running_body("resp_1", "r1", "in_progress", b"2")
    assert not store.finish_response("resp_1", "r2", "completed", b"3", items("out")), "of another process"
    store.append_events("resp_1", 0, b"0 1 2")
    store.append_events("resp_1", 3, b"3 4")
    store.append_events("resp_1", 5, b"5")
    assert store.read_events("a", "resp_1", 4) == ([(3, b"3 4"), (5, b"5")], "in_progress")
    assert store.read_events("a", "resp_1", -1) == ([(0, b"0 1 2"), (3, b"3 4"), (5, b"5")], "in_progress")
    assert store.read_events("b", "resp_1", -1) is None
    assert store.finish_response("resp_1", "r1", "completed", b"3", items("out"))
    assert not store.finish_response("resp_1", "r1", "failed", b"4"), "it has ended"
    assert store.load_history("a", "resp_1") == [b"in", b"out"] and store.list_running("r1") == set()


@pytest.mark.parametrize("seed", range(5))
def test_random_operations_agree_with_a_model(open_store: Open, clock: Clock, seed: int) -> None:
    """Histories are those of a plain dictionary, and the counts of bytes those of the rows."""
    rng, store = random.Random(seed), open_store()
    model: dict[str, dict[str, tuple[str | None, list[bytes]]]] = {"a": {}, "b": {}}
    for number in range(400):
        clock.now += 1
        owner = rng.choice("ab")
        turns = model[owner]
        if turns and rng.random() < 0.15:
            gone = rng.choice(list(turns))
            assert store.delete_response(owner, gone)
            del turns[gone]
            continue
        previous = rng.choice(list(turns)) if turns and rng.random() < 0.7 else None
        name = add(store, owner, previous=previous, name=str(number), size=rng.randrange(50))
        turns[name] = previous, [*store.load_history(owner, name)[-2:]] if _is_whole(turns, previous) else []  # type: ignore[index]
    for owner, turns in model.items():
        for name in turns:
            expected = _join(turns, name)
            assert store.load_history(owner, name) == expected
            assert store.load_history("ab"[owner == "a"], name) is None
    rows = store._database.execute(
        "SELECT owner, sum(bytes), (SELECT bytes FROM owners WHERE owners.owner = chains.owner) FROM chains GROUP BY owner"
    ).fetchall()
    assert rows and all(total == counted for _, total, counted in rows)


def _is_whole(turns: dict[str, tuple[str | None, list[bytes]]], name: str | None) -> bool:
    while name is not None:
        if name not in turns:
            return False
        name = turns[name][0]
    return True


def _join(turns: dict[str, tuple[str | None, list[bytes]]], name: str | None) -> list[bytes] | None:
    if not _is_whole(turns, name):
        return None
    parts: list[list[bytes]] = []
    while name is not None:
        previous, own = turns[name]
        parts.append(own)
        name = previous
    return [body for own in reversed(parts) for body in own]


def test_a_hundred_thousand_items_are_found_as_fast_as_a_few(open_store: Open) -> None:
    store = open_store(StateLimits(max_bytes=1 << 30))
    for number in range(100):
        new = NewResponse(f"resp_{number}", "completed", b"{}", items(*(f"{number}-{n}" for n in range(1000))))
        store.add_response("ab"[number % 2], new)
    began = time.perf_counter()
    for number in range(1000):
        item_id = f"{number % 100}-{number}"
        assert store.find_items("ab"[number % 2], [item_id]) == {item_id: item_id.encode()}
    page = store.list_input_items("a", "resp_50", PageQuery(after="50-500", limit=100))
    assert page is not None and [item.id for item in page.items][:2] == ["50-499", "50-498"]
    assert time.perf_counter() - began < 30, "every look-up has an index"
    plan = store._database.execute("EXPLAIN QUERY PLAN SELECT body FROM items WHERE id = 'x'").fetchone()
    assert "USING INDEX items_by_id" in plan[3]


def test_ids_cannot_be_guessed() -> None:
    made = {make_id("resp") for _ in range(1000)}
    assert len(made) == 1000 and all(len(one) == len("resp_") + 48 for one in made)


def test_the_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    StateStore(tmp_path / "a" / "b" / "responses.db", LARGE).close()
    assert (tmp_path / "a" / "b" / "responses.db").exists()
