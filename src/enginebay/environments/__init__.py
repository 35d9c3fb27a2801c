"""Engine environments: builds, publishes and finds one venv per engine and version.

    engines/vllm-0.32.0 -> .store/vllm-0.32.0~3f9a1c     a symlink, created in one rename after the probe succeeds
    engines/.store/vllm-0.32.0~3f9a1c/                   the venv, with install.json, spec.json, probe.json, freeze.txt
    engines/.locks/vllm-0.32.0.lock                      held during a build; a free lock means the builder is dead

A venv holds absolute paths (script shebangs, compiled files) and cannot be moved. It is built in its final location
under a hidden name, then published by a symlink.
"""

from enginebay.environments.environment_lookup import build_missing_error, find_environment, get_installed_engines
from enginebay.environments.environment_store import Environment, list_environments

__all__ = ["Environment", "build_missing_error", "find_environment", "get_installed_engines", "list_environments"]
