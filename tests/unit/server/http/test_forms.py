"""Multipart forms: fields, files on disk, limits, and what is given back."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.server.http.exchange import Exchange
from enginebay.server.http.form_body import Form
from enginebay.server.http.form_parser import FormLimits
from enginebay.server.http.http_settings import BodyRule
from tests.unit.server.http.memory_client import SETTINGS, MemoryClient, reply_ok, run_pending_callbacks, wait

KB, MB = 1 << 10, 1 << 20
LIMITS = FormLimits(max_parts=10, max_field_bytes=2000, max_header_bytes=400, max_name_chars=20)
RULES = {"/form": BodyRule(8 * MB, "file_bytes", takes_form=True), "/p": BodyRule(8 * MB, "file_bytes")}


def build_part(name: str, data: bytes, filename: str | None = None, headers: str = "") -> bytes:
    label = "" if filename is None else f'; filename="{filename}"'
    head = f'--b0und\r\ncontent-disposition: form-data; name="{name}"{label}\r\n{headers}\r\n'
    return head.encode() + data + b"\r\n"


def build_form(*parts: bytes, end: bytes = b"--b0und--\r\n", path: str = "/form", headers: str = "") -> bytes:
    body = b"".join(parts) + end
    kind = "multipart/form-data; boundary=b0und"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def make_client(folder: Path, reply: Any = reply_ok, **limits: Any) -> MemoryClient:
    settings = replace(
        SETTINGS, form_limits=LIMITS, find_form_folder=lambda: folder, max_form_disk_bytes=16 * MB, max_body_bytes=100 * KB,
        max_client_form_disk_bytes=10 * MB, **limits,
    )  # fmt: skip
    return MemoryClient(reply, settings=settings, rules=RULES)


def read_form(exchange: Exchange) -> Form:
    assert exchange.form is not None
    return exchange.form


@pytest.fixture(autouse=True)
def open_files() -> Iterator[None]:
    """No test leaves a file open."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


async def wait_for(client: MemoryClient, count: int = 1) -> None:
    """Until the thread has written, and so many responses are there."""
    for _ in range(500):
        if len(client.statuses()) >= count:
            break
        await asyncio.sleep(0.01)


async def test_fields_and_files(tmp_path: Path) -> None:
    seen: list[Any] = []

    def reply(exchange: Exchange) -> None:
        form = read_form(exchange)
        file = form.files["file"][0]
        seen.append(
            (form.fields, form.get("model"), form.get("none", "x"), file.filename, file.content_type, file.read())
        )
        exchange.respond(200, b"ok")

    data = build_form(
        build_part("model", b"whisper"),
        build_part("tag", "ä".encode()),
        build_part("tag", b"two"),
        build_part("file", b"RIFF\r\n--b0un\r\n\0", "sound ä.wav", "content-type: audio/wav\r\n"),
        build_part("empty", b"", "nothing"),
    )
    for size in (1, 7, 50, len(data)):
        client = make_client(tmp_path, reply)
        client.send(*(data[start : start + size] for start in range(0, len(data), size)))
        assert client.statuses() == [200] and client.budgets.forms.held == 0
    fields = {"model": ["whisper"], "tag": ["ä", "two"]}
    assert seen == [(fields, "whisper", "x", "sound ä.wav", "audio/wav", b"RIFF\r\n--b0un\r\n\0")] * 4
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=60)), max_size=8), st.data())
async def test_every_split_of_a_form_gives_the_same_parts(parts: list[tuple[bool, bytes]], data: Any) -> None:
    parts = [(is_file, content.replace(b"\r\n--b0und", b"")) for is_file, content in parts]
    body = build_form(
        *(
            build_part("n", content if is_file else content.hex().encode(), "f" if is_file else None)
            for is_file, content in parts
        )
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=10)))
    seen: list[Any] = []

    def reply(exchange: Exchange) -> None:
        form = read_form(exchange)
        seen.append((form.fields.get("n", []), [file.read() for file in form.files.get("n", [])]))
        exchange.respond(200, b"ok")

    client = make_client(Path("/nowhere"), reply)
    client.send(*(body[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True)))
    fields = [content.hex() for is_file, content in parts if not is_file]
    files = [content for is_file, content in parts if is_file]
    assert seen == [(fields, files)], client.received


