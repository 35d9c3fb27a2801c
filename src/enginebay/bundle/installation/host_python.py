"""A Python of this host: what it is, and which packages it has."""

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
    paths: tuple[str, ...]  # where its packages lie
    packages: Mapping[str, str]  # canonical name: version
    lzma: bool = True  # can unpack what is packed that way


def find_base_python() -> str:
    """The host's own Python, when bay runs in an environment that was made from it."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def inspect_python(python: str) -> HostPython:
    """Raises `EnginebayError` if it is no Python."""
    command = [python, str(host_facts.__file__)]
    with child_process(command, isolated_environment(), stderr=subprocess.PIPE) as process:
        said, complained = process.communicate()
    try:
        answer = json.loads(said)
    except ValueError:
        reason = (complained.strip().splitlines() or ["it gives no answer"])[-1]
        raise EnginebayError(
            f"{python} is not a Python that can be used: {reason}", "name another with --python PATH"
        ) from None
    return HostPython(python, answer["facts"], tuple(answer["paths"]), answer["packages"], answer["lzma"])


def check_target(manifest: BundleManifest, python: HostPython) -> None:
    """Raises `EnginebayError` when the bundle is for another host, or cannot be unpacked by this Python."""
    with translate_bundle_errors():
        wrong = find_mismatch(dict(manifest.target), dict(python.facts))
        if wrong is not None:
            raise wrong
    if manifest.trim and not python.lzma:
        raise EnginebayError(
            f"{python.path} was built without lzma, and trimmed packages are packed with it",
            "name another Python with --python PATH; or make a bundle without --trim",
        )
