"""The engine against a scripted server: retries, concurrency, cancelling, loading."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from enginebay.contract import Load
from enginebay.engines.openai import remote_client
from enginebay.engines.openai.engine import OpenAIEngine
from enginebay.engines.openai.spec import EXTRA_PARAMETERS
from enginebay.errors import (
    EngineFailed,
    LoadFailed,
    Overloaded,
    Unreachable,
    Unsupported,
)
from tests.unit.engines.openai.scripted_server import (
    HELLO,
    KEY,
    MODEL,
    USUAL,
    Answering,
    ReceivedRequest,
    build_delta,
    build_head,
    build_models,
    build_response,
    build_stream,
    encode_chunked,
    encode_events,
    make_closing_writer,
    open_engine,
    run_script,
    run_scripted_server,
)


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_client, "_FIRST_BACKOFF_S", 0.01)


# Again


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_busy_server_is_retried(status: int) -> None:
    busy = build_response(status, {"error": {"message": "busy"}}, Retry_After="0")
    async with run_scripted_server(busy, busy, build_stream()) as server, open_engine(server) as (engine, sink):
        engine.submit(1, HELLO)
        await sink.wait_ended()
        assert sink.text() == "Hi there" and len(server.asked) == 3
        assert server.connections == 1, "each of its refusals was complete, so the connection could be kept"


async def test_retry_after_is_respected() -> None:
    async with (
        run_scripted_server(build_response(503, {}, Retry_After="1"), build_stream()) as server,
        open_engine(server) as (engine, sink),
    ):
        started = asyncio.get_running_loop().time()
        engine.submit(1, HELLO)
        await sink.wait_ended()
        assert sink.text() == "Hi there" and asyncio.get_running_loop().time() - started > 0.9


async def test_retries_end_for_a_server_that_stays_busy(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sink, server = await run_script(build_response(503, {"error": {"message": "busy"}}), retries=1)
    assert isinstance(sink.get_failure(), Overloaded) and "overloaded" in sink.get_failure().message
    assert "busy" not in str(sink.get_failure()) and "127.0.0.1" not in str(sink.get_failure())
    assert f"127.0.0.1:{server.port} is overloaded (HTTP 503): busy" in caplog.text
    assert len(server.asked) == 2


async def test_a_connection_that_ends_without_an_answer_is_tried_again() -> None:
    async with (
        run_scripted_server(make_closing_writer(b""), build_stream()) as server,
        open_engine(server) as (engine, sink),
    ):
        engine.submit(1, HELLO)
        await sink.wait_ended()
        assert sink.text() == "Hi there" and server.connections == 2


async def test_nothing_is_sent_again_once_a_byte_has_come() -> None:
    sink, server = await run_script(make_closing_writer(b"HTTP/1.1 200"))
    assert isinstance(sink.get_failure(), EngineFailed) and len(server.asked) == 1


async def test_an_unreachable_server() -> None:
    async with run_scripted_server(build_stream()) as server:
        pass
    async with open_engine(server, retries=1) as (engine, sink):
        engine.submit(1, HELLO)
        await sink.wait_ended()
    assert isinstance(sink.get_failure(), Unreachable) and "is unreachable" in sink.get_failure().message


async def test_connections_are_kept_and_stale_ones_replaced() -> None:
    async with run_scripted_server(
        build_stream(), build_stream(), make_closing_writer(build_stream()), build_stream()
    ) as server:
        async with open_engine(server, retries=0) as (engine, sink):
            for number in range(1, 5):
                engine.submit(number, HELLO)
                await sink.wait_ended(number)
                assert sink.text(number) == "Hi there"
                await asyncio.sleep(0.05)
        assert server.connections == 2 and len(server.asked) == 4


async def test_plain_http_where_tls_is_wanted_is_a_clear_error() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(build_response(400, b"not TLS"))
        writer.close()

    listening = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    async with run_scripted_server(build_stream()) as server, open_engine(server, url=url, retries=0) as (engine, sink):
        engine.submit(1, HELLO)
        await sink.wait_ended()
    listening.close()
    assert isinstance(sink.get_failure(), Unreachable)
    assert "is unreachable" in sink.get_failure().message and "SSL" in sink.get_failure().message


async def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    context = _self_signed(tmp_path)
    listening = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = listening.sockets[0].getsockname()[1]
    async with (
        run_scripted_server(build_stream()) as server,
        open_engine(server, url=f"https://127.0.0.1:{port}/v1") as (engine, sink),
    ):
        engine.submit(1, HELLO)
        await sink.wait_ended()
    listening.close()
    assert isinstance(sink.get_failure(), Unreachable)
    assert "certificate" in sink.get_failure().message and "SSL_CERT_FILE" in sink.get_failure().hint


def _self_signed(folder: Path) -> ssl.SSLContext:
    import shutil
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


# Many, and none


async def test_cancelling_closes_the_connection_at_once() -> None:
    begun = build_head() + encode_events(build_delta(content="a"), done=False)
    async with run_scripted_server(_watching(begun)) as server, open_engine(server) as (engine, sink):
        engine.submit(1, HELLO)
        await sink.wait_until(lambda: sink.text() == "a")
        engine.cancel(1)
        assert engine.running() == 0
        await asyncio.wait_for(server.gone.wait(), 30)
        assert not sink.select("error") and not sink.select("finish")


def _watching(data: bytes) -> Answering:
    """Write until the peer disconnects."""

    async def write(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        while True:
            await asyncio.sleep(0.01)
            writer.write(b": more\n\n")
            await writer.drain()

    return write


async def test_cancelling_during_a_retry_pause() -> None:
    async with (
        run_scripted_server(build_response(503, {}, Retry_After="20")) as server,
        open_engine(server) as (engine, sink),
    ):
        engine.submit(1, HELLO)
        await _until(lambda: len(server.asked) == 1)
        engine.cancel(1)
        await asyncio.sleep(0.05)
        assert engine.running() == 0 and not sink.select("error")


async def _until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_no_more_than_max_batch_are_sent_at_once() -> None:
    go_on = asyncio.Event()

    async def write(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        writer.write(build_stream())

    async with run_scripted_server(write) as server, open_engine(server, max_batch=2) as (engine, sink):
        for number in range(1, 6):
            engine.submit(number, HELLO)
        await _until(lambda: len(server.asked) == 2 and engine.stats().waiting == 3)
        assert engine.running() == 5
        engine.cancel(5)
        await _until(lambda: engine.stats().waiting == 2)
        go_on.set()
        for number in range(1, 5):
            await sink.wait_ended(number)
        assert server.connections == 2 and len(server.asked) == 4 and not sink.select("finish", 5)
        assert engine.stats().waiting == 0


async def test_many_streams_take_no_more_threads_than_one() -> None:
    go_on = asyncio.Event()

    async def write(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(build_head(transfer_encoding="chunked"))
        await go_on.wait()
        writer.write(encode_chunked(USUAL))

    async with run_scripted_server(write) as server, open_engine(server) as (engine, sink):
        for number in range(1, 201):
            engine.submit(number, HELLO)
        await _until(lambda: len(server.asked) == 200)
        remote = [thread for thread in threading.enumerate() if thread.name == "remote"]
        assert len(remote) == 1 and threading.active_count() < 40
        go_on.set()
        for number in range(1, 201):
            await sink.wait_ended(number)
            assert sink.text(number) == "Hi there"


async def test_closing_ends_what_runs() -> None:
    async with run_scripted_server(_watching(build_head())) as server:
        async with open_engine(server) as (engine, sink):
            engine.submit(1, HELLO)
            await _until(lambda: server.asked)
        await asyncio.wait_for(server.gone.wait(), 30)
        assert engine.running() == 0 and not sink.select("error")
        assert not [thread for thread in threading.enumerate() if thread.name == "remote"]


# Loading


async def _load(
    *scripts: bytes | Answering, task: str = "generate", **settings: Any
) -> tuple[OpenAIEngine, list[ReceivedRequest]]:
    async with run_scripted_server(*scripts) as server:
        load = Load("openai", "", MODEL, "", {"url": server.url, **settings}, task=task)
        return await asyncio.to_thread(OpenAIEngine, load), server.asked


async def test_loading_looks_the_model_up() -> None:
    engine, asked = await _load(build_models("other", MODEL, max_model_len=512))
    assert [(one.method, one.path) for one in asked] == [("GET", "/v1/models")]
    facts = engine.facts()
    assert (facts.context_length, facts.max_batch, facts.kind) == (512, 256, "openai")
    assert set(facts.refused) == set(EXTRA_PARAMETERS) and "openai.extras" in facts.refused["top_k"]


async def test_settings_come_first() -> None:
    engine, _ = await _load(build_models("theirs"), model="theirs", context_length=99, extras=True)
    assert engine.facts().context_length == 99 and not engine.facts().refused
    assert engine.facts().effective["model"] == "theirs"


async def test_an_unknown_context_is_zero() -> None:
    engine, _ = await _load(build_models(MODEL))
    assert engine.facts().context_length == 0


async def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    (tmp_path / "key").write_text(KEY)
    for settings in ({"key_env": "SOME_KEY"}, {"key_file": str(tmp_path / "key")}):
        engine, asked = await _load(build_models(MODEL), **settings)
        assert asked[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in json.dumps(engine.facts().__reduce_ex__(2), default=repr) + repr(vars(engine))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (build_response(401, {"error": {"message": KEY}}), "rejects the API key"),
        (build_response(404, b""), "404"),
        (build_response(400, {"error": {"message": "odd"}}), "rejects the request (HTTP 400): odd"),
        (build_response(429, {"error": {"message": f"slow {KEY}"}}), "(HTTP 429): slow ***"),
        (build_response(503, b""), "503"),
        (build_response(200, b"<html>", "text/html"), "did not return a list of models"),
        (build_models("a", "b"), "'far-away'; it has a, b"),
        (make_closing_writer(b""), "without a response"),
        (make_closing_writer(build_response(200, b"x" * 100)[:-50]), "truncated response"),
        (b"SSH-2.0\r\n", "not HTTP"),
    ],
)
async def test_a_load_that_cannot_work_fails_clearly(
    script: bytes | Answering, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    with pytest.raises(LoadFailed) as caught:
        await _load(script, key_env="SOME_KEY")
    assert words in caught.value.message and "openai.verify" in caught.value.hint and KEY not in str(caught.value)
    assert "127.0.0.1:" in caught.value.message


async def test_an_unreachable_server_fails_the_load() -> None:
    async with run_scripted_server(build_stream()) as server:
        url = server.url
    with pytest.raises(LoadFailed, match="is unreachable"):
        await asyncio.to_thread(OpenAIEngine, Load("openai", "", MODEL, "", {"url": url, "retries": 0}))


async def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(LoadFailed, match="only supports task: generate"):
        await _load(build_models(MODEL), task="embed")
    engine, _ = await _load(build_models(MODEL))
    with pytest.raises(Unsupported):
        engine.embed([[1]])
    with pytest.raises(Unsupported):
        engine.tokenize("a", True)
    engine.close()  # never started