async def test_a_large_file_goes_to_an_unlinked_private_file(tmp_path: Path) -> None:
    content = os.urandom(3 * MB)
    seen: list[Any] = []

    def reply(exchange: Exchange) -> None:
        [file] = read_form(exchange).files["file"]
        [descriptor] = [path for path in Path("/proc/self/fd").iterdir() if _points_to(path).startswith(str(tmp_path))]
        is_unlinked, mode = _points_to(descriptor).endswith("(deleted)"), descriptor.stat().st_mode & 0o777
        seen.append((b"".join(file.chunks(MB // 3)) == content, file.read(5, 10) == content[5:15], is_unlinked, mode))
        exchange.respond(200, b"ok")

    client = make_client(tmp_path, reply)
    data = build_form(build_part("a", b"1"), build_part("file", content, "big"), build_part("z", b"2"))
    for start in range(0, len(data), 100 * KB):
        client.send(data[start : start + 100 * KB])
        while client.transport.reading_paused and not client.statuses():
            await asyncio.sleep(0.005)
    await wait_for(client)
    assert client.statuses() == [200] and seen == [(True, True, True, 0o600)]
    assert list(tmp_path.iterdir()) == [] and client.budgets.forms.held == 0


def _points_to(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""


async def test_a_form_after_a_form_on_one_connection(tmp_path: Path) -> None:
    """Both are answered in order although the first is still being written when the second has arrived."""
    big = build_form(build_part("file", b"x" * 300 * KB, "big"))
    client = make_client(tmp_path, lambda exchange: exchange.respond(200, b"%d" % len(read_form(exchange).files)))
    client.send(big + build_form(build_part("a", b"1")))
    assert client.statuses() == []
    await wait_for(client)
    await run_pending_callbacks()
    assert client.statuses() == [200, 200] and not client.transport.reading_paused
    assert client.received.index(b"\r\n\r\n1") < client.received.index(b"\r\n\r\n0")


async def test_forms_that_wait_are_not_read_without_end(tmp_path: Path) -> None:
    client = make_client(tmp_path, None).send(*[build_form(build_part("a", b"1"))] * 9)
    assert len(client.app.requests) == 1 and client.transport.reading_paused
    client.app.requests[0].respond(200, b"")
    await run_pending_callbacks()
    assert len(client.app.requests) == 2 and not client.transport.reading_paused
    client.send(*[build_form(build_part("a", b"1"))] * 3)
    client.app.requests[1].respond(200, b"")
    await run_pending_callbacks()
    assert len(client.app.requests) == 3 and client.transport.reading_paused


async def test_a_client_that_leaves_gives_the_disk_back(tmp_path: Path) -> None:
    client = make_client(tmp_path)
    whole = build_form(build_part("file", b"x" * 2 * MB, "big"))
    client.send(whole[:MB])
    assert client.budgets.forms.held > 900 * KB and client.transport.reading_paused
    client.transport.closed = True
    client.connection.connection_lost(None)
    assert client.budgets.forms.held == 0
    await asyncio.sleep(0.2)  # the thread ends, and closes the file: `open_files` counts


async def test_a_full_disk(tmp_path: Path) -> None:
    for late in (False, True):
        client = make_client(tmp_path / "missing")
        whole = build_form(build_part("file", b"x" * 2 * MB, "big"))
        client.send(whole if late else whole[:MB])
        await wait_for(client)
        assert client.statuses() == [503] and b"cannot write the form to disk" in client.received
        client.connection.connection_lost(None)
        assert client.budgets.forms.held == 0


async def test_a_full_disk_after_the_client_left(tmp_path: Path) -> None:
    client = make_client(tmp_path / "missing")
    client.send(build_form(build_part("file", b"x" * 2 * MB, "big")))
    assert client.budgets.forms.held > 0
    client.transport.closed = True
    client.connection.connection_lost(None)
    for _ in range(500):
        if not client.budgets.forms.held:
            break
        await asyncio.sleep(0.01)
    assert client.budgets.forms.held == 0 and client.app.requests == []


async def test_a_full_disk_while_a_form_waits_for_its_turn(tmp_path: Path) -> None:
    waiting: list[Exchange] = []
    client = make_client(tmp_path / "missing", waiting.append)
    client.send(b"GET /first HTTP/1.1\r\nhost: x\r\n\r\n", build_form(build_part("file", b"x" * 200 * KB, "big")))
    await asyncio.sleep(0.2)  # the thread fails
    [first] = waiting
    first.respond(200, b"ok")
    await wait_for(client, 2)
    assert client.statuses() == [200, 503] and client.budgets.forms.held == 0


# Bombs


def refuse(tmp_path: Path, data: bytes, status: int, says: bytes) -> None:
    client = make_client(tmp_path).send(data)
    assert client.statuses() == [status] and says in client.received, client.received
    assert client.app.requests == [] and client.budgets.forms.held == 0 and client.budgets.bodies.held == 0


async def test_a_million_parts(tmp_path: Path) -> None:
    refuse(tmp_path, build_form(*[build_part("a", b"")] * 10_000), 413, b"more than 10 parts:form_parts")


async def test_boundaries_that_are_none(tmp_path: Path) -> None:
    refuse(tmp_path, build_form(build_part("a", b"\r\n--b0undx" * 300, "f")), 413, b"form_parts")
    client = make_client(tmp_path).send(build_form(build_part("a", b"\r\n--b0undx" * 200, "f")))
    assert client.statuses() == [200] and read_form(client.app.requests[0]).files["a"][0].size == 2000


async def test_endless_headers(tmp_path: Path) -> None:
    refuse(tmp_path, build_form(build_part("a", b"", headers=f"x: {'y' * 9000}\r\n")), 431, b"form_header_bytes")
    refuse(tmp_path, build_form(build_part("a", b"", headers="x: y\r\n" * 1000)), 431, b"form_header_bytes")
    client = make_client(tmp_path).send(build_form(b"--b0und\r\n", end=b"x" * 5000)[:-4900])
    for _ in range(1000):
        client.send(b"x")
    assert client.statuses() == [431]


async def test_a_long_name(tmp_path: Path) -> None:
    refuse(tmp_path, build_form(build_part("a" * 21, b"")), 400, b"form_name_chars")
    refuse(tmp_path, build_form(build_part("a", b"", "f" * 21)), 400, b"form_name_chars")


async def test_a_long_field(tmp_path: Path) -> None:
    refuse(tmp_path, build_form(build_part("a", b"x" * 2001)), 413, b"form_field_bytes")


async def test_a_form_beyond_the_limit_of_its_route(tmp_path: Path) -> None:
    big = 8 * MB + 1
    refuse(tmp_path, build_form(b"").replace(b"content-length: 11", b"content-length: %d" % big), 413, b"file_bytes")


async def test_no_boundary(tmp_path: Path) -> None:
    for kind in (
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b"multipart/form-data; boundary=" + b"b" * 71,
    ):
        refuse(tmp_path, build_form().replace(b"multipart/form-data; boundary=b0und", kind), 400, b"needs a boundary")


async def test_a_truncated_form(tmp_path: Path) -> None:
    refuse(tmp_path, build_form(build_part("a", b"1"), end=b""), 400, b"closing boundary is missing")
    refuse(tmp_path, build_form(end=b"--b0und"), 400, b"closing boundary is missing")
    refuse(tmp_path, build_form(end=b""), 400, b"closing boundary is missing")


@pytest.mark.parametrize(
    "part",
    [
        b"--b0und\r\n\r\nx\r\n",
        b"--b0und\r\ncontent-disposition: attachment\r\n\r\nx\r\n",
        b"--b0und\r\ncontent-disposition: form-data\r\n\r\nx\r\n",
        b"--b0und\r\n: x\r\n\r\nx\r\n",
        b"--b0und\r\nbad header: x\r\n\r\nx\r\n",
        b"--b0und\nx: y\n\nx\n",
        b"--b0undx\r\n\r\nx\r\n",
        b"no boundary at all",
        b"\0" * 100,
    ],
)
async def test_a_malformed_part(tmp_path: Path, part: bytes) -> None:
    refuse(tmp_path, build_form(part), 400, b"")


async def test_an_encoding_is_refused(tmp_path: Path) -> None:
    part = build_part("a", b"eA==", headers="content-transfer-encoding: base64\r\n")
    refuse(tmp_path, build_form(part), 400, b"base64")
    refuse(tmp_path, build_form(build_part("a", b"x"), headers="content-encoding: gzip\r\n"), 415, b"compressed")


async def test_a_field_that_is_not_utf_8(tmp_path: Path) -> None:
    refuse(tmp_path, build_form(build_part("a", b"\xff")), 400, b"not UTF-8")


async def test_a_form_within_a_form_is_data(tmp_path: Path) -> None:
    inner = b"--inner\r\ncontent-disposition: form-data; name=x\r\n\r\n1\r\n--inner--\r\n--b0un\r\n--b0undx"
    seen: list[Any] = []

    def reply(exchange: Exchange) -> None:
        seen.append({name: [file.read() for file in files] for name, files in read_form(exchange).files.items()})
        exchange.respond(200, b"ok")

    make_client(tmp_path, reply).send(build_form(build_part("a", inner, "inner", "content-type: multipart/mixed\r\n")))
    assert seen == [{"a": [inner]}]


async def test_what_follows_the_form_means_nothing(tmp_path: Path) -> None:
    client = make_client(tmp_path).send(build_form(build_part("a", b"1"), end=b"--b0und--\r\n" + b"x" * 50_000))
    assert client.statuses() == [200] and read_form(client.app.requests[0]).fields == {"a": ["1"]}


async def test_a_slow_drip(tmp_path: Path) -> None:
    client = make_client(tmp_path)
    data = build_form(build_part("file", b"x" * 4 * MB, "big"))
    client.send(data[:1000])
    wait(client, 21)
    assert client.statuses() == [408] and b"body_timeout_s" in client.received
    client = make_client(tmp_path).send(data[:1000])
    first = client.connection.deadline
    client.send(data[1000 : MB // 2])
    assert client.connection.deadline == first
    client.send(data[MB // 2 : MB + 1000])
    assert first is not None and client.connection.deadline is not None and client.connection.deadline > first
    client.transport.closed = True
    client.connection.connection_lost(None)
    await asyncio.sleep(0.2)


async def test_one_client_cannot_fill_the_disk(tmp_path: Path) -> None:
    settings_of_all = make_client(tmp_path)
    held = []
    for number in range(5):
        client = make_client(tmp_path)
        client.budgets = settings_of_all.budgets
        client.connection._body_reader._budgets = settings_of_all.budgets
        whole = build_form(
            build_part("file", b"x" * 4 * MB, "big"), headers=f"x-client: {'a' if number < 4 else 'b'}\r\n"
        )
        for start in range(0, len(whole) - 1000, MB):
            client.send(whole[start : min(start + MB, len(whole) - 1000)])
        held.append(client)
    assert [client.statuses() for client in held] == [[], [], [429], [429], []]
    assert b"client_form_disk_bytes" in held[2].received and b"retry-after: 1" in held[2].received
    for client in held:
        client.transport.closed = True
        client.connection.connection_lost(None)
    assert settings_of_all.budgets.forms.held == 0
    await asyncio.sleep(0.3)


async def test_a_form_needs_a_key_before_it_is_read(tmp_path: Path) -> None:
    client = make_client(tmp_path).send(build_form(build_part("a", b"1"), headers="x-no-key: 1\r\n"))
    assert client.statuses() == [401] and client.app.requests == []


async def test_a_route_without_forms_gets_the_bytes(tmp_path: Path) -> None:
    [exchange] = make_client(tmp_path).send(build_form(build_part("a", b"1"), path="/p")).app.requests
    assert exchange.form is None and exchange.body.startswith(b"--b0und")


async def test_a_route_with_forms_takes_json_too(tmp_path: Path) -> None:
    data = b"POST /form HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    [exchange] = make_client(tmp_path).send(data).app.requests
    assert exchange.form is None and exchange.body == b"{}"


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(st.binary(max_size=40), st.sampled_from([b"--b0und\r\n", b"--b0und--", b"\r\n\r\n", b"a: b\r\n"]))
    )
)
async def test_nothing_that_is_sent_raises(pieces: list[bytes]) -> None:
    client = make_client(Path("/nowhere"))
    client.send(build_form(*pieces, end=b""))
    client.connection.connection_lost(None)
    assert client.statuses() and client.budgets.forms.held == 0


async def test_a_form_leaves_no_reference_cycle(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        for data in (
            build_form(build_part("a", b"1", "f")),
            build_form(build_part("a", b"1"))[:-5],
            build_form(b"bad"),
        ):
            client = make_client(tmp_path).send(data)
            gone = weakref.ref(client.connection), weakref.ref(client.app)
            client.connection.connection_lost(None)
            client.transport.protocol = None
            client.app.requests.clear()
            del client
            await run_pending_callbacks()
            assert gone[0]() is None and gone[1]() is None
    finally:
        gc.enable()
