"""The `server:` block: where it listens, who may ask, and how much of everything one request may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from enginebay.config.entries.value_coercion import InvalidValue, split_list
from enginebay.config.sections.declared_section import DeclaredSection, config_field


def _limit_field(default: Any, minimum: float, help: str, maximum: float | None = None) -> Any:
    return config_field(default, help, minimum=minimum, maximum=maximum)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one client may take of the server. Beyond it a request is refused, never cut down."""

    body_bytes: int = _limit_field(4 << 20, 1024, "longest request body, unpacked")
    header_bytes: int = _limit_field(32 << 10, 1024, "longest request line and headers together")
    connections: int = _limit_field(4096, 1, "open connections of one server process")
    header_timeout_s: float = _limit_field(10.0, 0.1, "time to send all headers")
    body_timeout_s: float = _limit_field(30.0, 0.1, "time to send the whole body")
    keep_alive_s: float = _limit_field(75.0, 0, "how long an idle connection stays open")
    request_timeout_s: float = _limit_field(3600.0, 1, "longest time for one answer")
    stream_buffer_bytes: int = _limit_field(1 << 20, 4096, "output held for a client that reads slowly")
    stall_timeout_s: float = _limit_field(60.0, 0.1, "a client that reads nothing for so long is cut off")
    running: int = _limit_field(1024, 1, "requests in the engine at once, for each model")
    queue: int = _limit_field(1024, 0, "requests that wait for the engine, for each model; 0: none")
    queue_timeout_s: float = _limit_field(120.0, 0.1, "longest wait for the engine")
    n: int = _limit_field(16, 1, "choices of one request (n, best_of)")
    prompts: int = _limit_field(128, 1, "prompts of one completions request")
    inputs: int = _limit_field(2048, 1, "texts of one embeddings request")
    messages: int = _limit_field(4096, 1, "messages of one chat")
    tools: int = _limit_field(128, 0, "tools of one chat")
    max_tokens: int | None = _limit_field(None, 1, "longest output; unset: as far as the model's context goes")
    stop: int = _limit_field(16, 0, "stop texts of one request")
    stop_chars: int = _limit_field(1024, 1, "characters of one stop text")
    logit_bias: int = _limit_field(1024, 0, "entries of logit_bias")
    # Other libraries go through a schema recursively, so there is a depth that no setting can pass.
    schema_depth: int = _limit_field(32, 1, "objects and lists within each other in a JSON schema", maximum=200)
    schema_nodes: int = _limit_field(4096, 1, "values in a JSON schema, all levels together")
    schema_bytes: int = _limit_field(64 << 10, 64, "size of a JSON schema")
    regex_chars: int = _limit_field(2048, 1, "characters of a regex")
    regex_states: int = _limit_field(
        20_000, 1, "states of a regex's automaton, repeats written out; also a schema's counts"
    )
    grammar_bytes: int = _limit_field(64 << 10, 64, "size of a grammar")
    choices: int = _limit_field(1024, 1, "texts of guided_choice; values of one enum in a JSON schema")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How `bay serve` runs."""

    host: str = config_field("127.0.0.1", "address to listen on; anything but this host alone needs a key")
    port: int = config_field(8000, "port to listen on; 0: any free one", minimum=0, maximum=65535)
    workers: int = config_field(1, "server processes that share the fleet", minimum=1, maximum=64)
    keys_file: Path | None = config_field(  # noqa: RUF009  (it is `field` under another name)
        None, "file of API keys; unset: keys.yaml in ENGINEBAY_HOME, if it is there"
    )
    allow_without_key: bool = config_field(False, "listen beyond this host with no key at all")
    drain_s: float = config_field(30.0, "how long running answers may take to finish after SIGTERM", minimum=0)
    log_format: str = config_field("text", "how a log line is written", choices=("text", "json"))
    log_level: str = config_field("info", "the least that is logged", choices=("debug", "info", "warning", "error"))
    log_prompts: bool = config_field(False, "write prompts into the log")
    cors_origins: tuple[str, ...] = config_field((), "web origins whose pages may call the API; * for all")
    limits: ServerLimits = field(default_factory=ServerLimits)


def convert_server_value(name: str, value: Any) -> Any:
    """The value as `ServerConfig` holds it, save that paths stay text. Raises `Misfit`."""
    if name in ("host", "keys_file") and value is not None and not value.strip():
        raise InvalidValue("is empty, expected " + ("an address" if name == "host" else "the path of a file"))
    if name == "cors_origins" and value is not None:
        return tuple(_parse_cors_origin(item) for item in split_list(value))
    return value


def _parse_cors_origin(item: Any) -> str:
    """An origin exactly as browsers send it: they compare it as text."""
    text = item.strip() if isinstance(item, str) else ""
    try:
        parts = urlsplit(text)
        rebuilt = f"{parts.scheme}://{parts.netloc}".lower()
    except ValueError:
        rebuilt = ""
    if text == "*" or (rebuilt == text and len(rebuilt) > len("http://") and parts.scheme in ("http", "https")):
        return text
    raise InvalidValue(
        f"has {str(item)[:60]!r}, expected origins such as https://app.example.org, in small letters, or *"
    )


SERVER_SECTION = DeclaredSection("server", ServerConfig, convert_server_value)
