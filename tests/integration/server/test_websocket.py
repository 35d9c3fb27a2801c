"""/v1/responses over a WebSocket: the `websockets` library, the OpenAI SDK, and what no proper client would send."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from enginebay.server.auth.api_keys import create_key
from tests.integration.server.abused_server import AbusedServer
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.fake_requests import build_bearer, build_config
from tests.integration.server.raw_http import connect, read_to_end, wait_until
from tests.unit.server.http.websocket_frames import CONTINUATION, PING, TEXT, build_frame, build_upgrade, read_close

RESPONSES = "/v1/responses"
CREATE = {
    "type": "response.create",
    "model": "toy",
    "input": "Say hello.",
    "max_output_tokens": 8,
    "ignore_eos": True,
    "temperature": 0,
}
LOGPROBS = ["message.output_text.logprobs"]
MB = 1 << 20


@pytest.fixture(scope="module")
def bay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AbusedServer]:
    limits: dict[str, object] = {
        "body_bytes": 2 * MB, "websocket_idle_s": 3.0, "client_websockets": 20, "body_timeout_s": 2.0, "stream_buffer_bytes": 64 << 10,
    }  # fmt: skip
    config = build_config({"step_s": 0.001}, limits)
    with run_server(config=config) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        abused = AbusedServer(server, client)
        for _ in range(3):
            asyncio.run(create(server, CREATE))
            abused.assert_answers()
        abused.resident_bytes = server.read_resident_bytes()
        yield abused
        assert "unexpected error" not in server.read_log(), server.read_log()[-4000:]


def open_socket(server: BayProcess, **options: Any) -> connect_socket:
    return connect_socket(f"ws://127.0.0.1:{server.port}{RESPONSES}", proxy=None, **options)


async def read_events(client: ClientConnection) -> list[dict[str, Any]]:
    """The events until the response ends."""
    events = []
    while not events or events[-1]["type"] not in (
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    ):
        events.append(json.loads(await asyncio.wait_for(client.recv(), 20)))
    return events


async def create(server: BayProcess, *messages: dict[str, Any] | str, **options: Any) -> list[list[dict[str, Any]]]:
    async with open_socket(server, **options) as client:
        turns = []
        for message in messages:
            await client.send(message if isinstance(message, str) else json.dumps(message))
            turns.append(await read_events(client))
        return turns


async def test_the_events_are_those_of_the_stream(bay: AbusedServer) -> None:
    [events] = await create(bay.server, CREATE)
    body = {name: value for name, value in CREATE.items() if name != "type"} | {"stream": True}
    stream = httpx.post(f"{bay.server.url}{RESPONSES}", json=body, timeout=60).text
    streamed = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == [event["type"] for event in streamed]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event.get("delta") for event in events] == [event.get("delta") for event in streamed]
    headers = events[0]["headers"]
    assert (
        headers["x-request-id"]
        and headers["x-enginebay-engine"]
        and all("headers" not in event for event in events[1:])
    )


async def test_one_response_after_the_other(bay: AbusedServer) -> None:
    async with open_socket(bay.server) as client:
        for number in range(5):
            await client.send(json.dumps({**CREATE, "stream_id": f"lane {number}"}))
        turns = [await read_events(client) for _ in range(5)]
    assert [{event["stream_id"] for event in turn} for turn in turns] == [{f"lane {number}"} for number in range(5)]
    assert len({turn[-1]["response"]["id"] for turn in turns}) == 5


async def test_a_response_continues_the_one_before(bay: AbusedServer) -> None:
    async with open_socket(bay.server) as client:
        await client.send(json.dumps({**CREATE, "generate": False, "store": False}))
        warm = (await read_events(client))[-1]
        assert warm["type"] == "response.completed" and warm["response"]["output"] == []
        previous, prompt_tokens = warm["response"]["id"], 0
        for _ in range(3):
            message = {
                **CREATE,
                "store": False,
                "previous_response_id": previous,
                "input": [{"role": "user", "content": "Go on."}],
            }
            await client.send(json.dumps(message))
            response = (await read_events(client))[-1]["response"]
            assert response["previous_response_id"] == previous and response["status"] == "incomplete"
            assert response["usage"]["input_tokens"] > prompt_tokens, "the conversation grows"
            previous, prompt_tokens = response["id"], response["usage"]["input_tokens"]
        await client.send(json.dumps({**CREATE, "store": False, "previous_response_id": "resp_unknown"}))
        [error] = await read_events(client)
        assert (
            error["type"] == "error"
            and error["status"] in (400, 404)
            and error["error"]["param"] == "previous_response_id"
        )


async def test_a_continuation_that_fails_is_forgotten(bay: AbusedServer) -> None:
    """As the Open Responses specification wants it: the next one has to send the conversation itself."""
    async with open_socket(bay.server) as client:
        await client.send(json.dumps({**CREATE, "store": False}))
        following = {
            **CREATE,
            "store": False,
            "previous_response_id": (await read_events(client))[-1]["response"]["id"],
        }
        await client.send(json.dumps({**following, "temperature": 99}))
        assert (await read_events(client))[0]["error"]["param"] == "temperature"
        await client.send(json.dumps(following))
        assert (await read_events(client))[0]["error"]["code"] == "previous_response_not_found"


async def test_errors_leave_the_socket_open(bay: AbusedServer) -> None:
    bad: list[dict[str, Any] | str] = [
        "not JSON", "[]", {"type": "nothing"}, {**CREATE, "model": "none"}, {**CREATE, "temperature": 99}, {**CREATE, "background": True},
    ]  # fmt: skip
    turns = await create(bay.server, *bad, CREATE)
    assert [turn[0]["status"] for turn in turns[:-1]] == [400, 400, 400, 404, 400, 400]
    assert [turn[0]["error"]["param"] for turn in turns[:-1]] == [
        None,
        None,
        "type",
        "model",
        "temperature",
        "background",
    ]
    assert (
        all(turn[0]["headers"]["x-request-id"] for turn in turns[:-1])
        and turns[-1][-1]["type"] == "response.incomplete"
    )


async def test_the_openai_sdk(bay: AbusedServer) -> None:
    async with bay.server.async_openai() as sdk, sdk.responses.connect() as connection:
        texts = []
        for _ in range(2):
            await connection.response.create(model="toy", input="Say hello.", max_output_tokens=8)
            async for event in connection:
                if event.type == "response.output_text.delta":
                    texts.append(event.delta)
                if event.type in ("response.completed", "response.incomplete", "error"):
                    assert event.type != "error", event
                    break
    assert texts


async def test_a_client_that_leaves_frees_the_engine(bay: AbusedServer) -> None:
    for polite in (True, False):
        client = await open_socket(bay.server, max_queue=None)
        await client.send(json.dumps({**CREATE, "max_output_tokens": 2000}))
        await client.recv()
        wait_until(lambda: bay.read_gauge("enginebay_requests_running") == 1)
        if polite:
            await client.close()
        else:
            client.transport.abort()
        await asyncio.to_thread(bay.wait_idle)


# Access


async def test_a_web_page_of_another_site(bay: AbusedServer) -> None:
    for origin, allowed in ((f"http://127.0.0.1:{bay.port}", True), ("http://evil.example", False)):
        try:
            await create(bay.server, CREATE, origin=origin)
        except InvalidStatus as refused:
            assert not allowed and refused.response.status_code == 403
        else:
            assert allowed


async def test_only_where_there_is_a_route(bay: AbusedServer) -> None:
    for path, status in (("/v1/chat/completions", 405), ("/v1/models", 200), ("/none", 404)):
        with pytest.raises(InvalidStatus) as refused:
            await connect_socket(f"ws://127.0.0.1:{bay.port}{path}", proxy=None)
        assert refused.value.response.status_code == status
    assert httpx.get(f"{bay.server.url}{RESPONSES}").status_code == 405


async def test_keys_and_rate_limits(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    key, few = create_key(file, "plain")[0], create_key(file, "few", requests_per_minute=2)[0]
    with run_server(config=build_config(limits={"client_websockets": 2}), options=["--keys-file", str(file)]) as server:
        for headers in ({}, build_bearer("wrong")):
            with pytest.raises(InvalidStatus) as refused:
                await open_socket(server, additional_headers=headers)
            assert refused.value.response.status_code == 401
        turns = await create(server, CREATE, CREATE, CREATE, additional_headers=build_bearer(few))
        assert [turn[-1]["type"] for turn in turns] == ["response.incomplete", "response.incomplete", "error"]
        assert turns[2][0]["status"] == 429 and int(turns[2][0]["headers"]["retry-after"]) >= 1
        async with (
            open_socket(server, additional_headers=build_bearer(key)),
            open_socket(server, additional_headers=build_bearer(key)),
        ):
            with pytest.raises(InvalidStatus) as refused:
                await open_socket(server, additional_headers=build_bearer(key))
            assert refused.value.response.status_code == 429 and b"client_websockets" in (
                refused.value.response.body or b""
            )
            async with open_socket(server, additional_headers=build_bearer(few)):
                pass  # another client's count


# Floods and malformed input


def open_raw(bay: AbusedServer, receive_bytes: int | None = None) -> socket.socket:
    sock = connect(bay.port, receive_bytes=receive_bytes)
    sock.sendall(build_upgrade(RESPONSES).replace(b"host: x", b"host: localhost"))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    assert head.startswith(b"HTTP/1.1 101"), head
    return sock


def expect_close(bay: AbusedServer, code: int, *pieces: bytes) -> None:
    with open_raw(bay) as sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
        except ConnectionError:
            pass
        assert read_close(read_to_end(sock))[0] == code


def test_malformed_frames(bay: AbusedServer) -> None:
    expect_close(bay, 1002, build_frame(TEXT, b"{}", mask=None))
    expect_close(bay, 1002, b"\xff" * 1000)
    expect_close(bay, 1003, build_frame(2, b"binary"))
    expect_close(bay, 1007, build_frame(TEXT, b"\xff\xff"))
    bay.assert_as_before()


def test_messages_that_are_too_large(bay: AbusedServer) -> None:
    expect_close(bay, 1009, build_frame(TEXT, b"x" * (3 * MB)))
    expect_close(bay, 1009, b"\x81\xff" + struct.pack("!Q", 10 << 30) + b"mask", *[b"x" * MB] * 3)
    fragments = [build_frame(TEXT, b"x", fin=False), *[build_frame(CONTINUATION, b"x" * 65535, fin=False)] * 40]
    expect_close(bay, 1009, *fragments)
    bay.assert_as_before()


def test_a_slow_drip(bay: AbusedServer) -> None:
    with open_raw(bay) as sock:
        sock.sendall(build_frame(TEXT, b"{", fin=False))
        assert read_close(read_to_end(sock))[0] == 1008


def test_an_idle_socket(bay: AbusedServer) -> None:
    with open_raw(bay) as sock:
        assert read_close(sock.recv(1000))[0] == 1001


def test_a_half_open_socket(bay: AbusedServer) -> None:
    with open_raw(bay) as sock:
        sock.sendall(build_frame(TEXT, json.dumps({**CREATE, "max_output_tokens": 2000}).encode()))
        sock.recv(100)
        sock.shutdown(socket.SHUT_WR)
        bay.wait_idle()


def test_floods(bay: AbusedServer) -> None:
    """Pings, tiny messages and fragments without end, from clients that never read: others are answered meanwhile."""
    floods = [
        build_frame(PING, b"x" * 125) * 500,
        build_frame(TEXT, b"{}") * 5000,
        build_frame(TEXT, b"", fin=False) + build_frame(CONTINUATION, b"", fin=False) * 10_000,
    ]
    for flood in floods:
        with open_raw(bay, 4096) as sock:
            sock.settimeout(0.2)
            for _ in range(20):
                try:
                    sock.sendall(flood)
                except (TimeoutError, ConnectionError):
                    pass
                bay.assert_answers()
    bay.assert_as_before()


def test_a_client_that_does_not_read_its_events(bay: AbusedServer) -> None:
    with open_raw(bay, 4096) as sock:
        sock.sendall(
            build_frame(
                TEXT, json.dumps({**CREATE, "max_output_tokens": 4000, "top_logprobs": 5, "include": LOGPROBS}).encode()
            )
        )
        sock.recv(10)
        wait_until(lambda: bay.read_gauge("enginebay_requests_running") == 1)
        bay.wait_idle()
        assert b'"type":"response.incomplete"' not in read_to_end(sock), "it was cut off"
    bay.assert_as_before()


def test_a_server_that_stops_says_so() -> None:
    async def stop() -> None:
        with run_server(config=build_config()) as server:
            client = await open_socket(server)
            await client.send(json.dumps(CREATE))
            await read_events(client)
            server.process.terminate()
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(client.recv(), 20)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
            await asyncio.to_thread(server.process.wait, 20)

    asyncio.run(stop())
