"""HTTP client for the admin API of a running server."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode, urlsplit

import typer

from enginebay.cli.admin.server_address import DEFAULT_URL, ServerAddress, resolve_server, use_config_file
from enginebay.cli.options.key_options import KeyFileOption as KeyFileOption
from enginebay.cli.options.key_options import KeyOption as KeyOption
from enginebay.cli.output.console import note, redraw_line
from enginebay.errors import EnginebayError, RequestError, UsageError

if TYPE_CHECKING:
    from enginebay.util.http_client import HttpResponse

_GET_TIMEOUT_S = 10.0  # for requests that the server answers at once
_QUIET_PERIOD_S = 2.0  # before the activity is shown

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help=f"Server URL (default: server.host and server.port from the configuration, else {DEFAULT_URL})",
        envvar="ENGINEBAY_URL",
        show_envvar=True,
    ),
]
ServerConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Config file with the server's address",
        callback=use_config_file,
        expose_value=False,
    ),
]


class ServerUnreachable(EnginebayError):
    """No server responds at this address."""


def get_admin(url: str | None, key: str | None, path: str, **query: object) -> Any:
    """GET a path under /admin and return its JSON."""
    return _request_json(url, key, f"{path}?{urlencode(query)}" if query else path, None, _GET_TIMEOUT_S)


def post_admin(url: str | None, key: str | None, path: str, body: Mapping[str, object], activity: str) -> Any:
    """POST to a path under /admin and return its JSON. No timeout; shows `activity` meanwhile."""
    with show_elapsed(activity):
        return _request_json(url, key, path, body, None)


def _request_json(
    url: str | None, key: str | None, path: str, body: Mapping[str, object] | None, timeout_s: float | None
) -> Any:
    server = resolve_server(url)
    if not key and not server.is_local:
        raise UsageError(
            f"the server at {server.url} is on another host: managing it needs an admin API key",
            "pass --key-file with a key of admin scope, or set ENGINEBAY_ADMIN_KEY",
            param="key",
        )
    status, response = fetch(server, f"admin/{path}", key, body, timeout_s)
    if not 200 <= status < 300:
        raise to_response_error(server.url, status, response)
    try:
        return json.loads(response)
    except ValueError:
        raise EnginebayError(f"{server.url}/admin/{path} did not return JSON", "is this an Enginebay server?") from None


def fetch(
    server: ServerAddress,
    path: str,
    key: str | None,
    body: Mapping[str, object] | None = None,
    timeout_s: float | None = _GET_TIMEOUT_S,
) -> HttpResponse:
    """Return the response, whatever its status. Raises `ServerUnreachable`, and `UsageError` if the key may not go there."""
    from http.client import HTTPException

    from enginebay.util.http_client import HttpClient

    parts = urlsplit(server.url)
    uses_tls = parts.scheme == "https"
    address = parts.hostname or "", parts.port or (443 if uses_tls else 80)
    headers = _build_headers(server, path, key)
    try:
        with HttpClient(address, uses_tls=uses_tls, timeout_s=timeout_s, direct=server.is_local) as client:
            return client.request(f"{parts.path}/{path}", headers, body)
    except HTTPException as error:
        hint = "check that the URL is that of an Enginebay server"
        raise ServerUnreachable(f"no usable response from {server.url}: {error}", hint) from None
    except OSError as error:
        reason = error.strerror or error
        raise ServerUnreachable(f"no server responds at {server.url}: {reason}", server.hint) from None


def _build_headers(server: ServerAddress, path: str, key: str | None) -> dict[str, str]:
    from enginebay.util.http_policy import build_token_headers

    token = build_token_headers(server.url) if server.is_local and path.startswith("admin/") else {}
    # A server with a token listens on its port of 127.0.0.1, but anybody may on that port of another address.
    if server.untrusted_file and (key or (token and urlsplit(server.url).hostname != urlsplit(DEFAULT_URL).hostname)):
        raise UsageError(
            f"the key is not sent to {server.url}: an untrusted ./{server.untrusted_file} sets this address",
            f"review the file, then run: bay config trust; or pass --url {server.url}",
            param="url",
        )
    return {"Authorization": f"Bearer {key}", **token} if key else token


def to_response_error(server: str, status: int, body: bytes) -> EnginebayError:
    """Convert an error response to an error, with a hint on the key unless the server gives one. Pure."""
    message = _parse_error_message(body)
    if status in (401, 403) and message:
        hint = "pass a key with the admin scope: --key-file or ENGINEBAY_ADMIN_KEY"
        hint = "" if "bay keys create" in message else f"{hint}; create one with `bay keys create NAME --admin`"
        return EnginebayError(f"access denied ({status}): {message}", hint)
    if not message:
        return EnginebayError(f"{server} returned {status}", "is this an Enginebay server?")
    return RequestError(message) if status in (400, 404) else EnginebayError(message)


def _parse_error_message(body: bytes) -> str:
    from enginebay.server.telemetry.log_format import escape_unprintable

    try:
        return "\n".join(map(escape_unprintable, str(json.loads(body)["error"]["message"]).splitlines()))
    except (ValueError, KeyError, TypeError):
        return ""


@contextmanager
def show_elapsed(activity: str, delay_s: float = _QUIET_PERIOD_S) -> Iterator[None]:
    """Show the activity after `delay_s`: with a running clock on a terminal, else once."""
    done, started, live = threading.Event(), time.monotonic(), sys.stderr.isatty()

    def show() -> None:
        wait_s = delay_s
        while not done.wait(wait_s):
            if not live:
                note(f"{activity} ...")
                return
            wait_s = 1.0
            redraw_line(f"{activity} ... {time.monotonic() - started:.0f} s")
        if live:
            redraw_line()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
