"""Asking a running server, for the commands that look at it or manage it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from enginebay.cli.output import note
from enginebay.errors import EnginebayError, RequestError, UsageError

_LOOK_S = 10.0  # for an answer that needs no work
_LARGEST_ANSWER = 64 * 1024 * 1024
_QUIET_S = 2.0  # nobody wonders what goes on for so long

Url = Annotated[str, typer.Option("--url", help="The server", envvar="ENGINEBAY_URL", show_envvar=True)]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="An API key, if the server asks for one",
        envvar=["ENGINEBAY_ADMIN_KEY", "ENGINEBAY_API_KEY"],
        show_envvar=True,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output")]
DEFAULT_URL = "http://127.0.0.1:8000"


class NoServer(EnginebayError):
    """Nobody answers at this address."""


def base_url(url: str) -> str:
    """The server's address, whichever of its places was named."""
    from urllib.parse import urlsplit

    whole = url if "://" in url else f"http://{url}"
    parts = urlsplit(whole)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not a server's address", "give it as http://HOST:PORT", param="url")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def look(url: str, key: str | None, path: str, **query: object) -> Any:
    """GET of something under /admin."""
    from urllib.parse import urlencode

    return _answer(url, key, f"{path}?{urlencode(query)}" if query else path, None, _LOOK_S)


def order(url: str, key: str | None, path: str, body: Mapping[str, object], doing: str) -> Any:
    """POST of something under /admin, however long it takes; `doing` is said meanwhile."""
    with elapsed(doing):
        return _answer(url, key, path, json.dumps(body).encode(), None)


def _answer(url: str, key: str | None, path: str, body: bytes | None, timeout_s: float | None) -> Any:
    import urllib.error

    server = base_url(url)
    address = f"{server}/admin/{path}"
    try:
        return json.loads(fetch(address, key, body, timeout_s, server))
    except urllib.error.HTTPError as error:
        said = error.read(_LARGEST_ANSWER)
        error.close()
        raise refused(server, error.code, said) from None
    except ValueError:
        raise EnginebayError(f"{address} does not answer with JSON", "is this an Enginebay server?") from None


def fetch(
    address: str, key: str | None, body: bytes | None = None, timeout_s: float | None = _LOOK_S, server: str = ""
) -> bytes:
    """What is at this address. Raises `NoServer`, or `urllib.error.HTTPError` when the answer is a refusal."""
    import http.client
    import urllib.error
    import urllib.request

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(address, data=body, headers=headers)
    try:
        with _opener(address).open(request, timeout=timeout_s) as answer:
            found: bytes = answer.read(_LARGEST_ANSWER)
            return found
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NoServer(
            f"no server answers at {server or address}: {getattr(reason, 'strerror', None) or reason}",
            "start one with `bay serve`, or name another with --url",
        ) from None


def _opener(address: str) -> Any:
    """Follows no redirect, since the key would go along; asks no proxy for a server on this machine."""
    import urllib.request
    from urllib.parse import urlsplit

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    near = urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1")
    return urllib.request.build_opener(Stay, *([urllib.request.ProxyHandler({})] if near else []))


def refused(server: str, status: int, body: bytes) -> EnginebayError:
    """The server's own words, and which key is needed unless they say where to get one. Pure."""
    said = _message(body)
    if status in (401, 403) and said:
        hint = "it takes a key with the scope admin: --key, or ENGINEBAY_ADMIN_KEY"
        hint = "" if "bay keys create" in said else f"{hint}; `bay keys create NAME --admin` makes one"
        return EnginebayError(f"the server refuses ({status}): {said}", hint)
    if not said:
        return EnginebayError(f"{server} answers {status}", "is this an Enginebay server?")
    return RequestError(said) if status in (400, 404) else EnginebayError(said)


def _message(body: bytes) -> str:
    from enginebay.server.log_lines import clean

    try:
        return "\n".join(map(clean, str(json.loads(body)["error"]["message"]).splitlines()))
    except (ValueError, KeyError, TypeError):
        return ""


@contextmanager
def elapsed(doing: str, after_s: float = _QUIET_S) -> Iterator[None]:
    """Says what goes on, once it has gone on for a while: with a running clock on a terminal, else once."""
    done, started, live = threading.Event(), time.monotonic(), sys.stderr.isatty()

    def tell() -> None:
        wait_s = after_s
        while not done.wait(wait_s):
            if not live:
                note(f"{doing} ...")
                return
            wait_s = 1.0
            sys.stderr.write(f"\r\x1b[K{doing} ... {time.monotonic() - started:.0f} s")
            sys.stderr.flush()
        if live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
