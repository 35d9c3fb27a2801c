"""A Python on this host: its platform facts and packages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from enginebay.bundle import host_facts
from enginebay.bundle.bundle_manifest import BundleManifest
from enginebay.bundle.standalone import find_mismatch
from enginebay.bundle.verification import translate_bundle_errors
from enginebay.errors import EnginebayError
from enginebay.util.child_processes import child_process, isolated_environment


@dataclass(frozen=True, slots=True)
class HostPython:
    path: str
    facts: Mapping[str, str]
    paths: tuple[str, ...]  # its package folders
    packages: Mapping[str, str]  # canonical name: version
    lzma: bool = True  # whether it can unpack LZMA


def find_base_python() -> str:
    """Return the Python that bay's environment was created from."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def inspect_python(python: str) -> HostPython:
    """Read the facts and packages of a Python. Raises `EnginebayError` if it cannot be used."""
    command = [python, str(host_facts.__file__)]
    with child_process(command, isolated_environment(), stderr=subprocess.PIPE) as process:
        output, errors = process.communicate()
    try:
        answer = json.loads(output)
    except ValueError:
        reason = (errors.strip().splitlines() or ["no output"])[-1]
        raise EnginebayError(
            f"{python} is not a usable Python: {reason}", "choose another with --python PATH"
        ) from None
    return HostPython(python, answer["facts"], tuple(answer["paths"]), answer["packages"], answer["lzma"])


def check_target(manifest: BundleManifest, python: HostPython) -> None:
    """Raise `EnginebayError` if the bundle is for another host, or if this Python cannot unpack it."""
    with translate_bundle_errors():
        mismatch = find_mismatch(dict(manifest.target), dict(python.facts))
        if mismatch is not None:
            raise mismatch
    if manifest.trim and not python.lzma:
        raise EnginebayError(
            f"{python.path} was built without lzma, which trimmed packages need",
            "choose another Python with --python PATH, or create the bundle without --trim",
        )
