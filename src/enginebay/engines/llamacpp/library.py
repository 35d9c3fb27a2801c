"""The only module that calls xllamacpp: loads a model, and calls the server's HTTP routes that have no Python method.

`xllamacpp.Server` always listens. It gets a Unix socket in a private directory (0700) and a random key, so that no
other user can reach it. It opens no port.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.engines.llamacpp.load_plan import EnumMember, LlamaHost, LlamaLoadPlan
from enginebay.engines.llamacpp.stderr_tail import StderrTail, is_out_of_memory
from enginebay.engines.memory_limits import get_free_bytes
from enginebay.errors import (
    ConfigError,
    EngineFailed,
    EngineMissing,
    LoadFailed,
    ModelInvalid,
    OutOfMemory,
    UnknownArchitecture,
)
from enginebay.text.gguf.gguf_reader import GgufFile, is_gguf, read_gguf

_WORKER_DIR = "ENGINEBAY_WORKER_DIR"
_PREFIX, _SOCKET = "bay-llamacpp-", "s.sock"
_MAX_SOCKET_PATH = 99  # the system's limit is 108 bytes, 104 on macOS
# 6 us or more, depending on the CPU: `make bench-spinning`. A spinning thread may block the one it waits for.
_SPIN_COUNT = "3000"
_TENSOR_SPLIT = "tensor_split"
_LOG_LEVEL_WARNING = 2  # at level 3 the library logs several lines per request


def import_library(busy_wait: bool = False) -> Any:
    """Import xllamacpp. Unless `busy_wait`, its threads do not spin for long on shared cores."""
    if not busy_wait:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    try:
        import xllamacpp
    except ImportError as problem:
        raise EngineMissing(f"xllamacpp cannot be imported: {problem}", "run `bay engines install llamacpp`") from None
    return xllamacpp


def detect_host(library: Any) -> LlamaHost:
    """Return the allowed cores, free main memory and free memory of usable GPUs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = [device for device in library.get_device_info() if "GPU" in device["type"].name]
    gpu_free, gpu_total = (sum(int(gpu[key]) for gpu in gpus) for key in ("memory_free", "memory_total"))
    return LlamaHost(cores, get_free_bytes(), gpu_free, gpu_total)


