"""Engine environments: one venv per engine and version, built whole or not at all.

    engines/vllm-0.32.0 -> .store/vllm-0.32.0~3f9a1c     the name appears in one rename, once all is proven
    engines/.store/vllm-0.32.0~3f9a1c/                   the venv, with install.json, spec.json, probe.json, freeze.txt
    engines/.locks/vllm-0.32.0.lock                      held while one is built; a free lock means its builder is dead

A venv is full of absolute paths (script shebangs, compiled files), so it is never moved: it is built where it stays,
under a name nobody looks at, and published by a link.
"""

from enginebay.fleet.environments.lookup import find, installed, missing
from enginebay.fleet.environments.store import Environment, environments

__all__ = ["Environment", "environments", "find", "installed", "missing"]
