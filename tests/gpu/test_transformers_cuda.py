"""The transformers engine on CUDA: the same output as on a CPU, and memory that is freed during sleep."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from enginebay import environments
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.util.paths import home_dir
from tests.contract.engine_profiles import PROFILES, is_on_cuda
from tests.contract.lora_adapters import HERE, ensure_dense_smollm2, run_make_script
from tests.contract.parameter_effects import EFFECTS
from tests.contract.worker_requests import ask_all, ask_greedy, make_request
from tests.gpu.worker_pool import WorkerPool, WorkerSetup

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not is_on_cuda(), reason="needs a CUDA device")]

PROFILE = PROFILES["transformers"]
PROMPTS = (PROFILE.certain, PROFILE.also_certain, PROFILE.repeats, *PROFILE.more)
BASE = {"context_length": 512, "batching.batch_size": 32, "dtype": "float32"}
SETUPS = {
    "cuda": WorkerSetup(lora=True),
    "cpu": WorkerSetup({"device": "cpu"}),
    "half": WorkerSetup({"dtype": "bfloat16"}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerPool]:
    opened = WorkerPool("transformers", BASE, SETUPS, tmp_path_factory.mktemp("adapters"))
    try:
        yield opened
    finally:
        await opened.close()


async def _generate_answers(worker: ModelWorker) -> list[list[int]]:
    requests = [make_request(prompt, temperature=0.0, max_tokens=24) for prompt in PROMPTS]
    return [answer.ids for answer in await ask_all(worker, requests)]


async def test_outputs_match_the_cpu(workers: WorkerPool) -> None:
    cuda, cpu = await workers.get("cuda"), await workers.get("cpu")
    assert cuda.facts.effective["device"].startswith("cuda") and cpu.facts.effective["device"] == "cpu"
    assert cuda.facts.effective["batching.strategy"] == "continuous", cuda.facts.effective
    assert await _generate_answers(cuda) == await _generate_answers(cpu)


async def test_half_precision_counts_correctly(workers: WorkerPool) -> None:
    half = await workers.get("half")
    assert half.facts.effective["dtype"] == "bfloat16"
    assert half.facts.effective["batching.strategy"] == "continuous", half.facts.effective
    assert (await ask_greedy(half, PROFILE.certain, max_tokens=8)).text.startswith(" 21, 22")
    batch = await ask_all(half, [make_request(PROFILE.certain, temperature=0.0, max_tokens=8)] * 48)
    assert {tuple(answer.ids) for answer in batch} == {tuple(batch[0].ids)}


async def test_an_adapter_changes_only_its_own_answers(workers: WorkerPool) -> None:
    await EFFECTS["lora"](await workers.get("cuda"), PROFILE)


@pytest.mark.parametrize("name", ["cuda", "half"])
async def test_sleep_frees_memory_and_keeps_the_model(workers: WorkerPool, name: str) -> None:
    from tests.gpu.sleep_cycle import sleep_and_wake

    worker = await workers.get(name)
    assert 1 in worker.facts.sleep_levels, worker.facts.effective
    for turn in (1, 2):
        slept = await sleep_and_wake(worker, 1)
        print(f"{name} turn {turn}: {slept}")
        assert slept.same, "answers differ after the sleep"
        if turn == 1:
            assert slept.freed_bytes > 100_000_000, slept


@pytest.mark.parametrize(
    ("script", "cuda_check"),
    [
        ("check_transformers.py", "check_cuda_graphs_are_replayed"),
        ("check_transformers_kernel.py", "check_our_kernel_attends_as_the_formula_does"),
    ],
)
def test_checks_on_cuda(script: str, cuda_check: str) -> None:
    """Run the check scripts on CUDA. `cuda_check` is the check that needs a GPU."""
    model = home_dir() / "test-models" / "tiny-llama"
    if not model.is_dir():
        run_make_script("make_tiny_llama.py", ensure_dense_smollm2(), model)
    root = HERE.parents[1]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "ENGINEBAY_CHECK_DEVICE": "cuda"}
    result = subprocess.run(
        [str(environments.find_environment("transformers").python), str(HERE / script), str(model)],
        capture_output=True, text=True, timeout=500, env=env, check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-3000:]}"
    assert result.stdout.count("ok ") >= 4
    assert f"ok {cuda_check}" in result.stdout
