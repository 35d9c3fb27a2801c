"""llama.cpp's own HTTP server with the settings that our engine loads the model with.

    python -m bench.server.llama_server MODEL.gguf --port 9012 --settings '{"max_batch": 32}'

xllamacpp runs the server in process; our engine uses it through a private socket, this one listens on a port.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from pathlib import Path
from typing import Any

from enginebay.contract import Load
from enginebay.engines.llamacpp.library import detect_host, import_library, read_gguf_model, set_attribute
from enginebay.engines.llamacpp.load_plan import plan_load

_WARNINGS = 2  # the log level our engine sets


def _build_params(library: Any, path: Path, port: int, name: str, settings: dict[str, Any]) -> Any:
    load = Load(kind="llamacpp", engine="", model=name, path=str(path), settings=settings)
    plan = plan_load(load, read_gguf_model(path), detect_host(library))
    params = library.CommonParams()
    params.model.path = str(path)
    params.model_alias = {name}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.ui = False
    params.use_jinja = True  # llama-server's default
    params.verbosity = _WARNINGS
    for attribute, value in plan.attributes.items():
        set_attribute(library, params, attribute, value)
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", default="smollm2")
    parser.add_argument("--settings", type=json.loads, default={}, help="engine settings as JSON")
    args = parser.parse_args()
    stopped = threading.Event()
    library = import_library(bool(args.settings.get("busy_wait", False)))
    server = library.Server(_build_params(library, args.model, args.port, args.name, args.settings))
    for number in (signal.SIGTERM, signal.SIGINT):  # some builds install their own handlers
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
    del server


if __name__ == "__main__":
    main()
