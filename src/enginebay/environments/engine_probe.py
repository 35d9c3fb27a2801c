"""Probes an engine in its own Python for its version and parameters, and caches the result."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from enginebay import __version__
from enginebay.contract import EngineSpec, Probe
from enginebay.errors import EngineFailed
from enginebay.util.atomic_file import read_json_object, write_json
from enginebay.util.child_processes import child_process, select_worker_variables
from enginebay.util.paths import home_dir
from enginebay.worker import bootstrap
from enginebay.worker.engine_side import probe_main

BOOTSTRAP = Path(bootstrap.__file__)
PROBE_TIMEOUT_S = 300


def run_probe(python: Path, question: dict[str, Any], env_prefixes: Sequence[str] = ()) -> dict[str, Any]:
    """Run the probe in that Python. Raises `EngineFailed` with the last lines of its stderr."""
    command = [str(python), str(BOOTSTRAP), "probe", json.dumps(question)]
    try:
        with child_process(command, select_worker_variables(env_prefixes), stderr=subprocess.PIPE) as process:
            output, errors = process.communicate(timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise EngineFailed(f"the engine probe timed out after {PROBE_TIMEOUT_S} s") from None
    marked = [line for line in output.splitlines() if line.startswith(probe_main.RESULT_PREFIX)]
    answer: dict[str, Any] = json.loads(marked[-1].removeprefix(probe_main.RESULT_PREFIX)) if marked else {}
    if process.returncode != 0 or not answer or "error" in answer:
        reason = answer.get("error") or f"exit code {process.returncode}"
        raise EngineFailed(f"the engine's code failed in its environment: {reason}", format_last_lines(errors))
    return answer


def format_last_lines(text: str, count: int = 5) -> str:
    """Return the end of a program's output as an indented block for an error message."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and "WARNING" not in line]
    return "\n     ".join(lines[-count:])


def probe_engine(python: Path, spec: EngineSpec) -> Probe:
    return Probe.from_json(run_probe(python, {"engine": spec.engine}, spec.env_prefixes)["probe"])


def fingerprint_adapter(spec: EngineSpec) -> str:
    """Return a hash of the adapter's code, so that an upgrade of Enginebay probes again; constant for plugins."""
    folder = _find_adapter_folder(spec)
    if folder is None:
        return "theirs"
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _find_adapter_folder(spec: EngineSpec) -> Path | None:
    package = spec.engine.partition(":")[0].rpartition(".")[0]
    if not package.startswith("enginebay."):
        return None
    module = importlib.util.find_spec(package)
    return Path(module.origin).parent if module is not None and module.origin else None


def is_in_current_environment(spec: EngineSpec) -> bool:
    """Return whether this environment has both the engine's adapter and its library."""
    needed = {spec.engine.partition(":")[0].partition(".")[0], spec.module.partition(".")[0]} - {""}
    return all(_is_importable(name) for name in needed)


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def read_current_version(spec: EngineSpec) -> str:
    """Return the version of the engine's library in this environment."""
    for name in spec.distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return __version__ if spec.engine.startswith("enginebay.") else "0"


def probe_current_environment(spec: EngineSpec) -> Probe:
    """Probe the library in this environment, once for each state of its packages.

    Failures are cached too: the import takes seconds, and every command would repeat it.
    """
    packages = Path(sysconfig.get_paths()["purelib"])
    changed = packages.stat().st_mtime_ns if packages.exists() else 0
    state = f"{sys.prefix} {read_current_version(spec)} {changed} {fingerprint_adapter(spec)}"
    path = home_dir() / "probes" / f"{spec.kind}-{hashlib.sha256(state.encode()).hexdigest()[:16]}.json"
    result = _read_cached(path)
    if result is None:
        result = _probe_now(spec)
        try:
            write_json(path, result)
        except OSError:
            pass  # a read-only home only costs time
    if "error" in result:
        raise EngineFailed(result["error"], result["hint"])
    return Probe.from_json(result["probe"])


def _read_cached(path: Path) -> dict[str, Any] | None:
    try:
        return read_json_object(path)
    except (OSError, ValueError):
        return None


def _probe_now(spec: EngineSpec) -> dict[str, Any]:
    try:
        return run_probe(Path(sys.executable), {"engine": spec.engine}, spec.env_prefixes)
    except EngineFailed as error:
        return {"error": error.message, "hint": error.hint}
