"""The examination behind `bay doctor`: one finding for each thing a person may have to do something about."""

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
from enginebay.errors import EnginebayError, EngineFailed, UnknownModel
from enginebay.fleet.environments import environments, missing
from enginebay.fleet.environments import probe as probing
from enginebay.fleet.environments.store import broken
from enginebay.fleet.host import HostFacts, read_host
from enginebay.home import home, runtime_dir

_GIB = 1024**3
_LITTLE_DISK_BYTES = 2 * _GIB


class State(StrEnum):
    OK = "ok"
    ABSENT = "absent"  # nothing wrong: it can be had
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    state: State
    found: str
    cure: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def checkup() -> list[Finding]:
    host = read_host()
    return [*host_findings(host), *_places(), *_engines(), _embedded_model(), *_damaged_models()]


def host_findings(host: HostFacts) -> Iterator[Finding]:
    """Pure: what the host's facts say."""
    yield Finding("bay", State.OK, f"{__version__} on Python {host.python}")
    yield Finding("system", State.OK, f"{host.system} {host.machine}")
    yield Finding("processor", State.OK, f"{host.cpu}, {host.usable_cores} of {host.cores} cores usable")
    yield Finding("features", State.OK, ", ".join(host.features) or "none that matter here")
    yield Finding(
        "memory", State.OK, f"{host.available_bytes / _GIB:.1f} of {host.memory_bytes / _GIB:.1f} GiB available"
    )
    if host.gpus:
        for gpu in host.gpus:
            yield Finding(
                f"GPU {gpu.index}", State.OK, f"{gpu.name}, {gpu.memory_bytes / _GIB:.0f} GiB, driver {host.driver}"
            )
    else:
        yield Finding(
            "GPU", State.ABSENT, "no NVIDIA GPU visible", "not needed: llamacpp, transformers and vllm run on the CPU"
        )
    if host.disk_free_bytes < _LITTLE_DISK_BYTES:
        free = f"only {host.disk_free_bytes / _GIB:.1f} GiB free at {host.home}"
        yield Finding("disk", State.ABSENT, free, "free some, or set ENGINEBAY_HOME to a larger disk")
    else:
        yield Finding("disk", State.OK, f"{host.disk_free_bytes / _GIB:.0f} GiB free at {host.home}")
    if host.pip:
        yield Finding("pip", State.OK, "new environments can get it")
    else:
        yield Finding(
            "pip",
            State.BROKEN,
            "this Python has no ensurepip, so no environment can be made",
            "install the system's package for it, such as python3-venv",
        )


def _places() -> Iterator[Finding]:
    """Directories that must be writable."""
    try:
        home().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home()):
            pass
        yield Finding("home", State.OK, str(home()))
    except OSError as error:
        yield Finding("home", State.BROKEN, f"{home()}: {error.strerror}", "set ENGINEBAY_HOME to a directory of yours")
    try:
        yield Finding("sockets", State.OK, os.fspath(runtime_dir()))
    except EnginebayError as error:
        yield Finding("sockets", State.BROKEN, error.message, error.hint)
    except OSError as error:
        yield Finding("sockets", State.BROKEN, str(error), "set XDG_RUNTIME_DIR to a directory of yours")


def _engines() -> Iterator[Finding]:
    for spec in registry.specs().values():
        yield from _engine(spec)
    for one in broken():
        yield Finding(
            f"environment {one.path.name}", State.BROKEN, one.reason, f"bay engines install {one.asked} --recreate"
        )
    for name, reason in registry.faults().items():
        yield Finding(f"entry point {name}", State.BROKEN, reason, "repair or uninstall the package that declares it")


def _engine(spec: EngineSpec) -> Iterator[Finding]:
    what = f"engine {spec.kind}"
    found = [
        Finding(what, State.OK, f"{one.version} in {one.path} ({', '.join(one.probe.devices)})")
        for one in environments(spec.kind)
    ]
    if probing.in_current(spec):
        found.insert(0, _in_this_environment(spec, what))
    yield from found or [Finding(what, State.ABSENT, "not installed", missing(spec).hint)]


def _in_this_environment(spec: EngineSpec, what: str) -> Finding:
    try:
        probe = probing.probe_current(spec)
    except EngineFailed as error:
        # Others may have put the library here for their own use: not ours to call broken.
        return Finding(
            what,
            State.ABSENT,
            f"its library is here and does not start: {error.message}",
            "give it an environment of its own: bay engines install " + spec.kind,
        )
    return Finding(what, State.OK, f"{probe.version} next to bay ({', '.join(probe.devices)})")


def _embedded_model() -> Finding:
    from enginebay.fleet.models import DEFAULT, resolve

    what = f"model {DEFAULT}"
    try:
        return Finding(what, State.OK, str(resolve(DEFAULT).path))
    except UnknownModel as error:
        return Finding(what, State.ABSENT, "the embedded model is not fetched", error.hint)
    except EnginebayError as error:
        return Finding(what, State.BROKEN, error.message, error.hint)


def _damaged_models() -> Iterator[Finding]:
    from enginebay.fleet.models import DEFAULT, Store

    try:
        damaged = Store().unreadable()
    except EnginebayError as error:
        yield Finding("models", State.BROKEN, error.message, error.hint)
        return
    for name, reason in damaged.items():
        if name != DEFAULT:  # which has a finding of its own
            yield Finding(f"model {name}", State.BROKEN, reason.message, reason.hint)
