"""Which keys the lab sends to a server that already runs. Pure but for the environment it is given."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from enginebay.errors import UsageError

API_KEY_VARIABLE, OPENAI_KEY_VARIABLE = "ENGINEBAY_API_KEY", "OPENAI_API_KEY"
ADMIN_KEY_VARIABLE = "ENGINEBAY_ADMIN_KEY"


def build_inference_headers(urls: Iterable[str | None], environ: Mapping[str, str]) -> dict[str, str]:
    """For what everybody may ask: the key that was set for bay, else the one that was set for other programs.

    The second was not meant for this server, so nobody on the way to it may read it.
    """
    if environ.get(API_KEY_VARIABLE):
        return build_bearer_header(environ[API_KEY_VARIABLE])
    safe = all(is_loopback_url(url) or is_tls_url(url) for url in urls if url is not None)
    return build_bearer_header(environ.get(OPENAI_KEY_VARIABLE)) if safe else {}


def build_admin_headers(urls: Iterable[str | None], variable: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """For a server's meters. Empty: the key for text has to do.

    A key with the scope admin manages every server that knows it, so no server gets it for saying that it is a bay server:
    the usual variable is for this host alone, and `named` is the variable that the user names for the server at hand.
    """
    found = [url for url in urls if url is not None]
    if not found:
        return {}  # servers that the lab starts have a key of their own
    if variable is not None:
        if not environ.get(variable):
            raise UsageError(
                f"the variable {variable} is not set", "--admin-key-env names the variable that holds the key"
            )
        return build_bearer_header(environ[variable])
    return build_bearer_header(environ.get(ADMIN_KEY_VARIABLE)) if all(map(is_loopback_url, found)) else {}


def is_loopback_url(url: str) -> bool:
    """Whether an address is one of this host that leads nowhere else."""
    try:
        name = urlsplit(url).hostname or ""
    except ValueError:
        return False
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_tls_url(url: str) -> bool:
    return url.lower().startswith("https://")


def build_bearer_header(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}
