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

from enginebay.cli.admin.server_address import DEFAULT_URL, ServerAddress, resolve_server
from enginebay.cli.output.console import note
from enginebay.errors import EnginebayError, RequestError

_GET_TIMEOUT_S = 10.0  # for an answer that needs no work
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024
_QUIET_PERIOD_S = 2.0  # nobody wonders what goes on for so long

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help=f"The server (default: server.host and server.port of the configuration, else {DEFAULT_URL})",
        envvar="ENGINEBAY_URL",
        show_envvar=True,
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="An API key, if the server asks for one",
        envvar=["ENGINEBAY_ADMIN_KEY", "ENGINEBAY_API_KEY"],
        show_envvar=True,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output")]


class ServerUnreachable(EnginebayError):
    """Nobody answers at this address."""


def get_admin(url: str | None, key: str | None, path: str, **query: object) -> Any:
    """GET of something under /admin."""
    from urllib.parse import urlencode

    return _request_json(
        resolve_server(url), key, f"{path}?{urlencode(query)}" if query else path, None, _GET_TIMEOUT_S
    )


def post_admin(url: str | None, key: str | None, path: str, body: Mapping[str, object], activity: str) -> Any:
    """POST of something under /admin, however long it takes; `doing` is said meanwhile."""
    with show_elapsed(activity):
        return _request_json(resolve_server(url), key, path, json.dumps(body).encode(), None)


def _request_json(
    server: ServerAddress, key: str | None, path: str, body: bytes | None, timeout_s: float | None
) -> Any:
    import urllib.error

    try:
        return json.loads(fetch(server, f"admin/{path}", key, body, timeout_s))
    except urllib.error.HTTPError as error:
        said = error.read(_MAX_RESPONSE_BYTES)
        error.close()
        raise to_response_error(server.url, error.code, said) from None
    except ValueError:
        raise EnginebayError(
            f"{server.url}/admin/{path} does not answer with JSON", "is this an Enginebay server?"
        ) from None


def fetch(
    server: ServerAddress,
    path: str,
    key: str | None,
    body: bytes | None = None,
    timeout_s: float | None = _GET_TIMEOUT_S,
) -> bytes:
    """What the server has at this path. Raises `NoServer`, or `urllib.error.HTTPError` when the answer is a refusal."""
    import http.client
    import urllib.error
    import urllib.request

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(f"{server.url}/{path}", data=body, headers=headers)
    try:
        with _build_opener(server.is_local).open(request, timeout=timeout_s) as answer:
            found: bytes = answer.read(_MAX_RESPONSE_BYTES)
            return found
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ServerUnreachable(
            f"no server answers at {server.url}: {getattr(reason, 'strerror', None) or reason}", server.hint
        ) from None


def _build_opener(is_local: bool) -> Any:
    """Follows no redirect, since the key would go along; asks no proxy for a server on this machine."""
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return urllib.request.build_opener(Stay, *([urllib.request.ProxyHandler({})] if is_local else []))


def to_response_error(server: str, status: int, body: bytes) -> EnginebayError:
    """The server's own words, and which key is needed unless they say where to get one. Pure."""
    said = _parse_error_message(body)
    if status in (401, 403) and said:
        hint = "it takes a key with the scope admin: --key, or ENGINEBAY_ADMIN_KEY"
        hint = "" if "bay keys create" in said else f"{hint}; `bay keys create NAME --admin` makes one"
        return EnginebayError(f"the server refuses ({status}): {said}", hint)
    if not said:
        return EnginebayError(f"{server} answers {status}", "is this an Enginebay server?")
    return RequestError(said) if status in (400, 404) else EnginebayError(said)


def _parse_error_message(body: bytes) -> str:
    from enginebay.server.telemetry.log_format import escape_unprintable

    try:
        return "\n".join(map(escape_unprintable, str(json.loads(body)["error"]["message"]).splitlines()))
    except (ValueError, KeyError, TypeError):
        return ""


@contextmanager
def show_elapsed(activity: str, delay_s: float = _QUIET_PERIOD_S) -> Iterator[None]:
    """Says what goes on, once it has gone on for a while: with a running clock on a terminal, else once."""
    done, started, live = threading.Event(), time.monotonic(), sys.stderr.isatty()

    def tell() -> None:
        wait_s = delay_s
        while not done.wait(wait_s):
            if not live:
                note(f"{activity} ...")
                return
            wait_s = 1.0
            sys.stderr.write(f"\r\x1b[K{activity} ... {time.monotonic() - started:.0f} s")
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
