"""Engine features beyond the contract: embeddings, speculation, parallelism, batching strategies, quantization.

A vLLM load takes most of a minute, so checks share one where possible.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enginebay import environments, models
from enginebay.contract import Delta
from enginebay.errors import Unsupported, WorkerDied
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.meters.devices.proc_files import list_process_tree
from enginebay.util.paths import home_dir
from tests.contract.conftest import open_worker, skip_without
from tests.contract.engine_profiles import ONE_GPU, PROFILES, VLLM_DTYPE, VLLM_INT8_DTYPE, build_vllm_memory, is_on_cuda
from tests.contract.lora_adapters import HERE, ensure_dense_smollm2, run_make_script
from tests.contract.worker_requests import ask, ask_all, ask_greedy, make_request

pytestmark = pytest.mark.slow

TEXTS = ("The cat sleeps on the sofa.", "A kitten is napping on the couch.", "Interest rates rose again in March.")


def _compute_cosine(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True)) / (math.hypot(*first) * math.hypot(*second))


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    """A small random Llama with an even number of heads: SmolLM2's nine cannot be split."""
    folder = home_dir() / "test-models" / "tiny-llama"
    if not folder.is_dir():
        run_make_script("make_tiny_llama.py", ensure_dense_smollm2(), folder)
    return folder


@pytest.mark.parametrize("kind", ["transformers", "vllm"])
def test_each_engine_can_make_dense_weights(kind: str, tmp_path: Path) -> None:
    if is_on_cuda():
        skip_without(kind)
    stored = models.ModelStore().get("smollm2")
    assert stored is not None
    path = models.ensure_dense_weights(replace(stored, folder=tmp_path), environments.find_environment(kind).python)
    assert (path / "model.safetensors").stat().st_size > stored.size_bytes


@pytest.fixture(scope="session")
def tiny_gptq(tiny_llama: Path) -> Path:
    folder = tiny_llama.with_name("tiny-gptq")
    if not folder.is_dir():
        run_make_script("make_tiny_quantized.py", "gptq", tiny_llama, folder)
    return folder


@pytest.fixture(scope="session")
def tiny_int8(tiny_llama: Path) -> Path:
    folder = tiny_llama.with_name("tiny-int8")
    if not folder.is_dir():
        run_make_script("make_int8.py", tiny_llama, folder)
    return folder


TINY = {
    "transformers": {"dtype": "float32", "context_length": 256},
    "vllm": {"dtype": VLLM_DTYPE, "max_model_len": 256, "enforce_eager": True, **build_vllm_memory(1)},
}
needs_two_devices = pytest.mark.skipif(ONE_GPU, reason="needs two devices")


async def _open_tiny(kind: str, path: Path, **settings: Any) -> ModelWorker:
    profile = PROFILES[kind]
    return await open_worker(
        type(profile)(profile.name, kind, str(path), {**TINY[kind], **settings}),
    )


PROMPTS = [[7, 11, 13, 17, 19, 23], [101, 202, 303], list(range(50, 90))]


async def _generate_tiny(worker: ModelWorker) -> list[list[int]]:
    requests = [make_request(prompt, temperature=0.0, max_tokens=10, ignore_eos=True) for prompt in PROMPTS]
    return [answer.ids for answer in await ask_all(worker, requests)]


@pytest.fixture(scope="session")
async def reference(tiny_llama: Path) -> list[list[int]]:
    """Greedy answers of the tiny model in one process, by Transformers."""
    async with await _open_tiny("transformers", tiny_llama) as worker:
        return await _generate_tiny(worker)


