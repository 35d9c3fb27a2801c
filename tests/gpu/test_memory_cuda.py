"""A model too large for the GPU. Runs alone: it takes all memory before it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.gpu.model_shapes import make_shape
from enginebay.errors import LoadFailed
from enginebay.fleet.lifecycle.worker_logs import read_last_lines
from enginebay.util.paths import logs_dir
from tests.contract.conftest import open_worker
from tests.contract.engine_profiles import EngineProfile, is_on_cuda
from tests.contract.lora_adapters import ensure_dense_smollm2

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not is_on_cuda(), reason="needs a CUDA device")]

SETTINGS = {"load_format": "dummy", "dtype": "bfloat16", "max_model_len": 512, "enforce_eager": True}


async def test_weights_that_do_not_fit_raise_out_of_memory(tmp_path: Path) -> None:
    """16-bit weights of 96 layers of the 70B shape take 167 GB."""
    from tests.gpu.gpu_memory import GIB, read_used_bytes

    model = make_shape("llama-70b", tmp_path, ensure_dense_smollm2())
    config = json.loads((model / "config.json").read_text())
    del config["quantization_config"]
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 96}))
    log, before = logs_dir() / "gpu-vllm-large.log", read_used_bytes()
    with pytest.raises(LoadFailed) as failure:
        async with await open_worker(EngineProfile("vllm", "vllm", str(model), SETTINGS), log=log):
            pass
    print(f"{failure.value.kind}: {failure.value}")
    assert failure.value.kind == "out_of_memory", "\n".join((str(failure.value), *read_last_lines(log, 40)))
    assert "\n" not in failure.value.message and "memory" in failure.value.message
    assert "tensor_parallel_size" in failure.value.hint and "quantization_method" in failure.value.hint
    assert read_used_bytes() < before + GIB, "memory is still in use on the GPU"
