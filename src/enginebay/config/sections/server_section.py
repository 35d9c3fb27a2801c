"""The `server:` section: address, access, logging and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from enginebay.config.entries.value_coercion import InvalidValue, split_list
from enginebay.config.sections.declared_section import DeclaredSection, config_field

MIN_STATE_BYTES = 1 << 20
GUIDED_KINDS = ("json", "regex", "grammar", "choice")


def _limit_field(default: Any, minimum: float, help: str, maximum: float | None = None) -> Any:
    return config_field(default, help, minimum=minimum, maximum=maximum)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits per client. A request beyond a limit is rejected, never truncated."""

    body_bytes: int = _limit_field(4 << 20, 1024, "maximum size of a request body, decompressed")
    body_buffer_bytes: int = _limit_field(
        256 << 20, 1 << 20, "maximum size of all large request bodies in memory, per server process"
    )
    client_body_buffer_bytes: int = _limit_field(
        64 << 20,
        1 << 20,
        "maximum size of one client's large request bodies in memory; a client is a key or an address",
    )
    form_parts: int = _limit_field(128, 1, "maximum parts of a multipart form")
    form_field_bytes: int = _limit_field(
        1 << 20, 1024, "maximum size of a field in a multipart form; a file is bounded by the endpoint's own limit"
    )
    form_header_bytes: int = _limit_field(8 << 10, 256, "maximum size of the headers of one part of a multipart form")
    form_name_chars: int = _limit_field(255, 1, "maximum characters in the name of a form's field or file")
    form_disk_bytes: int = _limit_field(
        8 << 30, 1 << 20, "maximum size of all files of multipart forms on disk, per server process"
    )
    client_form_disk_bytes: int = _limit_field(
        2 << 30, 1 << 20, "maximum size of the files of one client's multipart forms on disk"
    )
    websockets: int = _limit_field(1024, 1, "maximum open WebSockets per server process")
    client_websockets: int = _limit_field(128, 1, "maximum open WebSockets of one client, per server process")
    websocket_idle_s: float = _limit_field(600.0, 0.1, "time after which a WebSocket without messages is closed")
    header_bytes: int = _limit_field(32 << 10, 1024, "maximum size of request line and headers")
    connections: int = _limit_field(4096, 1, "maximum open connections per server process")
    header_timeout_s: float = _limit_field(10.0, 0.1, "maximum time to receive all headers")
    body_timeout_s: float = _limit_field(30.0, 0.1, "maximum time to receive the body")
    keep_alive_s: float = _limit_field(75.0, 0, "time an idle connection stays open")
    request_timeout_s: float = _limit_field(3600.0, 1, "maximum time for one answer")
    stream_buffer_bytes: int = _limit_field(1 << 20, 4096, "output buffered for a slow client")
    unread_bytes: int = _limit_field(
        128 << 20, 1 << 20, "output buffered for all slow clients, per server process; the slowest are disconnected"
    )
    stall_timeout_s: float = _limit_field(60.0, 0.1, "time without reading after which a client is disconnected")
    running: int = _limit_field(1024, 1, "maximum concurrent requests in the engine, per replica of a model")
    queue: int = _limit_field(1024, 0, "maximum requests queued for the engine, per model; 0: none")
    queue_timeout_s: float = _limit_field(600.0, 0.1, "maximum time in the queue")
    n: int = _limit_field(16, 1, "maximum choices per request (n, best_of)")
    prompts: int = _limit_field(128, 1, "maximum prompts per completions request")
    inputs: int = _limit_field(2048, 1, "maximum texts per embeddings request")
    messages: int = _limit_field(4096, 1, "maximum messages per chat")
    tools: int = _limit_field(128, 0, "maximum tools per chat")
    max_tokens: int | None = _limit_field(None, 1, "maximum output tokens; unset: the model's context")
    stop: int = _limit_field(16, 0, "maximum stop strings per request")
    stop_chars: int = _limit_field(1024, 1, "maximum characters per stop string")
    logit_bias: int = _limit_field(1024, 0, "maximum entries in logit_bias")
    # Other libraries traverse a schema recursively, so the depth has a hard maximum.
    schema_depth: int = _limit_field(32, 1, "maximum nesting of a JSON schema", maximum=200)
    schema_nodes: int = _limit_field(4096, 1, "maximum number of values in a JSON schema")
    schema_bytes: int = _limit_field(64 << 10, 64, "maximum size of a JSON schema")
    regex_chars: int = _limit_field(2048, 1, "maximum characters in a regex")
    regex_states: int = _limit_field(
        20_000, 1, "maximum automaton states of a regex, with repeats expanded; also bounds counts in a schema"
    )
    grammar_bytes: int = _limit_field(64 << 10, 64, "maximum size of a grammar")
    # Other libraries parse groups recursively, so the depth has a hard maximum.
    grammar_depth: int = _limit_field(32, 1, "maximum nesting of groups in a grammar", maximum=200)
    grammar_rules: int = _limit_field(1024, 1, "maximum rules in a grammar")
    grammar_symbols: int = _limit_field(20_000, 1, "maximum symbols in a grammar, with repeats expanded")
    grammar_stacks: int = _limit_field(64, 1, "maximum parallel parses of a recursive grammar")
    choices: int = _limit_field(1024, 1, "maximum texts in guided_choice, and values per enum in a JSON schema")
    choice_bytes: int = _limit_field(64 << 10, 64, "maximum size of all texts in guided_choice")
    guided: tuple[str, ...] = config_field(
        GUIDED_KINDS, "kinds of constraints that clients may send: json, regex, grammar, choice, or none"
    )


