"""Asking the server: requests are sent, sent again where that is safe, and their answers read."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl

from enginebay.contract import Sink
from enginebay.engines.openai.answer import Answer
from enginebay.engines.openai.connections import Connection, Pool, Reply, Unanswered
from enginebay.engines.openai.events import EventReader
from enginebay.engines.openai.failures import RETRIED, of_status, retry_after_s
from enginebay.engines.openai.http import Garbled
from enginebay.engines.openai.remote import Remote
from enginebay.errors import EnginebayError, EngineFailed, Unreachable

_log = logging.getLogger(__name__)

_MOST_ERROR = 1 << 16
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0  # a server that wants more than that is not waited for
_TAIL_S = 1.0  # what stands behind an answer is only read so that the connection can be kept


class Client:
    """Talks to one server, from within one event loop."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._pool = Pool(remote)
        self._told_of_usage = False
        self._tails: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for tail in self._tails:
            tail.cancel()
        self._pool.close()

    async def fetch(self, path: str, most: int) -> bytes:
        """The body of a small answer. Raises an `EnginebayError` unless the server answers with 200."""
        reply = await self._answered(self._remote.get(path))
        try:
            async with asyncio.timeout(self._remote.first_token_timeout_s):
                return await reply.read_all(most)
        except TimeoutError:
            raise self._late("did not complete its answer") from None
        except (OSError, Garbled) as error:
            raise self._broken(error) from None
        finally:
            self._pool.put_back(reply)

    async def generate(self, number: int, path: str, body: bytes, choices: int, prompt_tokens: int, sink: Sink) -> None:
        """One streamed answer into the sink. Raises an `EnginebayError`, before or in the middle of it."""
        reply = await self._answered(self._remote.post(path, body))
        try:
            self._check_kind(reply)
            sink.accepted(number, prompt_tokens)
            answer = Answer(self._remote, number, choices, sink)
            await self._read_stream(reply, answer, sink)
        except BaseException:
            reply.connection.close()
            raise
        self._tell_of_usage(answer)
        self._keep(reply)

    def _check_kind(self, reply: Reply) -> None:
        place = self._remote.place
        kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            shown = kind[:80] if kind.isprintable() and kind else "something unnamed"
            raise EngineFailed(
                f"{place} answers with {shown} instead of a stream of events", "check that openai.url is its API"
            )
        if reply.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise EngineFailed(f"{place} compresses its answer although it was asked not to")

    async def _read_stream(self, reply: Reply, answer: Answer, sink: Sink) -> None:
        """Until the sink has all of it. What comes together goes out together."""
        events = EventReader()
        begun = False
        due = reply.asked_at + self._remote.first_token_timeout_s
        try:
            while not answer.delivered:
                async with asyncio.timeout_at(due):
                    data = await reply.read()
                try:
                    moved = [answer.take(one) for one in (events.feed(data) if data else events.end())]
                    if not data or answer.done:
                        answer.end()
                finally:
                    sink.flush()
                if any(moved):
                    begun = True
                    due = asyncio.get_running_loop().time() + self._remote.token_timeout_s
        except TimeoutError:
            problem: EnginebayError = self._late("went silent" if begun else "sent no token")
        except (OSError, Garbled) as error:
            problem = self._broken(error)
        else:
            return
        if not answer.finished:
            raise problem
        answer.end()  # only the count of tokens is missing
        sink.flush()

    def _keep(self, reply: Reply) -> None:
        """For the next request; the rest of the answer, which nobody waits for, is read aside."""
        if reply.complete:
            self._pool.put_back(reply)
            return
        tail = asyncio.create_task(self._read_tail(reply))
        self._tails.add(tail)
        tail.add_done_callback(self._tails.discard)

    async def _read_tail(self, reply: Reply) -> None:
        try:
            async with asyncio.timeout(_TAIL_S):
                while await reply.read():
                    pass
        except (OSError, Garbled):
            pass  # this connection is just not kept
        finally:
            self._pool.put_back(reply)

    def _tell_of_usage(self, answer: Answer) -> None:
        if answer.usage is None and not self._told_of_usage:
            self._told_of_usage = True
            _log.warning("%s does not say how many tokens it used: they are not counted", self._remote.place)

    # Sending, and sending again: only as long as not a byte of an answer to use has come.

    async def _answered(self, request: bytes) -> Reply:
        """The answer with status 200. Raises an `EnginebayError` when there is none after all tries."""
        tries = 0
        while True:
            outcome = await self._try(request)
            if isinstance(outcome, Reply):
                return outcome
            problem, pause = outcome
            if pause is None or tries >= self._remote.retries or pause > _LONGEST_PAUSE_S:
                raise problem
            least = _FIRST_PAUSE_S * 2**tries * random.uniform(0.5, 1.0)
            tries += 1
            _log.info("asking %s again: %s", self._remote.place, problem.message)
            await asyncio.sleep(max(pause, min(least, _LONGEST_PAUSE_S)))

    async def _try(self, request: bytes) -> Reply | tuple[EnginebayError, float | None]:
        """The answer; or what went wrong, and how long to wait before trying again (None: do not)."""
        remote = self._remote
        while True:
            try:
                connection = await self._pool.take()
            except ssl.SSLCertVerificationError as error:
                return self._untrusted(error), None
            except OSError as error:
                return self._unreachable(error), 0.0
            try:
                reply = await self._ask(connection, request)
            except Unanswered as error:
                if error.reused:
                    continue  # it had been closed while it lay idle: not the server's fault
                return Unreachable(f"{remote.place} cannot be asked: {error}"), 0.0
            if reply.status == 200:
                return reply
            pause = (retry_after_s(reply.headers) or 0.0) if reply.status in RETRIED else None
            return await self._refusal(reply), pause

    async def _ask(self, connection: Connection, request: bytes) -> Reply:
        """The head of the answer; the connection is closed when none comes."""
        reply: Reply | None = None
        try:
            async with asyncio.timeout(self._remote.first_token_timeout_s):
                reply = await connection.ask(request)
                return reply
        except TimeoutError:
            raise self._late("did not answer") from None
        except (OSError, Garbled) as error:
            raise self._broken(error) from None
        finally:
            if reply is None:
                connection.close()

    async def _refusal(self, reply: Reply) -> EnginebayError:
        body = b""
        try:
            async with asyncio.timeout(self._remote.connect_timeout_s):
                body = await reply.read_all(_MOST_ERROR)
        except (OSError, Garbled):
            pass  # its status says enough
        finally:
            self._pool.put_back(reply)
        return of_status(self._remote, reply.status, reply.headers, body)

    # Errors

    def _late(self, what: str) -> Unreachable:
        return Unreachable(f"the remote server {self._remote.place} {what} within the time allowed")

    def _broken(self, error: Exception) -> EngineFailed:
        place = self._remote.place
        if isinstance(error, Garbled):
            return EngineFailed(f"the remote server {place} sent {error}")
        return Unreachable(f"the connection to {place} was lost: {_reason(error)}")

    def _unreachable(self, error: OSError) -> Unreachable:
        reason = "no connection within the time allowed" if isinstance(error, TimeoutError) else _reason(error)
        return Unreachable(f"{self._remote.place} cannot be reached: {reason}", "check openai.url")

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> Unreachable:
        return Unreachable(
            f"the certificate of {self._remote.place} cannot be verified: {error.verify_message}",
            "a private authority's certificate goes into the file that SSL_CERT_FILE names",
        )


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split())[:200] or type(error).__name__
