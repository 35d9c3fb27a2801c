"""POST /api/pull: downloads a model into the store, as `bay models pull` does, and reports progress."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable

import msgspec

from enginebay.errors import Cancelled, EnginebayError, FetchFailed, InvalidRequest, Overloaded, Unsupported, UsageError
from enginebay.models import KNOWN_MODELS, ModelStore
from enginebay.models.model_manifest import StoredModel
from enginebay.models.model_sources import HfSource, parse_source
from enginebay.server.api.admin.endpoints import encode_full_error
from enginebay.server.api.body_decoder import read_body
from enginebay.server.api.ollama.model_details import get_name
from enginebay.server.api.ollama.ollama_encoder import NDJSON
from enginebay.server.api.ollama.schemas import OllamaErrorObject, OllamaProgressObject, OllamaPullBody
from enginebay.server.encoding.error_responses import build_error_headers, get_error_row
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import add_translation_headers
from enginebay.server.requests.server_context import ServerContext
from enginebay.util.progress import Advance, ProgressSink

HINT = "run `bay models pull` on the server's host"  # for callers that may not
_REPORT_S = 0.25
_MAX_PULLS = 4  # per server process
_HUB_PREFIXES = ("https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/")

_running: set[object] = set()
_encode = msgspec.json.Encoder().encode


def parse_pull_source(name: str) -> str:
    """Return what the store pulls: a name from the catalogue, or a Hugging Face repository. Raise `RequestError`."""
    source = name.removesuffix(":latest")
    for prefix in _HUB_PREFIXES:
        if source.startswith(prefix):
            source = f"hf:{source.removeprefix(prefix)}"
    if source in KNOWN_MODELS:
        return source
    if not source.startswith("hf:"):
        raise Unsupported(
            f"cannot pull {name[:100]!r}: this server has no Ollama library",
            f"use hf:org/name, hf:org/name:file.gguf or one of {', '.join(KNOWN_MODELS)}; for other sources, {HINT}",
            param="model",
        )
    try:
        parsed = parse_source(source)
    except UsageError as error:
        raise InvalidRequest(error.message[:200], error.hint, param="model") from None
    if not isinstance(parsed, HfSource) or not all(part.strip(".") for part in parsed.repo.split("/")):
        raise InvalidRequest(f"{name[:100]!r} is not a repository", "use hf:org/name", param="model")
    return source


async def pull(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(OllamaPullBody, context, request_context)
    name = get_name(body)
    request_context.model = name
    request_context.stream = body.stream is not False
    add_translation_headers(request_context)
    if name in context.catalog.names or name.removesuffix(":latest") in context.catalog.names:
        _respond_served(request_context)
        return
    source = parse_pull_source(name)
    if len(_running) >= _MAX_PULLS:
        raise Overloaded(f"{len(_running)} models are being pulled", "wait for one of them", retry_after_s=10.0)
    await _PullResponse(request_context, PullRun(source, context.offline)).run()


def _respond_served(request_context: RequestContext) -> None:
    """The server has the model already."""
    exchange, success = request_context.exchange, _encode_status("success")
    if request_context.stream:
        exchange.respond(200, _encode_status("pulling manifest") + b"\n" + success + b"\n", NDJSON)
    else:
        exchange.respond(200, success)


def _encode_status(status: str) -> bytes:
    return _encode(OllamaProgressObject(status=status))


class PullRun(ProgressSink):
    """One pull, in a thread of its own: a download would block threads that requests need."""

    def __init__(self, source: str, offline: bool) -> None:
        self.source = source
        self._offline = offline
        self._cancelled = False
        self._said: list[str] = []
        self._label = ""
        self._total: int | None = None
        self._completed = 0
        self._reported: tuple[str, int] = ("", -1)

    def start(self) -> asyncio.Future[StoredModel]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[StoredModel] = loop.create_future()
        _running.add(self)
        future.add_done_callback(lambda _: _running.discard(self))

        def settle(call: Callable[[], None]) -> None:
            if not future.done():
                call()

        def work() -> None:
            try:
                model = ModelStore().pull(self.source, offline=self._offline, say=self)
                loop.call_soon_threadsafe(settle, lambda: future.set_result(model))
            except Exception as error:
                problem = error
                loop.call_soon_threadsafe(settle, lambda: future.set_exception(problem))

        threading.Thread(target=work, name="pull", daemon=True).start()
        return future

    def cancel(self) -> None:
        """Stop at the next piece. What has arrived stays, and the next pull resumes."""
        self._cancelled = True

    # In the thread

    def __call__(self, text: str) -> None:
        self._said.append(text)

    def track(self, label: str, total: int | None, done: int) -> Advance:
        self._label, self._total, self._completed = label, total, done

        def advance(count: int) -> None:
            if self._cancelled:
                raise FetchFailed("the client closed the connection")
            self._completed += count

        return advance

    # In the event loop

    def take_lines(self) -> bytes:
        """Return what is new as lines."""
        said, self._said = self._said, []
        lines = [_encode_status(text) for text in said]
        state = (self._label, self._completed)
        if self._label and state != self._reported:
            self._reported = state
            digest = hashlib.sha256(f"{self.source} {self._label}".encode()).hexdigest()  # by which clients group them
            progress = OllamaProgressObject(
                status=self._label, digest=f"sha256:{digest}", completed=max(0, self._completed)
            )
            if self._total is not None:
                progress.total = self._total
            lines.append(_encode(progress))
        return b"".join(line + b"\n" for line in lines)


class _PullResponse:
    """The response to one pull."""

    def __init__(self, request_context: RequestContext, run: PullRun) -> None:
        self._request_context = request_context
        self._exchange = request_context.exchange
        self._run = run

    async def run(self) -> None:
        pulling = self._run.start()
        try:
            if self._request_context.stream:
                self._exchange.start(200, NDJSON, {"cache-control": "no-cache"})
                self._exchange.write(_encode_status("pulling manifest") + b"\n")
            while not pulling.done():
                await asyncio.wait({pulling}, timeout=_REPORT_S)
                if self._exchange.closed:
                    raise Cancelled("the client closed the connection")
                if self._request_context.stream and not self._exchange.congested:
                    self._exchange.write(self._run.take_lines())
            self._respond_success(pulling.result())
        except Cancelled:
            raise
        except EnginebayError as error:
            self._respond_failure(error)
        finally:
            self._run.cancel()
            pulling.cancel()

    def _respond_success(self, model: StoredModel) -> None:
        if not self._request_context.stream:
            self._exchange.respond(200, _encode_status("success"))
            return
        stored = f"stored as {model.name}; add it to the configuration's models to serve it"
        self._exchange.end(_encode_status(stored) + b"\n" + _encode_status("success") + b"\n")

    def _respond_failure(self, error: EnginebayError) -> None:
        """Respond with all that is known: the caller is an administrator."""
        self._request_context.error = error.with_traceback(None)
        body = _encode(OllamaErrorObject(encode_full_error(error).message))
        if self._request_context.stream:
            self._exchange.end(body + b"\n")
        else:
            self._exchange.respond(get_error_row(error).status, body, headers=build_error_headers(error))
