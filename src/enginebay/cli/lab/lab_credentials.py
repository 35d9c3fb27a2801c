"""API keys that the lab sends to a running server. Pure: the environment is passed in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from enginebay.errors import UsageError
from enginebay.util.http_policy import is_loopback

API_KEY_VARIABLE, OPENAI_KEY_VARIABLE = "ENGINEBAY_API_KEY", "OPENAI_API_KEY"
ADMIN_KEY_VARIABLE = "ENGINEBAY_ADMIN_KEY"


def build_inference_headers(urls: Iterable[str | None], environ: Mapping[str, str]) -> dict[str, str]:
    """Build headers for inference requests from ENGINEBAY_API_KEY, else OPENAI_API_KEY.

    OPENAI_API_KEY may belong to another service, so it is only sent over loopback or TLS.
    """
    if environ.get(API_KEY_VARIABLE):
        return build_bearer_header(environ[API_KEY_VARIABLE])
    safe = all(is_loopback_url(url) or is_tls_url(url) for url in urls if url is not None)
    return build_bearer_header(environ.get(OPENAI_KEY_VARIABLE)) if safe else {}


def build_admin_headers(urls: Iterable[str | None], variable: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Build headers for a server's meters. Empty: the inference key is used.

    An admin key manages every server that knows it, so it is not sent to just any server: ENGINEBAY_ADMIN_KEY is for
    loopback only, and `variable` is one that the user names for this server.
    """
    targets = [url for url in urls if url is not None]
    if not targets:
        return {}  # servers started by the lab have their own key
    if variable is not None:
        if not environ.get(variable):
            raise UsageError(
                f"the variable {variable} is not set",
                "--admin-key-env expects the name of the variable that holds the key",
            )
        return build_bearer_header(environ[variable])
    return build_bearer_header(environ.get(ADMIN_KEY_VARIABLE)) if all(map(is_loopback_url, targets)) else {}


def is_loopback_url(url: str) -> bool:
    """Return whether a URL points to loopback."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def is_tls_url(url: str) -> bool:
    return url.lower().startswith("https://")


def build_bearer_header(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}
