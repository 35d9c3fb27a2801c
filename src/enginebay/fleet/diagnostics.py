"""The checks behind `bay doctor`: one finding per thing a user may have to act on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from enginebay import __version__
from enginebay.contract import EngineSpec
from enginebay.engines import registry
from enginebay.environments import build_missing_error, engine_probe, list_environments
from enginebay.environments.environment_store import list_broken
from enginebay.errors import EnginebayError, EngineFailed, UnknownModel
from enginebay.util.hardware import HostFacts, read_host
from enginebay.util.number_format import format_bytes
from enginebay.util.paths import home_dir, runtime_dir

_LOW_DISK_BYTES = 2 << 30


class FindingState(StrEnum):
    OK = "ok"
    ABSENT = "absent"  # not an error: it can be installed
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    state: FindingState
    found: str
    cure: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_diagnostics() -> list[Finding]:
    host = read_host()
    return [
        *check_host(host),
        *_check_directories(),
        *_check_engines(),
        _check_default_model(),
        *_check_stored_models(),
    ]


def check_host(host: HostFacts) -> Iterator[Finding]:
    """Check the host's facts. Pure."""
    yield Finding("bay", FindingState.OK, f"{__version__} on Python {host.python}")
    yield Finding("system", FindingState.OK, f"{host.system} {host.machine}")
    yield Finding("processor", FindingState.OK, f"{host.cpu}, {host.usable_cores} of {host.cores} cores usable")
    yield Finding("features", FindingState.OK, ", ".join(host.features) or "no relevant ones")
    memory = f"{format_bytes(host.available_bytes)} of {format_bytes(host.memory_bytes)} available"
    yield Finding("memory", FindingState.OK, memory)
    if host.gpus:
        for gpu in host.gpus:
            facts = f"{gpu.name}, {format_bytes(gpu.memory_bytes)}, driver {host.driver}"
            yield Finding(f"GPU {gpu.index}", FindingState.OK, facts)
        if host.gpu_links:
            pairs = ", ".join(f"{one}-{other}" for one, other in host.gpu_links)
            yield Finding("GPU links", FindingState.OK, pairs)
    elif not host.gpu_problems:
        yield Finding(
            "GPU",
            FindingState.ABSENT,
            "no NVIDIA GPU visible",
            "optional: llamacpp, transformers and vllm also run on the CPU",
        )
    for problem in host.gpu_problems:
        yield Finding(
            "GPU", FindingState.BROKEN, problem, "see what `nvidia-smi` reports; a reset or a reboot may help"
        )
    if host.disk_free_bytes < _LOW_DISK_BYTES:
        free = f"only {format_bytes(host.disk_free_bytes)} free at {host.home}"
        yield Finding("disk", FindingState.ABSENT, free, "free some space, or set ENGINEBAY_HOME to a larger disk")
    else:
        yield Finding("disk", FindingState.OK, f"{format_bytes(host.disk_free_bytes)} free at {host.home}")
    if host.pip:
        yield Finding("pip", FindingState.OK, "available for new environments")
    else:
        yield Finding(
            "pip",
            FindingState.BROKEN,
            "this Python has no ensurepip, so environments cannot be created",
            "install the system package for it, such as python3-venv",
        )


def _check_directories() -> Iterator[Finding]:
    """Check that the directories are writable."""
    try:
        home_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home_dir()):
            pass
        yield Finding("home", FindingState.OK, str(home_dir()))
    except OSError as error:
        yield Finding(
            "home", FindingState.BROKEN, f"{home_dir()}: {error.strerror}", "set ENGINEBAY_HOME to a writable directory"
        )
    try:
        yield Finding("sockets", FindingState.OK, os.fspath(runtime_dir()))
    except EnginebayError as error:
        yield Finding("sockets", FindingState.BROKEN, error.message, error.hint)
    except OSError as error:
        yield Finding("sockets", FindingState.BROKEN, str(error), "set XDG_RUNTIME_DIR to a writable directory")


def _check_engines() -> Iterator[Finding]:
    for spec in registry.load_specs().values():
        yield from _check_engine(spec)
    for environment in list_broken():
        yield Finding(
            f"environment {environment.path.name}",
            FindingState.BROKEN,
            environment.reason,
            f"bay engines install {environment.requirement} --recreate",
        )
    for name, reason in registry.list_faulty_entry_points().items():
        yield Finding(
            f"entry point {name}", FindingState.BROKEN, reason, "repair or uninstall the package that declares it"
        )


def _check_engine(spec: EngineSpec) -> Iterator[Finding]:
    subject = f"engine {spec.kind}"
    findings = [
        Finding(
            subject,
            FindingState.OK,
            f"{environment.version} in {environment.path} ({', '.join(environment.probe.devices)})",
        )
        for environment in list_environments(spec.kind)
    ]
    if engine_probe.is_in_current_environment(spec):
        findings.insert(0, _check_current_environment(spec, subject))
    yield from findings or [Finding(subject, FindingState.ABSENT, "not installed", build_missing_error(spec).hint)]


def _check_current_environment(spec: EngineSpec, subject: str) -> Finding:
    try:
        probe = engine_probe.probe_current_environment(spec)
    except EngineFailed as error:
        # Somebody may have installed the library for another purpose: not an error.
        return Finding(
            subject,
            FindingState.ABSENT,
            f"its library is installed but does not start: {error.message}",
            "install it in its own environment: bay engines install " + spec.kind,
        )
    return Finding(subject, FindingState.OK, f"{probe.version} next to bay ({', '.join(probe.devices)})")


def _check_default_model() -> Finding:
    from enginebay.models import DEFAULT_MODEL, resolve_model

    subject = f"model {DEFAULT_MODEL}"
    try:
        return Finding(subject, FindingState.OK, str(resolve_model(DEFAULT_MODEL).path))
    except UnknownModel as error:
        return Finding(subject, FindingState.ABSENT, "the default model is not downloaded", error.hint)
    except EnginebayError as error:
        return Finding(subject, FindingState.BROKEN, error.message, error.hint)


def _check_stored_models() -> Iterator[Finding]:
    from enginebay.models import DEFAULT_MODEL, ModelStore

    try:
        damaged = ModelStore().list_unreadable()
    except EnginebayError as error:
        yield Finding("models", FindingState.BROKEN, error.message, error.hint)
        return
    for name, reason in damaged.items():
        if name != DEFAULT_MODEL:  # it has its own finding
            yield Finding(f"model {name}", FindingState.BROKEN, reason.message, reason.hint)