@pytest.mark.parametrize(("kind", "model"), [("llamacpp", "smollm2"), ("transformers", "minilm"), ("vllm", "minilm")])
async def test_embeddings(kind: str, model: str) -> None:
    if is_on_cuda():
        skip_without(kind)
        if models.ModelStore().get(model) is None:
            pytest.skip(f"{model} is not stored, and this host may have no network")
    settings = {
        "llamacpp": {"context_length": 256},
        "transformers": {"dtype": "float32"},
        "vllm": {"dtype": "float32", **build_vllm_memory(1)},
    }
    profile = PROFILES[kind]
    async with await open_worker(type(profile)(kind, kind, model, settings[kind]), task="embed") as worker:
        embedding = await worker.embed(TEXTS)
        again = await worker.embed(TEXTS[:1])
        assert _compute_cosine(embedding.vectors[0], again.vectors[0]) > 0.999
        assert _compute_cosine(embedding.vectors[0], embedding.vectors[1]) > _compute_cosine(
            embedding.vectors[0], embedding.vectors[2]
        )
        assert math.isclose(math.hypot(*embedding.vectors[0]), 1.0, rel_tol=1e-2)
        assert embedding.prompt_tokens == sum([len(await worker.prompt_encoder.encode(text)) for text in TEXTS])
        with pytest.raises(Unsupported):
            await ask_greedy(worker, "hello")
        if model == "minilm":
            expected = (0.5, 1.0)
            assert expected[0] < _compute_cosine(embedding.vectors[0], embedding.vectors[1]) < expected[1]


async def test_vllm_speculates_with_ngrams_and_reuses_prefixes() -> None:
    """The prompt repeats itself, so drafts are accepted: one step yields several tokens, and the output is the same."""
    settings = {
        "speculative.method": "ngram",
        "speculative.num_tokens": 4,
        "speculative.ngram_max": 3,
        "swap_space": 4.0,
    }
    async with await open_worker(PROFILES["vllm"], **settings) as worker:
        at_once = 0
        async for event in worker.generate(make_request(PROFILES["vllm"].repeats, temperature=0.0, max_tokens=32)):
            if isinstance(event, Delta):
                at_once = max(at_once, len(event.token_ids))
        assert at_once > 1, "no draft was ever accepted"
        assert (await ask_greedy(worker, PROFILES["vllm"].certain, max_tokens=8)).text.startswith(" 21, 22")
        again = await ask_greedy(worker, PROFILES["vllm"].certain * 4, max_tokens=4)
        again = await ask_greedy(worker, PROFILES["vllm"].certain * 4, max_tokens=4)
        assert again.usage.cached_tokens > 0, "the prefix was not reused"
        assert any("swap_space" in line and "0.18" in line for line in worker.facts.warnings), worker.facts.warnings
        assert "min_p" in worker.facts.refused
        with pytest.raises(Unsupported, match="min_p"):
            await ask_greedy(worker, "a", min_p=0.5)


@needs_two_devices
async def test_vllm_tensor_parallel_2_gives_the_same_answers(tiny_llama: Path, reference: list[list[int]]) -> None:
    async with await _open_tiny("vllm", tiny_llama, tensor_parallel_size=2) as worker:
        assert await _generate_tiny(worker) == reference
        assert worker.facts.effective["tensor_parallel_size"] == 2


async def test_vllm_runs_a_quantized_checkpoint_through_generate(tiny_int8: Path, reference: list[list[int]]) -> None:
    """8-bit weights, and at the same time vLLM as it is: all patches are off."""
    off = {"stepwise": "off", "scheduler_stats": "off", "load_log": "off", "output_handler": "off"}
    settings = {**off, "mixed_graphs": "off", "start_method": "spawn", "dtype": VLLM_INT8_DTYPE}
    async with await _open_tiny("vllm", tiny_int8, **settings) as worker:
        for prompt, expected in zip(PROMPTS, reference, strict=True):
            first = (await ask_greedy(worker, prompt, max_tokens=1, logprobs=5, ignore_eos=True)).choices[0].logprobs[0]
            assert expected[0] in dict(first.top), (
                "rounding changes a token's rank a little, wrong weights change it a lot"
            )
        several = await ask(worker, PROMPTS[0], n=3, temperature=1.0, seed=5, max_tokens=6, logprobs=2, ignore_eos=True)
        assert sorted(several.choices) == [0, 1, 2]
        assert all(len(choice.logprobs) == 6 for choice in several.choices.values())
        assert worker.facts.effective["stepwise"] == worker.facts.effective["mixed_graphs"] == "off"
        assert not worker.facts.warnings
        assert not (await worker.client.state()).steps, "the scheduler's statistics are on"
        for pid in list_process_tree(worker.process.pid)[1:]:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied):  # nobody watches vLLM's output handler, so the next request notices
            await ask_greedy(worker, PROMPTS[0], max_tokens=4)


