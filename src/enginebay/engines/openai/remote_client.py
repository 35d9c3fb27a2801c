"""Asking the server: requests are sent, sent again where that is safe, and their answers read."""

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
_MAX_BACKOFF_S = 30.0  # a server that wants more than that is not waited for
_DRAIN_TIMEOUT_S = 1.0  # what stands behind an answer is only read so that the connection can be kept


class RemoteClient:
    """Talks to one server, from within one event loop."""

    def __init__(self, server: RemoteServer) -> None:
        self._server = server
        self._pool = ConnectionPool(server)
        self._warned_missing_usage = False
        self._drain_tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for tail in self._drain_tasks:
            tail.cancel()
        self._pool.close()

    async def fetch(self, path: str, max_bytes: int) -> bytes:
        """The body of a small answer. Raises an `EnginebayError` unless the server answers with 200."""
        reply = await self._send_with_retries(self._server.build_get(path))
        try:
            async with asyncio.timeout(self._server.first_token_timeout_s):
                return await reply.read_all(max_bytes)
        except TimeoutError:
            raise self._make_timeout_error("did not complete its answer") from None
        except (OSError, MalformedResponse) as error:
            raise self._make_broken_error(error) from None
        finally:
            self._pool.release(reply)

    async def generate(self, number: int, path: str, body: bytes, choices: int, prompt_tokens: int, sink: Sink) -> None:
        """One streamed answer into the sink. Raises an `EnginebayError`, before or in the middle of it."""
        reply = await self._send_with_retries(self._server.build_post(path, body))
        try:
            self._check_content_type(reply)
            sink.accepted(number, prompt_tokens)
            answer = StreamDecoder(self._server, number, choices, sink)
            await self._read_stream(reply, answer, sink)
        except BaseException:
            reply.connection.close()
            raise
        self._warn_missing_usage(answer)
        self._keep_connection(reply)

    def _check_content_type(self, reply: RemoteResponse) -> None:
        place = self._server.authority
        kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            shown = kind[:80] if kind.isprintable() and kind else "something unnamed"
            raise EngineFailed(
                f"{place} answers with {shown} instead of a stream of events", "check that openai.url is its API"
            )
        if reply.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise EngineFailed(f"{place} compresses its answer although it was asked not to")

    async def _read_stream(self, reply: RemoteResponse, answer: StreamDecoder, sink: Sink) -> None:
        """Until the sink has all of it. What comes together goes out together."""
        events = SseReader()
        begun = False
        due = reply.sent_at + self._server.first_token_timeout_s
        try:
            while not answer.delivered:
                async with asyncio.timeout_at(due):
                    data = await reply.read()
                try:
                    moved = [answer.feed(one) for one in (events.feed(data) if data else events.end())]
                    if not data or answer.done:
                        answer.end()
                finally:
                    sink.flush()
                if any(moved):
                    begun = True
                    due = asyncio.get_running_loop().time() + self._server.token_timeout_s
        except TimeoutError:
            problem: EnginebayError = self._make_timeout_error("went silent" if begun else "sent no token")
        except (OSError, MalformedResponse) as error:
            problem = self._make_broken_error(error)
        else:
            return
        if not answer.finished:
            raise problem
        answer.end()  # only the count of tokens is missing
        sink.flush()

    def _keep_connection(self, reply: RemoteResponse) -> None:
        """For the next request; the rest of the answer, which nobody waits for, is read aside."""
        if reply.is_complete:
            self._pool.release(reply)
            return
        tail = asyncio.create_task(self._drain_response(reply))
        self._drain_tasks.add(tail)
        tail.add_done_callback(self._drain_tasks.discard)

    async def _drain_response(self, reply: RemoteResponse) -> None:
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                while await reply.read():
                    pass
        except (OSError, MalformedResponse):
            pass  # this connection is just not kept
        finally:
            self._pool.release(reply)

    def _warn_missing_usage(self, answer: StreamDecoder) -> None:
        if answer.usage is None and not self._warned_missing_usage:
            self._warned_missing_usage = True
            _log.warning("%s does not say how many tokens it used: they are not counted", self._server.authority)

    # Sending, and sending again: only as long as not a byte of an answer to use has come.

    async def _send_with_retries(self, request: bytes) -> RemoteResponse:
        """The answer with status 200. Raises an `EnginebayError` when there is none after all tries."""
        tries = 0
        while True:
            outcome = await self._send_once(request)
            if isinstance(outcome, RemoteResponse):
                return outcome
            problem, pause = outcome
            if pause is None or tries >= self._server.retries or pause > _MAX_BACKOFF_S:
                raise problem
            least = _FIRST_BACKOFF_S * 2**tries * random.uniform(0.5, 1.0)
            tries += 1
            _log.info("asking %s again: %s", self._server.authority, problem.message)
            await asyncio.sleep(max(pause, min(least, _MAX_BACKOFF_S)))

    async def _send_once(self, request: bytes) -> RemoteResponse | tuple[EnginebayError, float | None]:
        """The answer; or what went wrong, and how long to wait before trying again (None: do not)."""
        remote = self._server
        while True:
            try:
                connection = await self._pool.acquire()
            except ssl.SSLCertVerificationError as error:
                return self._make_certificate_error(error), None
            except OSError as error:
                return self._make_unreachable_error(error), 0.0
            try:
                reply = await self._send_on(connection, request)
            except NoResponse as error:
                if error.reused:
                    continue  # it had been closed while it lay idle: not the server's fault
                return Unreachable(f"{remote.authority} cannot be asked: {error}"), 0.0
            if reply.status == 200:
                return reply
            pause = (parse_retry_after_s(reply.headers) or 0.0) if reply.status in RETRYABLE_STATUSES else None
            return await self._read_error(reply), pause

    async def _send_on(self, connection: RemoteConnection, request: bytes) -> RemoteResponse:
        """The head of the answer; the connection is closed when none comes."""
        reply: RemoteResponse | None = None
        try:
            async with asyncio.timeout(self._server.first_token_timeout_s):
                reply = await connection.send(request)
                return reply
        except TimeoutError:
            raise self._make_timeout_error("did not answer") from None
        except (OSError, MalformedResponse) as error:
            raise self._make_broken_error(error) from None
        finally:
            if reply is None:
                connection.close()

    async def _read_error(self, reply: RemoteResponse) -> EnginebayError:
        body = b""
        try:
            async with asyncio.timeout(self._server.connect_timeout_s):
                body = await reply.read_all(_MAX_ERROR_BYTES)
        except (OSError, MalformedResponse):
            pass  # its status says enough
        finally:
            self._pool.release(reply)
        return error_from_status(self._server, reply.status, reply.headers, body)

    # Errors

    def _make_timeout_error(self, what: str) -> Unreachable:
        return Unreachable(f"the remote server {self._server.authority} {what} within the time allowed")

    def _make_broken_error(self, error: Exception) -> EngineFailed:
        place = self._server.authority
        if isinstance(error, MalformedResponse):
            return EngineFailed(f"the remote server {place} sent {error}")
        return Unreachable(f"the connection to {place} was lost: {_describe_error(error)}")

    def _make_unreachable_error(self, error: OSError) -> Unreachable:
        reason = "no connection within the time allowed" if isinstance(error, TimeoutError) else _describe_error(error)
        return Unreachable(f"{self._server.authority} cannot be reached: {reason}", "check openai.url")

    def _make_certificate_error(self, error: ssl.SSLCertVerificationError) -> Unreachable:
        return Unreachable(
            f"the certificate of {self._server.authority} cannot be verified: {error.verify_message}",
            "a private authority's certificate goes into the file that SSL_CERT_FILE names",
        )


def _describe_error(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split())[:200] or type(error).__name__
