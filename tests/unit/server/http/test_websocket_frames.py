"""Frames of a WebSocket: in any pieces, malformed, and the close codes that answer them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.server.http.websocket_connection import frame_text
from tests.unit.server.http.memory_client import wait
from tests.unit.server.http.websocket_client import SocketClient
from tests.unit.server.http.websocket_frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    build_close,
    build_frame,
    read_close,
)

MESSAGES = st.lists(st.text(max_size=40), min_size=1, max_size=4)


def build_stream(data: Any, messages: list[str]) -> bytes:
    """The frames of messages, in fragments, with pings between them."""
    stream = b""
    for message in messages:
        payload = message.encode()
        cuts = sorted(data.draw(st.lists(st.integers(0, len(payload)), max_size=3)))
        pieces = [payload[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        for number, piece in enumerate(pieces):
            stream += build_frame(CONTINUATION if number else TEXT, piece, fin=number == len(pieces) - 1)
            stream += build_frame(PING, b"p") if data.draw(st.booleans()) else b""
    return stream


@settings(max_examples=150)
@given(MESSAGES, st.data())
async def test_every_split_of_the_stream_gives_the_same_messages(messages: list[str], data: Any) -> None:
    stream = build_stream(data, messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    client = SocketClient()
    client.send(*(stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)))
    assert client.messages == [message.encode() for message in messages]
    assert client.frames == [(PONG, b"p")] * stream.count(build_frame(PING, b"p"))


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=60), max_size=8))
async def test_nothing_that_is_sent_raises(pieces: list[bytes]) -> None:
    client = SocketClient()
    client.send(build_frame(TEXT, b"hello"), *pieces)
    client.socket.expire()
    client.transport.protocol.connection_lost(None)
    assert client.budgets.bodies.held == client.budgets.websockets.held == 0


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 200_000])
async def test_messages_of_every_length(size: int) -> None:
    client = SocketClient(max_body_bytes=200_000)
    client.send(build_frame(TEXT, b"x" * size))
    while client.socket._unparsed:
        await asyncio.sleep(0)
    assert client.messages == [b"x" * size]
    client.socket.send_texts([b"y" * size])
    assert client.frames == [(TEXT, b"y" * size)] and frame_text(b"y" * size) == client.sent


async def test_a_ping_within_a_message_is_answered_at_once() -> None:
    client = SocketClient().send(build_frame(TEXT, b"he", fin=False), build_frame(PING, b"x" * 125))
    assert client.frames == [(PONG, b"x" * 125)] and client.messages == []
    client.send(build_frame(PONG, b"unasked"), build_frame(CONTINUATION, b"llo"))
    assert client.messages == [b"hello"] and len(client.frames) == 1


# What is malformed is closed with the right code


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param(build_frame(TEXT, b"x", mask=None), 1002, id="unmasked"),
        pytest.param(build_frame(TEXT, b"x", rsv=4), 1002, id="compressed"),
        pytest.param(build_frame(TEXT, b"x", rsv=1), 1002, id="reserved bit"),
        pytest.param(build_frame(3, b"x"), 1002, id="reserved data opcode"),
        pytest.param(build_frame(11, b"x"), 1002, id="reserved control opcode"),
        pytest.param(build_frame(PING, b"x", fin=False), 1002, id="fragmented ping"),
        pytest.param(build_frame(PING, b"x" * 126), 1002, id="long ping"),
        pytest.param(build_frame(CONTINUATION, b"x"), 1002, id="continuation of nothing"),
        pytest.param(build_frame(TEXT, b"x", fin=False) + build_frame(TEXT, b"y"), 1002, id="text within text"),
        pytest.param(b"\x81\xfe\x00\x05mask12345", 1002, id="length not minimal"),
        pytest.param(b"\x81\xff\x80\x00\x00\x00\x00\x00\x00\x00mask", 1002, id="length beyond 63 bits"),
        pytest.param(build_frame(BINARY, b"x"), 1003, id="binary"),
        pytest.param(build_frame(TEXT, b"\xff"), 1007, id="not UTF-8"),
        pytest.param(build_frame(TEXT, b"\xed\xa0\x80"), 1007, id="a surrogate"),
        pytest.param(build_frame(TEXT, b"\xc0\xaf"), 1007, id="overlong"),
        pytest.param(build_frame(TEXT, b"\xf4\x90\x80\x80"), 1007, id="beyond Unicode"),
        pytest.param(build_frame(TEXT, "ä".encode()[:1]), 1007, id="half a character"),
        pytest.param(
            build_frame(TEXT, b"\xce", fin=False) + build_frame(CONTINUATION, b"\xff"),
            1007,
            id="invalid across fragments",
        ),
        pytest.param(build_frame(CLOSE, b"x"), 1002, id="a close of one byte"),
        pytest.param(build_close(1000, b"\xff"), 1007, id="a close reason that is not UTF-8"),
        pytest.param(build_close(999), 1002, id="close code 999"),
        pytest.param(build_close(1004), 1002, id="close code 1004"),
        pytest.param(build_close(1005), 1002, id="close code 1005"),
        pytest.param(build_close(1006), 1002, id="close code 1006"),
        pytest.param(build_close(1015), 1002, id="close code 1015"),
        pytest.param(build_close(2999), 1002, id="close code 2999"),
        pytest.param(build_close(5000), 1002, id="close code 5000"),
    ],
)
async def test_malformed_frames(frames: bytes, code: int) -> None:
    for size in (1, len(frames)):
        client = SocketClient()
        client.send(*(frames[start : start + size] for start in range(0, len(frames), size)))
        client.assert_closed(code)
        assert client.transport.ended and client.messages == []
        client.send(build_frame(TEXT, b"more"), b"\0" * 1000)
        assert client.messages == [] and await client.socket.receive() is None
        wait(client, 6)
        assert client.transport.aborted


async def test_a_character_across_fragments_is_valid() -> None:
    client = SocketClient().send(
        *(
            build_frame(TEXT if not number else CONTINUATION, bytes([byte]), fin=number == 3)
            for number, byte in enumerate("𝄞".encode())
        )
    )
    assert client.messages == ["𝄞".encode()]


@pytest.mark.parametrize(
    ("sent", "code"),
    [(b"", None), (b"\x03\xe8", 1000), (b"\x03\xe9bye", 1001), (b"\x0b\xb8", 3000), (b"\x13\x87", 4999)],
)
async def test_a_close_is_answered_with_its_code(sent: bytes, code: int | None) -> None:
    client = SocketClient().send(build_frame(CLOSE, sent))
    [(opcode, payload)] = client.frames
    assert opcode == CLOSE and payload[:2] == (b"" if code is None else code.to_bytes(2, "big"))
    assert client.transport.closed and not client.transport.aborted and await client.socket.receive() is None


async def test_what_follows_a_close_is_discarded() -> None:
    client = SocketClient().send(build_close(1000) + build_frame(TEXT, b"late"), build_frame(TEXT, b"later"))
    assert len(client.frames) == 1 and client.messages == []


async def test_the_server_closes_and_waits_for_the_answer() -> None:
    client = SocketClient()
    client.socket.close(1000, "done")
    client.socket.close(1000, "again")
    assert read_close(client.sent) == (1000, "done") and len(client.frames) == 1 and not client.transport.closed
    client.send(build_frame(TEXT, b"on its way"), build_frame(PING), build_close(1000))
    assert client.transport.closed and len(client.frames) == 1
    silent = SocketClient()
    silent.socket.close(1000, "done")
    wait(silent, 6)
    assert silent.transport.aborted
