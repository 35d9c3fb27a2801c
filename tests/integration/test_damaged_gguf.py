"""llama.cpp may abort on a damaged file: its worker ends, and the user gets one clear error."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from enginebay import environments
from enginebay.contract import Load
from enginebay.errors import EnginebayError
from enginebay.util.paths import runtime_dir
from enginebay.worker.client_side.worker_process import WorkerLaunch, WorkerProcess
from tests.unit.text.tiny_gguf import build_tiny_llama


@pytest.mark.engine
@pytest.mark.slow
async def test_a_damaged_file_is_loaded_or_refused_in_one_line(tmp_path: Path) -> None:
    whole, draw = build_tiny_llama(), random.Random(200)
    python = environments.find_environment("llamacpp").python
    refused = 0
    for number in range(30):
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 2, 8))):
            damaged[draw.randrange(9000)] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(damaged)
        engine = "enginebay.engines.llamacpp.engine:LlamaCppEngine"
        load = Load("llamacpp", engine, "tiny", str(path), {"context_length": 128, "max_batch": 1, "warmup": False})
        launch = WorkerLaunch(load, python, runtime_dir(), tmp_path / "log")
        try:
            worker = await WorkerProcess.start(launch, timeout_s=60)
        except EnginebayError as error:
            refused += 1
            assert error.message and "\n" not in error.message and "Traceback" not in error.message
            assert "within 60 s" not in error.message
        else:
            await worker.close()
        path.unlink()
    assert refused >= 10
