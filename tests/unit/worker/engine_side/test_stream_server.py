"""Streams on a real unix socket, with an engine that only records calls."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract import FinishReason
from enginebay.worker.engine_side.request_table import RequestTable
from enginebay.worker.engine_side.stream_server import StreamServer
from enginebay.worker.frames import FrameDecoder, encode_frame, read_frames
from enginebay.worker.proto import worker_pb2 as pb
from tests.unit.worker.engine_side.test_request_table import Recorder


class Client:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(path))
        self.stream = self.socket.makefile("rb")

    def ask(self, submit: int | None = None, cancel: int | None = None) -> None:
        message = pb.Ask(cancel=[cancel] if cancel else [])
        if submit:
            message.submit.add(number=submit, token_ids=[1], sampling=pb.Sampling(n=1))
        self.socket.sendall(encode_frame(message))

    def flushes(self) -> Iterator[pb.Flush]:
        return map(pb.Flush.FromString, read_frames(self.stream))  # type: ignore[arg-type]

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@pytest.fixture
def site() -> Iterator[tuple[Path, RequestTable, Recorder]]:
    engine = Recorder()
    requests = RequestTable(engine)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        server = StreamServer(path, requests)
        yield path, requests, engine
        server.close()


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_request_and_its_tokens(site: tuple[Path, RequestTable, Recorder]) -> None:
    path, requests, engine = site
    client = Client(path)
    client.ask(submit=5)
    _until(lambda: engine.submitted)
    [engine_number] = engine.submitted
    requests.token(engine_number, "a", (10,))
    requests.token(engine_number, "b", (11,))
    requests.flush()
    requests.finish(engine_number, FinishReason.STOP)
    requests.flush()
    flushes = client.flushes()
    assert list(next(flushes).text) == ["a", "b"]
    end = next(flushes)
    assert [finish.request for finish in end.finish] == [5] and end.done[0].completion_tokens == 2
    client.close()


def test_a_disconnect_cancels_the_clients_requests(site: tuple[Path, RequestTable, Recorder]) -> None:
    path, _, engine = site
    client = Client(path)
    client.ask(submit=5)
    _until(lambda: engine.submitted)
    client.close()
    _until(lambda: engine.cancelled == list(engine.submitted))


def test_a_slow_reader_never_blocks_the_engine_and_loses_nothing(site: tuple[Path, RequestTable, Recorder]) -> None:
    path, requests, engine = site
    slow, quick = Client(path), Client(path)
    slow.ask(submit=1)
    quick.ask(submit=1)
    _until(lambda: len(engine.submitted) == 2)
    seen: list[str] = []
    reading = threading.Thread(target=lambda: seen.extend(text for flush in quick.flushes() for text in flush.text))
    reading.start()
    texts = [f"token {number} " * 20 for number in range(20_000)]
    worst = 0.0
    for text in texts:  # megabytes that the slow client does not read
        started = time.perf_counter()
        for engine_number in engine.submitted:
            requests.token(engine_number, text, (1,))
        requests.flush()
        worst = max(worst, time.perf_counter() - started)
    assert worst < 30  # the engine did not block
    for engine_number in list(engine.submitted):
        requests.finish(engine_number, FinishReason.STOP)
    requests.flush()
    received: list[str] = []
    for flush in slow.flushes():
        received += flush.text
        if flush.done:
            break
    assert received == texts
    slow.close()
    _until(lambda: len(seen) == len(texts))
    assert seen == texts
    quick.socket.shutdown(socket.SHUT_RDWR)
    reading.join(30)
    quick.close()


@given(st.lists(st.text(max_size=30), max_size=8), st.data())
def test_frames_survive_any_cut(texts: list[str], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(pb.Flush(text=[text])) for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    decoder = FrameDecoder()
    received: list[str] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for message in decoder.feed(stream[start:end]):
            received += pb.Flush.FromString(message).text
    assert received == texts
