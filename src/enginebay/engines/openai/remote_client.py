"""Client for the remote server: sends requests, retries if that is safe, and reads the responses."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl

from enginebay.contract import Sink
from enginebay.engines.openai.connection_pool import ConnectionPool, NoResponse, RemoteConnection, RemoteResponse
from enginebay.engines.openai.errors import RETRYABLE_STATUSES, error_from_status, parse_retry_after_s
from enginebay.engines.openai.http_response import MalformedResponse
from enginebay.engines.openai.remote_server import RemoteServer
from enginebay.engines.openai.sse_reader import SseReader
from enginebay.engines.openai.stream_decoder import StreamDecoder
from enginebay.errors import EnginebayError, EngineFailed, Unreachable

_log = logging.getLogger(__name__)

_MAX_ERROR_BYTES = 1 << 16
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0  # a longer Retry-After is not waited for
_DRAIN_TIMEOUT_S = 1.0  # the rest of a response is only read to keep the connection


class RemoteClient:
    """Client of one server, used in one event loop."""

    def __init__(self, server: RemoteServer) -> None:
        self._server = server
        self._pool = ConnectionPool(server)
        self._warned_missing_usage = False
        self._drain_tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._drain_tasks:
            task.cancel()
        self._pool.close()

    async def fetch(self, path: str, max_bytes: int) -> bytes:
        """Return the body of a small response. Raises an `EnginebayError` unless the status is 200."""
        response = await self._send_with_retries(self._server.build_get(path))
        try:
            async with asyncio.timeout(self._server.first_token_timeout_s):
                return await response.read_all(max_bytes)
        except TimeoutError:
            raise self._make_timeout_error("did not complete its response") from None
        except (OSError, MalformedResponse) as error:
            raise self._make_broken_error(error) from None
        finally:
            self._pool.release(response)

    async def generate(self, number: int, path: str, body: bytes, choices: int, prompt_tokens: int, sink: Sink) -> None:
        """Stream one response into the sink. May raise an `EnginebayError` before or during the stream."""
        response = await self._send_with_retries(self._server.build_post(path, body))
        try:
            self._check_content_type(response)
            sink.accepted(number, prompt_tokens)
            decoder = StreamDecoder(self._server, number, choices, sink)
            await self._read_stream(response, decoder, sink)
        except BaseException:
            response.connection.close()
            raise
        self._warn_missing_usage(decoder)
        self._keep_connection(response)

    def _check_content_type(self, response: RemoteResponse) -> None:
        authority = self._server.authority
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            shown = kind[:80] if kind.isprintable() and kind else "no content type"
            raise EngineFailed(
                f"{authority} returned {shown} instead of an event stream",
                "check that openai.url is the API's base URL",
            )
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise EngineFailed(f"{authority} compressed its response although the request forbids it")

    async def _read_stream(self, response: RemoteResponse, decoder: StreamDecoder, sink: Sink) -> None:
        """Read until the sink has everything. Flushes once per read."""
        events = SseReader()
        started = False
        due = response.sent_at + self._server.first_token_timeout_s
        try:
            while not decoder.delivered:
                async with asyncio.timeout_at(due):
                    data = await response.read()
                try:
                    moved = [decoder.feed(event) for event in (events.feed(data) if data else events.end())]
                    if not data or decoder.done:
                        decoder.end()
                finally:
                    sink.flush()
                if any(moved):
                    started = True
                    due = asyncio.get_running_loop().time() + self._server.token_timeout_s
        except TimeoutError:
            problem: EnginebayError = self._make_timeout_error("sent no further token" if started else "sent no token")
        except (OSError, MalformedResponse) as error:
            problem = self._make_broken_error(error)
        else:
            return
        if not decoder.finished:
            raise problem
        decoder.end()  # only the usage is missing
        sink.flush()

    def _keep_connection(self, response: RemoteResponse) -> None:
        """Keep the connection for the next request. Reads the rest of the response in the background."""
        if response.is_complete:
            self._pool.release(response)
            return
        task = asyncio.create_task(self._drain_response(response))
        self._drain_tasks.add(task)
        task.add_done_callback(self._drain_tasks.discard)

    async def _drain_response(self, response: RemoteResponse) -> None:
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                while await response.read():
                    pass
        except (OSError, MalformedResponse):
            pass  # the connection is not kept
        finally:
            self._pool.release(response)

    def _warn_missing_usage(self, decoder: StreamDecoder) -> None:
        if decoder.usage is None and not self._warned_missing_usage:
            self._warned_missing_usage = True
            _log.warning("%s does not report token usage; tokens are not counted", self._server.authority)

    # Sending and retrying. Retries only before any byte of a usable response.

    async def _send_with_retries(self, request: bytes) -> RemoteResponse:
        """Return the response with status 200. Raises an `EnginebayError` once all retries fail."""
        tries = 0
        while True:
            outcome = await self._send_once(request)
            if isinstance(outcome, RemoteResponse):
                return outcome
            problem, pause = outcome
            if pause is None or tries >= self._server.retries or pause > _MAX_BACKOFF_S:
                raise problem
            backoff = _FIRST_BACKOFF_S * 2**tries * random.uniform(0.5, 1.0)
            tries += 1
            _log.info("retrying %s: %s", self._server.authority, problem.message)
            await asyncio.sleep(max(pause, min(backoff, _MAX_BACKOFF_S)))

    async def _send_once(self, request: bytes) -> RemoteResponse | tuple[EnginebayError, float | None]:
        """Return the response, or the error and the seconds to wait before a retry (None: do not retry)."""
        server = self._server
        while True:
            try:
                connection = await self._pool.acquire()
            except ssl.SSLCertVerificationError as error:
                return self._make_certificate_error(error), None
            except OSError as error:
                return self._make_unreachable_error(error), 0.0
            try:
                response = await self._send_on(connection, request)
            except NoResponse as error:
                if error.reused:
                    continue  # it was closed while idle: does not count as a retry
                return Unreachable(f"request to {server.authority} failed: {error}"), 0.0
            if response.status == 200:
                return response
            pause = (parse_retry_after_s(response.headers) or 0.0) if response.status in RETRYABLE_STATUSES else None
            return await self._read_error(response), pause

    async def _send_on(self, connection: RemoteConnection, request: bytes) -> RemoteResponse:
        """Send the request and return the response head. Closes the connection if none arrives."""
        response: RemoteResponse | None = None
        try:
            async with asyncio.timeout(self._server.first_token_timeout_s):
                response = await connection.send(request)
                return response
        except TimeoutError:
            raise self._make_timeout_error("did not respond") from None
        except (OSError, MalformedResponse) as error:
            raise self._make_broken_error(error) from None
        finally:
            if response is None:
                connection.close()

    async def _read_error(self, response: RemoteResponse) -> EnginebayError:
        body = b""
        try:
            async with asyncio.timeout(self._server.connect_timeout_s):
                body = await response.read_all(_MAX_ERROR_BYTES)
        except (OSError, MalformedResponse):
            pass  # the status is enough
        finally:
            self._pool.release(response)
        return error_from_status(self._server, response.status, response.headers, body)

    # Errors

    def _make_timeout_error(self, problem: str) -> Unreachable:
        return Unreachable(f"the remote server {self._server.authority} {problem} before the timeout")

    def _make_broken_error(self, error: Exception) -> EngineFailed:
        authority = self._server.authority
        if isinstance(error, MalformedResponse):
            return EngineFailed(f"the remote server {authority} sent {error}")
        return Unreachable(f"the connection to {authority} was lost: {_describe_error(error)}")

    def _make_unreachable_error(self, error: OSError) -> Unreachable:
        reason = "the connection timed out" if isinstance(error, TimeoutError) else _describe_error(error)
        return Unreachable(f"{self._server.authority} is unreachable: {reason}", "check openai.url")

    def _make_certificate_error(self, error: ssl.SSLCertVerificationError) -> Unreachable:
        return Unreachable(
            f"the certificate of {self._server.authority} cannot be verified: {error.verify_message}",
            "for a private CA, add its certificate to the file in SSL_CERT_FILE",
        )


def _describe_error(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split())[:200] or type(error).__name__
