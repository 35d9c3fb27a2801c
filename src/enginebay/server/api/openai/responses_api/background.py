"""Background responses: they continue after the client disconnects, and can be cancelled from any server process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from enginebay.errors import Cancelled, EnginebayError, InvalidRequest
from enginebay.server.api.openai.response_objects import ResponseErrorObject, ResponseObject
from enginebay.server.api.openai.responses_api.turn import ResponseTurn, encode_outputs
from enginebay.server.encoding.error_responses import encode_error, get_error_row
from enginebay.server.encoding.sse_escape import escape_line_separators
from enginebay.server.http.exchange import Exchange, Headers
from enginebay.server.state.state_store import StateStore
from enginebay.server.state.stored_records import NotStored

if TYPE_CHECKING:
    from enginebay.server.requests.request_context import RequestContext
    from enginebay.server.requests.server_context import ServerContext
    from enginebay.server.state.state_client import StateClient

_encode = msgspec.json.Encoder().encode
_EVENTS_INTERVAL_S = 0.25  # between writes of a stream's events
_WATCH_INTERVAL_S = 1.0  # between looks for cancellations by other processes
_SEQUENCE = re.compile(rb'"sequence_number":(\d+)')


class BackgroundRuns:
    """The background responses of this process, by id."""

    def __init__(self, state: StateClient) -> None:
        self._state = state
        self._runs: dict[str, BackgroundRun] = {}
        self._unstored: dict[str, bytes] = {}  # responses that failed, until that is stored
        self._watch: asyncio.Task[None] | None = None

    def add(self, run: BackgroundRun) -> None:
        self._runs[run.turn.id] = run
        self._ensure_watch()

    def _ensure_watch(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._watch_store())

    def remove(self, response_id: str) -> None:
        self._runs.pop(response_id, None)

    def cancel(self, response_id: str) -> None:
        """Cancel it if it runs in this process; another process sees it in the store."""
        run = self._runs.get(response_id)
        if run is not None:
            run.exchange.cancel()

    def store_failure(self, response_id: str, body: bytes) -> None:
        """Store that a response failed: now, or once the state file can be used."""
        self._unstored[response_id] = body
        self._state.post(self._store_failure, response_id, body)
        self._ensure_watch()

    def _store_failure(self, store: StateStore, response_id: str, body: bytes) -> None:
        store.finish_response(response_id, self._state.runner, "failed", body)
        self._unstored.pop(response_id, None)

    async def _watch_store(self) -> None:
        """Look for cancellations, and store what could not be stored."""
        while self._runs or self._unstored:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            known = list(self._runs)
            try:
                for response_id, body in list(self._unstored.items()):
                    await self._state.call(self._store_failure, response_id, body)
                running = await self._state.call(StateStore.list_running, self._state.runner)
            except EnginebayError:
                continue
            for response_id in known:
                if response_id not in running:
                    self.cancel(response_id)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()


class BackgroundExchange(Exchange):
    """Stands in for the client's exchange once that has its answer. A stream still goes to the client, as long as it reads."""

    __slots__ = ("_batch", "_client", "_held_end", "_is_settled", "_last_events", "_timer", "run")

    def __init__(self, client: Exchange, run: BackgroundRun) -> None:
        super().__init__(client._connection, client.method, client.path, client.headers)
        self.body, self.received_at = client.body, client.received_at
        self.body_lease, client.body_lease = client.body_lease, None  # until this run ends
        self.status = 200
        self.run = run
        self._client: Exchange | None = client if run.streams else None
        self._batch = bytearray()  # events to store
        self._last_events = b""
        self._timer: asyncio.TimerHandle | None = None
        self._held_end: bytes | None = None  # the client gets the end once it is stored
        self._is_settled = False

    @property
    def congested(self) -> bool:
        return False

    @property
    def unsent_bytes(self) -> int:
        return 0

    def cancel(self) -> None:
        """End the work as if its client had disconnected."""
        self.closed = True
        if self.on_close is not None:
            self.on_close()

    def rewind_headers(self, mark: int) -> None:
        """Remove the headers of an attempt. `mark` is one of the client's exchange: all headers here came after it."""
        self._header_lines.clear()
        if self._client is not None:
            self._client.rewind_headers(mark)

    def respond(self, status: int, body: bytes, content_type: str = "application/json", headers: Headers = ()) -> None:
        self.started, self.status = True, status
        if self._client is not None:
            self._client.respond(status, body, content_type, headers)

    def start(self, status: int, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        self.started, self.status = True, status
        if self._client is not None:
            for line in self._header_lines:
                self._client.add_header_line(line)
            self._client.start(status, content_type, headers)

    def write(self, data: bytes) -> None:
        self._send(data)
        self._keep(data)

    def end(self, data: bytes = b"") -> None:
        self._keep(data)
        self._store_events()
        self._held_end = data
        if self._is_settled:
            self.settle()

    def end_cancelled(self, response: ResponseObject) -> None:
        """End the stream of a response that was cancelled, unless it has ended."""
        if self._held_end is not None:
            return
        last = _SEQUENCE.search(self._last_events.rstrip(b"\n").rpartition(b"\n\n")[2])
        error = ResponseErrorObject("server_error", "the response was cancelled")
        data = _encode(
            {
                "type": "response.failed",
                "sequence_number": int(last[1]) + 1 if last is not None else 0,
                "response": replace(response, status="cancelled", error=error),
            }
        )
        self.end(escape_line_separators(b"event: response.failed\ndata: %b\n\n" % data))

    def settle(self) -> None:
        """The response has ended in the store too: the client may know."""
        self._is_settled = True
        if self._held_end is not None and self._client is not None:
            self._send(self._held_end)
            self._client.end()
            self._client = None

    def _send(self, data: bytes) -> None:
        if self._client is not None and self._client.congested:  # it can read the rest later
            self._client.abort()
            self._client = None
        if self._client is not None:
            self._client.write(data)

    def _keep(self, data: bytes) -> None:
        if self.run.streams and data and not data.startswith(b":"):
            self._batch += data
            self._last_events = data
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_EVENTS_INTERVAL_S, self._store_events)

    def abort(self) -> None:
        self._store_events()
        if self._client is not None:
            self._client.abort()

    def _store_events(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        first = _SEQUENCE.search(self._batch)
        if first is not None:
            self.run.state.post(StateStore.append_events, self.run.turn.id, int(first[1]), bytes(self._batch))
        self._batch = bytearray()


@dataclass(slots=True, eq=False)
class BackgroundRun:
    """One background response, from its first answer to its end."""

    turn: ResponseTurn
    state: StateClient
    runs: BackgroundRuns
    response: ResponseObject  # as it was last stored
    streams: bool
    exchange: BackgroundExchange = field(init=False)

    def begin(self) -> None:
        """The response is about to be generated."""
        self.response.status = "in_progress"
        self.state.post(
            StateStore.set_running_body, self.turn.id, self.state.runner, "in_progress", _encode(self.response)
        )

    async def finish(self, response: ResponseObject) -> None:
        """Store the end of the response. Raises nothing: if it does not fit, it is stored as failed."""
        response.background = response.store = True
        self.runs.remove(self.turn.id)
        try:
            await self.state.call(
                StateStore.finish_response, self.turn.id, self.state.runner, response.status, _encode(response),
                encode_outputs(response),
            )  # fmt: skip
        except (NotStored, EnginebayError) as error:
            self._store_failure("server_error", f"the response could not be stored: {error}")
        self.exchange.settle()
        self.exchange.release_body()

    def fail(self, error: EnginebayError) -> None:
        self.runs.remove(self.turn.id)
        is_cancelled = isinstance(error, Cancelled) and self.exchange.closed
        if is_cancelled and self.streams and self.exchange.started:
            self.exchange.end_cancelled(self.response)
        self.exchange.settle()
        self.exchange.release_body()
        if is_cancelled:
            return  # whoever cancelled it has stored that
        code = "invalid_prompt" if get_error_row(error).status < 500 else "server_error"
        self._store_failure(code, encode_error(error).message)

    def _store_failure(self, code: str, message: str) -> None:
        self.response.status, self.response.error = "failed", ResponseErrorObject(code, message)
        self.runs.store_failure(self.turn.id, _encode(self.response))


async def move_to_background(
    context: ServerContext, request_context: RequestContext, turn: ResponseTurn, queued: ResponseObject, streams: bool
) -> BackgroundRun:
    """Store the response as queued, answer the client, and let the request go on without it."""
    state, runs = context.state, context.background
    assert state is not None and runs is not None
    queued.background = queued.store = True
    queued.status = "queued"

    def add(store: StateStore) -> None:
        store.add_response(turn.owner, turn.make_record("queued", _encode(queued), runner=state.runner))

    try:
        await state.call(add)
    except NotStored as reason:
        raise InvalidRequest(
            f"the response cannot be stored: {reason}", "remove background", param="background"
        ) from None
    run = BackgroundRun(turn, state, runs, queued, streams)
    client = request_context.exchange
    run.exchange = BackgroundExchange(client, run)
    if not streams:
        client.respond(200, _encode(queued))
    request_context.exchange, request_context.background = run.exchange, run
    runs.add(run)
    return run