_STATE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class StateLimits:
    """How many stored responses and conversations are kept, and how long. `server.state: off` stores nothing."""

    max_bytes: int = config_field(
        _STATE_BYTES,
        "maximum size of stored responses and conversations; the least recently used are deleted; off: store nothing",
        type="int|bool",
        minimum=0,
        aliases=("state",),
    )
    max_age_s: float = config_field(
        30 * 86400.0, "time after its last use when a stored response or conversation is deleted", minimum=1
    )

    @property
    def enabled(self) -> bool:
        return self.max_bytes > 0


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How `bay serve` runs."""

    host: str = config_field("127.0.0.1", "address to listen on; any address but loopback requires an API key")
    port: int = config_field(8000, "port to listen on; 0: any free port", minimum=0, maximum=65535)
    workers: int = config_field(1, "server processes that share the fleet", minimum=1, maximum=64)
    keys_file: Path | None = config_field(  # noqa: RUF009  (wraps `field`)
        None, "API key file; unset: keys.yaml in ENGINEBAY_HOME, if it exists", sensitive="names a secret"
    )
    allow_without_key: bool = config_field(
        False, "allow other hosts to connect without an API key", sensitive="opens the server to others"
    )
    drain_s: float = config_field(30.0, "time for running requests to finish after SIGTERM", minimum=0)
    resume: bool = config_field(True, "resume a response on another worker if its worker dies")
    log_format: str = config_field("text", "format of log lines", choices=("text", "json"))
    log_level: str = config_field("info", "minimum level to log", choices=("debug", "info", "warning", "error"))
    log_prompts: bool = config_field(False, "log prompts", sensitive="writes prompts to the log")
    cors_origins: tuple[str, ...] = config_field(
        (), "web origins allowed to call the API; * for all", sensitive="opens the server to web pages"
    )
    unknown_fields: str = config_field(
        "ignore",
        "unknown fields of a request: ignore and name them in a header, or refuse them",
        choices=("ignore", "refuse"),
    )
    limits: ServerLimits = field(default_factory=ServerLimits)
    state: StateLimits = field(default_factory=StateLimits)


def convert_server_value(name: str, value: Any) -> Any:
    """Convert a value to its type in `ServerConfig`; paths stay text. Raises `InvalidValue`."""
    if name in ("host", "keys_file") and value is not None and not value.strip():
        raise InvalidValue(f"expected {'an address' if name == 'host' else 'a file path'}, got an empty value")
    if name == "state.max_bytes" and isinstance(value, bool):
        return _STATE_BYTES if value else 0
    if name == "state.max_bytes" and value is not None and 0 < value < MIN_STATE_BYTES:
        raise InvalidValue(f"expected off, or at least {MIN_STATE_BYTES}")
    if name == "cors_origins" and value is not None:
        return tuple(_parse_cors_origin(item) for item in split_list(value))
    if name == "limits.guided" and value is not None:
        kinds = split_list(value)
        return () if kinds == ("none",) else tuple(_parse_guided_kind(kind) for kind in kinds)
    return value


def _parse_guided_kind(kind: Any) -> str:
    if kind not in GUIDED_KINDS:
        raise InvalidValue(f"expected none, or some of {', '.join(GUIDED_KINDS)}; got {str(kind)[:60]!r}")
    return str(kind)


def _parse_cors_origin(item: Any) -> str:
    """Check an origin. Browsers compare it as text, so it must match exactly what they send."""
    text = item.strip() if isinstance(item, str) else ""
    try:
        parts = urlsplit(text)
        rebuilt = f"{parts.scheme}://{parts.netloc}".lower()
    except ValueError:
        rebuilt = ""
    if text == "*" or (rebuilt == text and len(rebuilt) > len("http://") and parts.scheme in ("http", "https")):
        return text
    raise InvalidValue(f"expected lower-case origins such as https://app.example.org, or *, got {str(item)[:60]!r}")


SERVER_SECTION = DeclaredSection("server", ServerConfig, convert_server_value)
