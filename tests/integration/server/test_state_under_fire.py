"""Stored state when servers are killed, disks are full, and keys try each other's ids."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest

from enginebay.config.sections.server_section import StateLimits
from enginebay.server.auth.api_keys import create_key
from enginebay.server.state.state_store import StateStore
from enginebay.server.state.stored_records import NewResponse, StoredItem
from tests.integration.server.bay_process import BayProcess, read_command, run_server
from tests.integration.server.fake_requests import build_bearer, build_config

KILLS = 4
BODY = {"model": "toy", "max_output_tokens": 3, "ignore_eos": True}


def post(server: BayProcess, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=60, verify=False)


def list_server_processes(server: BayProcess) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children()
    return [one for one in children if "enginebay.server.supervisor.child_server" in " ".join(read_command(one))]


def wait_for_both(server: BayProcess) -> list[psutil.Process]:
    """The supervisor starts another process for one that died."""
    deadline = time.monotonic() + 60
    while len(found := list_server_processes(server)) < 2 and time.monotonic() < deadline:
        time.sleep(0.3)  # it reads the whole process table
    return found


class _Writer(threading.Thread):
    """Continues its own chain of responses, and notes those whose end it has read."""

    def __init__(self, server: BayProcess, number: int) -> None:
        super().__init__()
        self._server, self._number = server, number
        self.stopping = threading.Event()
        self.seen: list[str] = []
        self.refused: list[str] = []

    def run(self) -> None:
        # A new connection each time: either process may accept it. One client, since each would read the certificates.
        with httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), timeout=60) as client:
            self._continue_chain(client)

    def _continue_chain(self, client: httpx.Client) -> None:
        while not self.stopping.is_set():
            previous = {"previous_response_id": self.seen[-1]} if self.seen else {}
            body = {**BODY, **previous, "input": f"turn {len(self.seen)} of {self._number}", "store": True}
            try:
                answer = client.post(f"{self._server.url}/v1/responses", json=body)
            except httpx.HTTPError:  # the process that it talked to was killed
                continue
            if answer.status_code == 200 and answer.json()["store"]:
                self.seen.append(answer.json()["id"])
            else:
                self.refused.append(answer.text[:300])


@pytest.mark.slow
def test_servers_are_killed_at_random(tmp_path: Path) -> None:
    """What a client has read the end of is there after all of it, whole, and can be continued."""
    rng = random.Random(7)
    config = build_config({"step_s": 0.001}, workers=2)
    environ = {"ENGINEBAY_HOME": str(tmp_path)}
    with run_server(config=config, environ=environ, exit_code=-signal.SIGKILL) as server:
        background = post(
            server, "/v1/responses", {**BODY, "input": "x", "background": True, "max_output_tokens": 3000}
        )
        writers = [_Writer(server, number) for number in range(4)]
        for writer in writers:
            writer.start()
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.5, 1.5))
            for process in rng.sample(wait_for_both(server), k=1):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        wait_for_both(server)
        time.sleep(rng.uniform(0.5, 1.5))
        for process in (*list_server_processes(server), psutil.Process(server.process.pid)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for writer in writers:
            writer.stopping.set()
            writer.join(60)
    check_file(tmp_path / "state" / "responses.db")
    with run_server(config=config, environ=environ) as server:
        client = server.openai()
        assert sum(len(writer.seen) for writer in writers) > 20, [writer.refused[:2] for writer in writers]
        for writer in writers:
            for response_id in writer.seen:
                assert client.responses.retrieve(response_id).output_text
            body = {"model": "toy", "input": "x"}
            last = post(server, "/v1/responses/input_tokens", {**body, "previous_response_id": writer.seen[-1]})
            alone = post(server, "/v1/responses/input_tokens", body)
            assert last.json()["input_tokens"] > alone.json()["input_tokens"] + 8 * len(writer.seen), "every turn"
        assert background.status_code == 200
        found = client.responses.retrieve(background.json()["id"])
        assert found.status == "failed" and found.error is not None, "it does not survive a restart"


def check_file(path: Path) -> None:
    """Nothing is half-written: each response has its input and its output, and its object is JSON."""
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    rows = database.execute(
        "SELECT body, (SELECT count(*) FROM items WHERE response = responses.id AND NOT is_output), "
        "(SELECT count(*) FROM items WHERE response = responses.id AND is_output) FROM responses WHERE runner = ''"
    ).fetchall()
    assert rows
    for body, inputs, outputs in rows:
        assert inputs == 1 and outputs == len(json.loads(body)["output"]) >= 1
    database.close()


def test_keys_do_not_see_each_other(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    (mine, _), (other, _) = create_key(keys, "mine"), create_key(keys, "other")
    config = build_config({}, workers=2)
    with run_server(config=config, environ={"ENGINEBAY_HOME": str(tmp_path)}) as server:

        def ask(key: str, method: str, path: str, body: Any = None) -> httpx.Response:
            return httpx.request(
                method, f"{server.url}{path}", json=body, headers=build_bearer(key), timeout=60, verify=False
            )

        made = ask(mine, "POST", "/v1/responses", {**BODY, "input": "secret"}).json()
        conversation = ask(
            mine, "POST", "/v1/conversations", {"items": [{"role": "user", "content": "secret"}]}
        ).json()["id"]
        running = {**BODY, "input": "secret", "background": True, "max_output_tokens": 500}
        background = ask(mine, "POST", "/v1/responses", running).json()["id"]
        item = ask(mine, "GET", f"/v1/responses/{made['id']}/input_items").json()["data"][0]["id"]
        attempts = [
            ("GET", f"/v1/responses/{made['id']}", None, 404),
            ("GET", f"/v1/responses/{made['id']}?stream=true", None, 404),
            ("DELETE", f"/v1/responses/{made['id']}", None, 404),
            ("GET", f"/v1/responses/{made['id']}/input_items", None, 404),
            ("POST", f"/v1/responses/{background}/cancel", None, 404),
            ("DELETE", f"/v1/responses/{background}", None, 404),
            ("GET", f"/v1/conversations/{conversation}", None, 404),
            ("POST", f"/v1/conversations/{conversation}", {"metadata": {}}, 404),
            ("DELETE", f"/v1/conversations/{conversation}", None, 404),
            ("GET", f"/v1/conversations/{conversation}/items", None, 404),
            ("POST", f"/v1/conversations/{conversation}/items", {"items": [{"role": "user", "content": "x"}]}, 404),
            ("GET", f"/v1/conversations/{conversation}/items/{item}", None, 404),
            ("DELETE", f"/v1/conversations/{conversation}/items/{item}", None, 404),
            ("POST", "/v1/responses", {**BODY, "input": "x", "previous_response_id": made["id"]}, 400),
            ("POST", "/v1/responses", {**BODY, "input": "x", "conversation": conversation}, 404),
            ("POST", "/v1/responses", {**BODY, "input": [{"type": "item_reference", "id": item}]}, 400),
            ("POST", "/v1/responses/compact", {"model": "toy", "previous_response_id": made["id"]}, 400),
            ("POST", "/v1/responses/input_tokens", {"model": "toy", "previous_response_id": made["id"]}, 400),
        ]
        for method, path, body, status in attempts:
            answer = ask(other, method, path, body)
            unknown = ask(other, method, _hide_ids(path), json.loads(_hide_ids(json.dumps(body))))
            assert answer.status_code == unknown.status_code == status, (method, path, answer.text)
            assert "secret" not in answer.text
            assert answer.json()["error"]["code"] == unknown.json()["error"]["code"], "as if it had never been"
            assert httpx.request(method, f"{server.url}{path}", json=body, timeout=60, verify=False).status_code == 401
        assert ask(mine, "GET", f"/v1/responses/{made['id']}").json() == made


def _hide_ids(text: str) -> str:
    """Replace the digits of ids by zeros: ids that nobody has."""
    words = text.split("_")
    return "_".join("0" * 48 + word[48:] if len(word) >= 48 else word for word in words)


def test_too_large_to_store_is_answered(tmp_path: Path) -> None:
    config = build_config({"context_length": 1 << 20}, state={"max_bytes": "1MiB"})
    with run_server(config=config, environ={"ENGINEBAY_HOME": str(tmp_path)}) as server:
        body = {**BODY, "input": "x" * 200_000}
        answer = post(server, "/v1/responses", body)
        assert answer.status_code == 200 and answer.json()["store"] is False
        assert "store: one conversation may take" in answer.headers["x-enginebay-ignored"]
        streamed = post(server, "/v1/responses", {**body, "stream": True}).text
        assert ": x-enginebay-ignored: store: one conversation may take" in streamed
        assert json.loads(streamed.splitlines()[-2][6:])["response"]["store"] is False
        assert post(server, "/v1/responses", {**body, "background": True}).status_code == 400
        assert server.read_log().count("response not stored") == 2
        for number in range(60):
            assert post(server, "/v1/responses", {**BODY, "input": f"{number}" * 20_000}).json()["store"] is True
        assert (tmp_path / "state" / "responses.db").stat().st_size <= 1 << 20


@pytest.mark.root
def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "state"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        config = build_config({"context_length": 1 << 20})
        with run_server(config=config, environ={"ENGINEBAY_HOME": str(tmp_path)}) as server:
            kept = post(server, "/v1/responses", {**BODY, "input": "hi"}).json()
            assert kept["store"] is True
            filler = disk / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(b"\0" * 4096):
                    pass
            reasons = set()
            for _ in range(40):
                answer = post(server, "/v1/responses", {**BODY, "input": "y" * 20_000})
                assert answer.status_code == 200 and answer.json()["output"]
                if not answer.json()["store"]:
                    reasons.add(answer.headers["x-enginebay-ignored"])
            assert reasons == {"store: the disk is full"} and "response not stored" in server.read_log()
            filler.unlink()
            assert post(server, "/v1/responses", {**BODY, "input": "hi"}).json()["store"] is True
            assert httpx.get(f"{server.url}/v1/responses/{kept['id']}", timeout=60).json() == kept
        check_file(disk / "responses.db")
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_a_newer_file_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    database = sqlite3.connect(tmp_path / "state" / "responses.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with (
        pytest.raises(AssertionError),
        run_server(config=build_config({}), environ={"ENGINEBAY_HOME": str(tmp_path)}, patience_s=60),
    ):
        pass


@pytest.mark.slow
def test_a_million_items(tmp_path: Path) -> None:
    """The file stays within its size, and each look-up has an index, whatever went through it."""
    limit, path = 128 << 20, tmp_path / "responses.db"
    store = StateStore(path, StateLimits(max_bytes=limit))
    last = ""
    for number in range(1000):
        items = [StoredItem(f"msg_{number}_{item}", b"x" * 200) for item in range(1000)]
        last = f"resp_{number}"
        store.add_response(f"key {number % 3}", NewResponse(last, "completed", b"{}", items))
        if number % 50 == 0:
            assert path.stat().st_size <= limit
    used = store.count_used_bytes()
    assert 0.5 * limit < used <= limit and path.stat().st_size <= limit
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= limit + (16 << 20), "with the write-ahead log"
    began = time.perf_counter()
    for item in range(1000):
        assert store.find_items("key 0", [f"msg_999_{item}"]) and not store.find_items("key 1", [f"msg_999_{item}"])
    assert time.perf_counter() - began < 30
    assert len(store.load_history("key 0", last) or ()) == 1000
    kept = store._database.execute("SELECT owner, count(*) FROM chains GROUP BY owner").fetchall()
    assert len(kept) == 3 and max(count for _, count in kept) - min(count for _, count in kept) <= 2, "fair shares"
    assert store._database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
