"""Engine environments: one venv per engine and version, built whole or not at all.

    engines/vllm-0.32.0 -> .store/vllm-0.32.0~3f9a1c     the name appears in one rename, once all is proven
    engines/.store/vllm-0.32.0~3f9a1c/                   the venv, with install.json, spec.json, probe.json, freeze.txt
    engines/.locks/vllm-0.32.0.lock                      held while one is built; a free lock means its builder is dead

A venv is full of absolute paths (script shebangs, compiled files), so it is never moved: it is built where it stays,
under a name nobody looks at, and published by a link.
"""

from enginebay.environments.environment_lookup import build_missing_error, find_environment, get_installed_engines
from enginebay.environments.environment_store import Environment, list_environments

__all__ = ["Environment", "build_missing_error", "find_environment", "get_installed_engines", "list_environments"]
