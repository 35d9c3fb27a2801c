from __future__ import annotations

from enginebay.contract import GenerateRequest, Sampling
from enginebay.contract.sampling_parameters import Guided
from enginebay.server.requests import suspect_table
from enginebay.server.requests.suspect_table import SuspectEvent, SuspectTable, compute_digest, compute_embed_digest


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_deaths_add_up_and_an_answer_clears_them() -> None:
    table = SuspectTable()
    assert not table
    table.apply(SuspectEvent("died", b"x", addresses=("w1",)))
    table.apply(SuspectEvent("died", b"x", addresses=("w1",)))  # told twice
    table.apply(SuspectEvent("died", b"x", addresses=("w2",)))
    assert table and table.get_deaths(b"x") == ("w1", "w2") and table.get_deaths(b"y") == ()
    table.apply(SuspectEvent("cleared", b"x"))
    assert not table and not table.is_refused(b"x")


def test_a_refusal_is_remembered_for_a_while() -> None:
    clock = Clock()
    table = SuspectTable(clock)
    table.apply(SuspectEvent("died", b"x", addresses=("w1",)))
    table.apply(SuspectEvent("refused", b"x"))
    assert table.is_refused(b"x") and table.get_deaths(b"x") == ()
    clock.now += suspect_table.REMEMBERED_S + 1
    assert not table.is_refused(b"x") and not table


def test_the_memory_is_bounded() -> None:
    table = SuspectTable()
    for number in range(suspect_table.MAX_REMEMBERED + 10):
        table.apply(SuspectEvent("refused", number.to_bytes(4)))
    assert not table.is_refused((0).to_bytes(4)) and table.is_refused((10).to_bytes(4))


def test_another_process_gets_all_of_it() -> None:
    table, other = SuspectTable(), SuspectTable()
    table.apply(SuspectEvent("died", b"x", addresses=("w1", "w2")))
    table.apply(SuspectEvent("refused", b"y"))
    for event in table.list_events():
        other.apply(event)
    assert other.get_deaths(b"x") == ("w1", "w2") and other.is_refused(b"y")


def test_the_digest_is_of_what_reaches_the_engine() -> None:
    request = GenerateRequest(token_ids=(1, 2), sampling=Sampling(max_tokens=4, guided=Guided(grammar="root ::= a")))
    same = GenerateRequest(token_ids=(1, 2), sampling=Sampling(max_tokens=4, guided=Guided(grammar="root ::= a")))
    other = GenerateRequest(token_ids=(1, 2), sampling=Sampling(max_tokens=4, guided=Guided(grammar="root ::= b")))
    digests = [compute_digest("m", [one]) for one in (request, same, other)]
    assert digests[0] == digests[1] != digests[2] and compute_digest("m@fake", [request]) != digests[0]
    assert compute_digest("m", [request, request]) != digests[0]
    assert compute_embed_digest("m", [(1, 2), (3,)]) != compute_embed_digest("m", [(1,), (2, 3)])
