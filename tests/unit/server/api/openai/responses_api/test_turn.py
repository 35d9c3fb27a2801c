"""A request's turn: what it reads, what it stores, and that it does neither where `store` is false."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.config.sections.server_section import ServerLimits, StateLimits
from enginebay.contract import Sampling
from enginebay.errors import InvalidRequest, PreviousResponseNotFound, RateLimited, RequestError, Unsupported
from enginebay.server.api.openai.encoders.responses_encoder import ResponseEncoder
from enginebay.server.api.openai.response_objects import ResponseObject
from enginebay.server.api.openai.responses import build_echoed_fields
from enginebay.server.api.openai.responses_api.turn import begin_turn, store_turn
from enginebay.server.api.openai.schemas import ResponsesBody
from enginebay.server.auth.api_keys import ApiKey, hash_key
from enginebay.server.http.exchange import Exchange
from enginebay.server.http.refusal import Refusal
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.state.state_client import StateClient
from enginebay.server.state.state_store import StateStore
from enginebay.server.state.stored_records import StoredItem, make_id


class _NoState:
    """Fails the test if anything is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"state.{name} was used")


def make_context(state: Any, limits: ServerLimits | None = None) -> Any:
    lines: list[tuple[str, dict[str, Any]]] = []
    log = SimpleNamespace(log_event=lambda event, **fields: lines.append((event, fields)), lines=lines)
    return SimpleNamespace(state=state, log=log, config=SimpleNamespace(limits=limits or ServerLimits()))


def make_request(key: str | None = None) -> RequestContext:
    wire: Any = SimpleNamespace(peer="local", common_headers=lambda: b"", hold_bytes=lambda exchange, size: None)
    request_context = RequestContext(Exchange(wire, "POST", "/v1/responses", {}), "responses", "req_1")
    request_context.key = None if key is None else ApiKey(key, hash_key(key))
    return request_context


def make_response(response_id: str) -> ResponseObject:
    fields = build_echoed_fields(ResponsesBody(model="m", input="x"), Sampling())
    response = ResponseEncoder(response_id, 1, "m", {**fields, "store": True}).encode_in_progress()
    response.status = "completed"
    return response


@pytest.fixture
def state(tmp_path: Path) -> Any:
    client = StateClient(tmp_path / "state", StateLimits(4 << 20))
    yield client
    client.close()


async def test_without_store_the_state_is_never_touched() -> None:
    turn = await begin_turn(make_context(_NoState()), make_request(), "hi", stores=False)
    assert not turn.stores and turn.history == () and turn.inputs == [{"role": "user", "content": "hi"}]


async def test_a_first_turn_reads_nothing() -> None:
    turn = await begin_turn(make_context(_NoState()), make_request(), "hi", stores=None)
    assert turn.stores


async def test_a_turn_is_stored_for_its_key_and_continued(state: StateClient) -> None:
    context, request_context = make_context(state), make_request("one-key")
    turn = await begin_turn(context, request_context, "hi", stores=None)
    await store_turn(context, request_context, turn, make_response(turn.id))
    following = await begin_turn(context, make_request("one-key"), "more", previous=turn.id)
    assert [item["content"][0]["text"] for item in following.history] == ["hi"]
    for other in ("another-key", None):
        with pytest.raises(PreviousResponseNotFound):
            await begin_turn(context, make_request(other), "more", previous=turn.id)
    item_id = following.history[0]["id"]
    again = await begin_turn(context, make_request("one-key"), [{"type": "item_reference", "id": item_id}])
    assert again.inputs[0]["content"] == following.history[0]["content"]
    with pytest.raises(InvalidRequest, match="not stored"):
        await begin_turn(context, make_request("another-key"), [{"type": "item_reference", "id": item_id}])


async def test_a_key_of_the_same_name_sees_nothing_of_the_old(state: StateClient) -> None:
    context, request_context = make_context(state), make_request("one-key")
    turn = await begin_turn(context, request_context, "hi", stores=True)
    await store_turn(context, request_context, turn, make_response(turn.id))
    later = make_request()
    later.key = ApiKey("one-key", hash_key("its successor"))
    with pytest.raises(PreviousResponseNotFound):
        await begin_turn(context, later, "more", previous=turn.id)


async def test_what_cannot_be_stored_is_named(state: StateClient) -> None:
    context, request_context = make_context(state), make_request()
    turn = await begin_turn(context, request_context, "x" * (1 << 20), stores=True)
    response = make_response(turn.id)
    await store_turn(context, request_context, turn, response)
    assert response.store is False and "an eighth of server.state.max_bytes" in request_context.ignored["store"]
    assert b"x-enginebay-ignored: store: one conversation may take" in request_context.exchange.added_headers
    [(event, fields)] = context.log.lines
    assert event == "response not stored" and fields["response"] == turn.id and "eighth" in fields["reason"]


async def test_without_state() -> None:
    context, request_context = make_context(None), make_request()
    turn = await begin_turn(context, request_context, "hi", stores=True)
    assert not turn.stores and request_context.ignored == {"store": "server.state is off"}
    assert (await begin_turn(context, make_request(), "hi", stores=None)).stores is False
    for fields in ({"previous": "resp_1"}, {"conversation": "conv_1"}):
        with pytest.raises(Unsupported, match=r"server\.state is off"):
            await begin_turn(context, make_request(), "hi", **cast("Any", fields))
    with pytest.raises(Unsupported, match="item_reference"):
        await begin_turn(context, make_request(), [{"id": "msg_1"}])


