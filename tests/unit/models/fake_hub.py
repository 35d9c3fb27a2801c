"""A fake Hugging Face hub on localhost: lists a repository, serves its files, fails on demand.

    with serve_hub(FakeHub({"config.json": b"{}", ...})) as hub:
        ... HF_ENDPOINT=hub.url ...

It answers what huggingface_hub asks: the model's information with file sizes and hashes, and files with ranges.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".gguf", ".bin")  # the hub keeps these apart and gives their sha256


def _make_set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class FakeHub:
    files: dict[str, bytes]
    repo: str = "org/tiny"
    revisions: tuple[str, ...] = ("main", "v1")
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    cut_after: int | None = None  # stop in the middle of any file that is larger ...
    after_cut: dict[str, Any] = field(default_factory=dict)  # ... and be so from then on
    broken: bool = False  # answer 500 to requests for files
    ignore_ranges: bool = False
    damage: bool = False  # flip a byte of what is served
    go_on: threading.Event = field(default_factory=_make_set_event)  # waited for before each piece ...
    held_from: int = 0  # ... after this many bytes
    gated: bool = False
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # (file, range asked for)
    url: str = ""

    def information(self) -> dict[str, object]:
        siblings = [self._sibling(name, content) for name, content in sorted(self.files.items())]
        return {"_id": "1", "id": self.repo, "modelId": self.repo, "sha": self.commit, "siblings": siblings, "tags": []}

    def _sibling(self, name: str, content: bytes) -> dict[str, object]:
        found: dict[str, object] = {"rfilename": name, "size": len(content)}
        found["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        if name.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
        return found


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        api, resolve = f"/api/models/{self.hub.repo}", f"/{self.hub.repo}/resolve/{self.hub.commit}/"
        if path.startswith(resolve):
            self._send_file(path.removeprefix(resolve))
        elif not path.startswith("/api/models/") or not path.startswith(api):
            self._send_answer(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif self.hub.gated:
            self._send_answer(403, {"error": "Access is restricted"}, {"X-Error-Code": "GatedRepo"})
        elif path.removeprefix(api).removeprefix("/revision/") not in ("", self.hub.commit, *self.hub.revisions):
            self._send_answer(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            self._send_answer(200, self.hub.information(), {})

    do_HEAD = do_GET

    def _send_answer(self, status: int, content: object, headers: dict[str, str]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, name: str) -> None:
        asked = self.headers.get("Range")
        self.hub.requests.append((name, asked))
        if self.hub.broken or name not in self.hub.files:
            self._send_answer(500 if self.hub.broken else 404, {"error": "no"}, {})
            return
        content = self.hub.files[name]
        start = 0 if asked is None or self.hub.ignore_ranges else int(asked.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", '"1"')
        self.end_headers()
        self._send(content, start)

    def _send(self, content: bytes, start: int) -> None:
        if self.hub.damage:
            content = content[:-1] + bytes([content[-1] ^ 1])
        end = len(content)
        if self.hub.cut_after is not None and end > self.hub.cut_after:
            end = max(start, self.hub.cut_after)
            self.close_connection = True
        for offset in range(start, end, 65536):
            if offset >= self.hub.held_from:
                self.hub.go_on.wait(60)
            self.wfile.write(content[offset : min(offset + 65536, end)])
        if end < len(content):
            vars(self.hub).update(self.hub.after_cut)

    def log_message(self, *_: object) -> None: ...

    def handle_error(self, *_: object) -> None: ...


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that goes away is part of the tests."""


@contextmanager
def serve_hub(hub: FakeHub) -> Iterator[FakeHub]:
    handler = type("BoundHandler", (HubHandler,), {"hub": hub})
    server = QuietServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