@needs_two_devices
async def test_transformers_tensor_parallel_2_under_torchrun(tiny_llama: Path, reference: list[list[int]]) -> None:
    settings = {"sharding.strategy": "tensor_parallel", "sharding.num_shards": 2}
    async with await _open_tiny("transformers", tiny_llama, **settings) as worker:
        assert worker.plan.launch.processes == 2
        assert await _generate_tiny(worker) == reference


async def test_transformers_launched_by_accelerate(tiny_llama: Path, reference: list[list[int]]) -> None:
    async with await _open_tiny("transformers", tiny_llama, launch="accelerate") as worker:
        assert "accelerate.commands.launch" in Path(f"/proc/{worker.process.pid}/cmdline").read_text()
        assert await _generate_tiny(worker) == reference
        pids = list_process_tree(worker.process.pid)
    deadline = time.monotonic() + 15
    while left := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline, f"the launcher or its worker is still running: {left}"
        await asyncio.sleep(0.1)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("strategy", ["static", "dynamic", "sorted_static", "sorted_dynamic"])
async def test_transformers_batching_strategies(tiny_llama: Path, reference: list[list[int]], strategy: str) -> None:
    settings = {"batching.strategy": strategy, "batching.batch_size": 2}
    async with await _open_tiny("transformers", tiny_llama, **settings) as worker:
        assert await _generate_tiny(worker) == reference
        assert worker.facts.effective["batching.strategy"] == strategy


async def test_transformers_assisted_generation_gives_the_same_answers(
    tiny_llama: Path, reference: list[list[int]]
) -> None:
    settings = {"assisted_generation.num_tokens": 3, "assisted_generation.model": str(tiny_llama)}
    async with await _open_tiny("transformers", tiny_llama, **settings) as worker:
        assert await _generate_tiny(worker) == reference


async def test_transformers_runs_quantized_checkpoints(tiny_gptq: Path) -> None:
    """Packed and unpacked weights are the same, so the outputs must be too."""
    outputs = []
    for path in (tiny_gptq, tiny_gptq.with_name("tiny-gptq-dense")):
        async with await _open_tiny("transformers", path) as worker:
            outputs.append(await _generate_tiny(worker))
    assert outputs[0] == outputs[1]


async def test_rope_scaling_changes_the_answers_alike(tiny_llama: Path, reference: list[list[int]]) -> None:
    settings = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    async with await _open_tiny("transformers", tiny_llama, **settings) as worker:
        scaled = await _generate_tiny(worker)
    assert scaled != reference
    async with await _open_tiny("vllm", tiny_llama, **settings) as worker:
        assert await _generate_tiny(worker) == scaled


@pytest.mark.parametrize(
    "script",
    [
        "check_transformers.py",
        "check_transformers_kernel.py",
        pytest.param("check_transformers_rounding.py", marks=pytest.mark.exhaustive),
    ],
)
def test_transformers_inside_its_own_environment(tiny_llama: Path, script: str) -> None:
    """Run the checks that need torch: sampling against formulas, caches against generate(), rounding."""
    python = environments.find_environment("transformers").python
    env = {**os.environ, "PYTHONPATH": f"{HERE.parents[1] / 'src'}{os.pathsep}{HERE.parents[1]}"}
    result = subprocess.run(
        [str(python), str(HERE / script), str(tiny_llama)],
        capture_output=True, text=True, timeout=500, env=env, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    checks = (HERE / script).read_text().partition("CHECKS = (")[2].partition("\n)\n")[0]
    assert result.stdout.count("ok ") >= checks.count("\n    check_") >= 3
