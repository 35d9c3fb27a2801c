"""First file that runs in an engine's environment: makes `enginebay` importable from this file's location.

Engine environments contain the engine's library and gRPC, but not Enginebay. One installation of Enginebay serves all
environments, and an upgrade rebuilds none. Nothing else of its site-packages becomes visible.
"""

from __future__ import annotations

import importlib.util
import os
import sys

PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def register_package() -> None:
    """Register the package `enginebay` from its own directory, unless it is already imported."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    if "enginebay" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "enginebay", os.path.join(PACKAGE_DIR, "__init__.py"), submodule_search_locations=[PACKAGE_DIR]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["enginebay"] = module
    spec.loader.exec_module(module)


register_package()  # at import: processes spawned by an engine import this file again and need the package too

if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    if command in ("serve", "standby"):
        from enginebay.worker.engine_side.worker_main import main
    elif command == "probe":
        from enginebay.worker.engine_side.probe_main import main
    else:
        sys.exit(f"unknown worker command {command!r}")
    sys.exit(main(arguments))