@pytest.mark.parametrize("input_", [None, []])
async def test_there_must_be_something_to_answer(input_: Any) -> None:
    with pytest.raises(RequestError, match="input is missing") as error:
        await begin_turn(make_context(None), make_request(), input_)
    assert error.value.param == "input"


# Bounds


async def test_too_many_inputs_are_refused_before_the_state_is_asked() -> None:
    context = make_context(_NoState(), ServerLimits(messages=3))
    reference = {"type": "item_reference", "id": make_id("msg")}
    with pytest.raises(InvalidRequest, match="input has 4 entries; the maximum is 3") as error:
        await begin_turn(context, make_request(), [reference] * 4)
    assert error.value.param == "input" and "server.limits.messages" in error.value.hint


async def test_each_mention_of_an_item_counts(state: StateClient) -> None:
    item_id = make_id("msg")
    body = b'{"role":"user","content":"%b"}' % (b"x" * 1000)
    await state.call(StateStore.add_conversation, "", "conv_1", b"{}", [StoredItem(item_id, body)])
    context, request_context = make_context(state, ServerLimits(body_bytes=4096)), make_request()
    reference = {"type": "item_reference", "id": item_id}
    turn = await begin_turn(context, request_context, [reference] * 3)
    assert [item["content"] for item in turn.inputs] == ["x" * 1000] * 3
    assert request_context.history_bytes == turn.history_bytes == 3 * len(body)
    with pytest.raises(InvalidRequest, match="more than 4096 bytes") as error:
        await begin_turn(context, make_request(), [reference] * 4)
    assert error.value.param == "input" and "server.limits.body_bytes" in error.value.hint
    with pytest.raises(InvalidRequest, match="more than 4096 bytes"):  # with the conversation before them
        await begin_turn(context, make_request(), [reference] * 3, conversation="conv_1")


async def test_a_history_that_is_too_long_or_too_large_is_refused(state: StateClient) -> None:
    context, request_context = make_context(state), make_request()
    first = await begin_turn(context, request_context, "x" * 1000, stores=True)
    await store_turn(context, request_context, first, make_response(first.id))
    second = await begin_turn(context, request_context, "y" * 1000, previous=first.id, stores=True)
    await store_turn(context, request_context, second, make_response(second.id))
    items = [StoredItem(make_id("msg"), b'{"role":"user","content":"%b"}' % (b"x" * 1000)) for _ in range(2)]
    await state.call(StateStore.add_conversation, "", "conv_1", b"{}", items)
    for fields in ({"previous": second.id}, {"conversation": "conv_1"}):
        for limits, unit in ((ServerLimits(messages=1), "1 items"), (ServerLimits(body_bytes=1500), "1500 bytes")):
            with pytest.raises(InvalidRequest, match=f"more than {unit}") as error:
                await begin_turn(make_context(state, limits), make_request(), "z", **cast("Any", fields))
            assert "send the part that matters" in error.value.hint
        turn = await begin_turn(
            make_context(state, ServerLimits(messages=2)), make_request(), "z", **cast("Any", fields)
        )
        assert len(turn.history) == 2


async def test_an_id_that_a_client_chose_refers_to_nothing(state: StateClient) -> None:
    context, request_context = make_context(state), make_request()
    chosen = "msg_0b1c2d3e-1111-4222-8333-444455556666"
    item = {"type": "message", "id": chosen, "role": "user", "content": "secret"}
    turn = await begin_turn(context, request_context, [item], stores=True)
    assert turn.inputs == [item], "it is just an item"
    await store_turn(context, request_context, turn, make_response(turn.id))
    await state.call(StateStore.add_conversation, "", "conv_old", b"{}", [StoredItem("msg_old", b"{}")])
    for item_id in (chosen, "msg_old"):
        with pytest.raises(InvalidRequest, match="not stored"):
            await begin_turn(context, make_request(), [{"type": "item_reference", "id": item_id}])
    following = await begin_turn(context, make_request(), "more", previous=turn.id)
    [stored] = following.history
    assert stored["content"][0]["text"] == "secret" and stored["id"] != chosen
    again = await begin_turn(context, make_request(), [{"id": stored["id"]}])
    assert again.inputs == [stored]


async def test_stored_items_count_as_the_body_does(state: StateClient) -> None:
    body = b'{"role":"user","content":"%b"}' % (b"x" * 1000)
    await state.call(StateStore.add_conversation, "", "conv_1", b"{}", [StoredItem(make_id("msg"), body)])
    held: list[int] = []

    def hold(exchange: Exchange, size: int) -> None:
        if size > 2000:
            raise Refusal(429, "this client has too many large requests", "client_body_buffer_bytes")
        held.append(size)

    request_context = make_request()
    cast("Any", request_context.exchange)._connection.hold_bytes = hold
    request_context.exchange.body = b"y" * 500
    await begin_turn(make_context(state), request_context, "hi", conversation="conv_1")
    assert held == [500 + len(body)]
    request_context.reset_for_retry(0)
    await begin_turn(make_context(state), request_context, "hi", conversation="conv_1")
    assert held[1:] == held[:1], "another attempt counts it once"
    request_context.history_bytes = 1000
    with pytest.raises(RateLimited, match="too many large requests") as error:
        await begin_turn(make_context(state), request_context, "hi", conversation="conv_1")
    assert "server.limits.client_body_buffer_bytes" in error.value.hint