class LlamaServer:
    """One loaded model."""

    def __init__(self, library: Any, path: Path, plan: LlamaLoadPlan, loras: Mapping[str, str]) -> None:
        self._key = secrets.token_hex(16)
        self._directory = _make_private_directory()
        self._socket = str(self._directory / _SOCKET)
        stderr = StderrTail()
        try:
            params = self._build_params(library, path, plan, loras)
            self._server: Any = _preserve_signal_handlers(lambda: library.Server(params))
        except RuntimeError as problem:
            self._remove_socket()
            raise _make_load_error(path, loras, problem, stderr.read()) from None
        except BaseException:
            self._remove_socket()
            raise

    def _build_params(self, library: Any, path: Path, plan: LlamaLoadPlan, loras: Mapping[str, str]) -> Any:
        params = library.CommonParams()
        params.model.path = str(path)
        if hasattr(params, "hostnames"):
            params.hostnames = [self._socket]
        else:  # before 2026.10
            params.hostname = self._socket
        params.api_keys = [self._key]
        params.n_threads_http = 1
        params.ui = False
        params.endpoint_metrics = True
        params.verbosity = _LOG_LEVEL_WARNING
        for name, value in plan.attributes.items():
            set_attribute(library, params, name, value)
        params.lora_adapters = [library.CommonAdapterLoraInfo(str(adapter), 1.0) for adapter in loras.values()]
        return params

    def stream_completion(self, body: Mapping[str, Any], callback: Any) -> None:
        """Block until the request has finished. Calls `callback` with each chunk; it returns True to cancel."""
        self._server.handle_completions(dict(body), callback)

    def embed(self, body: Mapping[str, Any]) -> Any:
        return self._server.handle_embeddings(dict(body))

    def read_metrics(self) -> dict[str, float]:
        """Return the library's counters, such as `n_decode_total` and `n_busy_slots_per_decode`."""
        text = self._server.handle_metrics()
        lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name.partition(":")[2]: float(value) for name, _, value in pairs}

    def call_route(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call one of the server's HTTP routes and return its JSON response."""
        connection = _UnixConnection(self._socket)
        try:
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        except OSError as problem:
            raise EngineFailed(f"llama.cpp does not respond to {path}: {problem}") from None
        finally:
            connection.close()
        if response.status != http.client.OK:
            detail = text[:200].decode("utf-8", "replace")
            raise EngineFailed(f"llama.cpp returned status {response.status} for {path}: {detail}")
        return json.loads(text)

    def close(self) -> None:
        """Stop the server. No call may be running: it would deadlock with this thread."""
        self._server = None
        self._remove_socket()

    def _remove_socket(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def set_attribute(library: Any, params: Any, name: str, value: Any) -> None:
    """Set an attribute by dotted name. Resolves enum members in the library."""
    *parents, last = name.split(".")
    try:
        target = params
        for parent in parents:
            target = getattr(target, parent)
        present = getattr(target, last)
        value = _resolve_enums(library, value)
        if last == _TENSOR_SPLIT:  # has one entry per possible device
            value = [float(share) for share in value] + [0.0] * (len(present) - len(value))
        setattr(target, last, value)
    except (AttributeError, AssertionError, TypeError, ValueError) as problem:
        raise ConfigError(
            f"xllamacpp {library.__version__} rejects {name} = {value!r}: {problem}",
            "check the name and the value's type",
            param=name,
        ) from None


def _resolve_enums(library: Any, value: Any) -> Any:
    if isinstance(value, EnumMember):
        return getattr(getattr(library, value.enum), value.member)
    if isinstance(value, list):
        return [_resolve_enums(library, item) for item in value]
    return value


def _make_private_directory() -> Path:
    """Create a directory that only this user can enter, with a path short enough for a socket.

    Prefers the worker's own directory, which is removed even if the worker is killed.
    """
    for parent in (os.environ.get(_WORKER_DIR), tempfile.gettempdir()):
        if parent and len(os.fsencode(parent)) <= _MAX_SOCKET_PATH - len(f"/{_PREFIX}12345678/{_SOCKET}"):
            with contextlib.suppress(OSError):  # the directory may be missing or read-only
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))


def _preserve_signal_handlers(make: Any) -> Any:
    """Call `make`, then restore the SIGINT and SIGTERM handlers, which some builds of the server replace."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return make()
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:
                    signal.signal(number, handler)


def _make_load_error(path: Path, loras: Mapping[str, str], problem: Exception, log_text: str) -> Exception:
    """Return the error for a failed load. The library gives no reason, so check the files and its log."""
    for file in (path, *map(Path, loras.values())):
        read_gguf_model(file)
    if is_out_of_memory(log_text):
        return OutOfMemory(f"not enough memory to load {path}", "lower context_length, max_batch or kv_cache_tokens")
    if "unknown model architecture" in log_text.lower():
        return UnknownArchitecture(f"llama.cpp does not support the architecture of {path}", "use another engine")
    adapters = f" with the adapters {', '.join(loras)}" if loras else ""
    return LoadFailed(
        f"llama.cpp could not load {path}{adapters}: {problem}",
        "see the worker's log; if memory is short, lower context_length, max_batch or kv_cache_tokens",
    )


def read_gguf_model(path: Path) -> GgufFile:
    """Read the file's metadata. Raises `ModelInvalid` if it is missing, truncated, corrupt or not a GGUF file."""
    if not path.exists():
        raise ModelInvalid(f"model file not found: {path}", "check the path, or pull the model again")
    if not is_gguf(path):
        raise ModelInvalid(
            f"{path} is not a GGUF file (it does not start with 'GGUF')",
            "llama.cpp only runs GGUF files; use engine transformers or vllm for other formats",
        )
    return read_gguf(path)
