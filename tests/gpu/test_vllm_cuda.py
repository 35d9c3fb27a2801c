"""Features of the vllm engine on CUDA beyond the contract, each checked by its effect on a worker."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from enginebay.contract import Delta
from enginebay.errors import LoadFailed, WorkerDied
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.meters.devices.proc_files import list_process_tree
from enginebay.util.paths import logs_dir
from tests.contract.engine_profiles import PROFILES, build_vllm_memory, is_on_cuda
from tests.contract.lora_adapters import ensure_dense_smollm2
from tests.contract.parameter_effects import EFFECTS
from tests.contract.worker_requests import ask, ask_greedy, make_request
from tests.gpu.planted_graph import COUNT, FAULTS, FIRST_NUMBERS
from tests.gpu.worker_pool import LOAD_S, WorkerPool, WorkerSetup

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not is_on_cuda(), reason="needs a CUDA device")]

PROFILE = PROFILES["vllm"]
COUNTING = ", ".join(str(number) for number in range(1, 101)) + ","  # the continuation is certain in any precision
WEEKS = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, " * 3 + "Monday, Tuesday,"  # nearly as certain
CHUNK = 64
PLAIN_GIB = 16  # of KV cache: visible when it is freed, even if other workers load meanwhile
BASE = {"max_model_len": 512, "dtype": "bfloat16", "max_num_seqs": 32, "enforce_eager": True, **build_vllm_memory(1)}
SETUPS = {
    "plain": WorkerSetup(build_vllm_memory(PLAIN_GIB)),
    "fp8": WorkerSetup({"quantization_method": "fp8", "kv_cache_dtype": "fp8"}),
    "chunked": WorkerSetup({"max_num_batched_tokens": CHUNK, "enable_chunked_prefill": True}),
    "ngram": WorkerSetup({"speculative.method": "ngram", "speculative.num_tokens": 4, "speculative.ngram_max": 3}),
    "lora": WorkerSetup(lora=True),
    "compiled": WorkerSetup({"enforce_eager": False, "max_num_seqs": 256}),
    "odd": WorkerSetup({"enforce_eager": False, "max_num_seqs": 10}),
    "embed": WorkerSetup(task="embed"),
    "starved": WorkerSetup({"extra": {"gpu_memory_utilization": 0.002}}),  # less than its weights need
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerPool]:
    opened = WorkerPool("vllm", BASE, SETUPS, tmp_path_factory.mktemp("adapters"))
    try:
        yield opened
    finally:
        await opened.close()


async def _count_steps(worker: ModelWorker) -> int:
    return int((await worker.client.state()).steps)


async def test_plain_counts_correctly(workers: WorkerPool) -> None:
    """The reference for the other tests."""
    plain = await workers.get("plain")
    assert (await ask_greedy(plain, PROFILE.certain, max_tokens=8)).text.startswith(" 21, 22")
    answer = await ask_greedy(plain, COUNTING, max_tokens=16)
    assert answer.text.startswith(" 101, 102"), answer.text
    assert plain.facts.version.startswith("0.") and plain.facts.effective["dtype"] == BASE["dtype"]


async def test_equal_prefixes_are_computed_once(workers: WorkerPool) -> None:
    plain = await workers.get("plain")
    prompt = f"Let us count. {COUNTING}"
    first, second = await ask_greedy(plain, prompt, max_tokens=16), await ask_greedy(plain, prompt, max_tokens=16)
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens > 200
    assert second.ids == first.ids


async def test_a_long_prompt_in_chunks_gives_the_same(workers: WorkerPool) -> None:
    chunked, plain = await workers.get("chunked"), await workers.get("plain")
    count = len(await chunked.prompt_encoder.encode(COUNTING))
    assert count > 4 * CHUNK
    before = await _count_steps(chunked)
    answer = await ask_greedy(chunked, COUNTING, max_tokens=16)
    taken = await _count_steps(chunked) - before
    assert answer.ids == (await ask_greedy(plain, COUNTING, max_tokens=16)).ids
    assert taken >= count // CHUNK + 15, f"{count} tokens took {taken} steps: the prompt was not chunked"
    assert chunked.facts.effective["max_num_batched_tokens"] == CHUNK


async def test_speculation_with_ngrams_saves_steps_and_changes_nothing(workers: WorkerPool) -> None:
    ngram, plain = await workers.get("ngram"), await workers.get("plain")
    counted, expected = (
        await ask_greedy(ngram, COUNTING, max_tokens=24),
        await ask_greedy(plain, COUNTING, max_tokens=24),
    )
    assert counted.ids == expected.ids, (counted.text, expected.text)
    before = await _count_steps(ngram)
    answer = await ask_greedy(ngram, WEEKS, max_tokens=32, ignore_eos=True)
    taken = await _count_steps(ngram) - before
    assert answer.text.startswith(" Wednesday, Thursday, Friday"), answer.text
    assert max(len(ids) for _, ids in answer.choices[0].pieces) > 1, "no draft was ever accepted"
    assert taken < 24, f"32 tokens took {taken} steps"


async def test_eight_bit_weights_and_cache_answer_alike_and_are_smaller(workers: WorkerPool) -> None:
    fp8, plain = await workers.get("fp8"), await workers.get("plain")
    assert fp8.facts.effective["quantization_method"] == "fp8"
    assert str(fp8.facts.effective["kv_cache_dtype"]).startswith("fp8")
    for prompt in (PROFILE.certain, COUNTING):
        assert (await ask_greedy(fp8, prompt, max_tokens=8)).ids == (await ask_greedy(plain, prompt, max_tokens=8)).ids
    assert _read_weights_gib(workers, "fp8") < 0.8 * _read_weights_gib(workers, "plain")
    blocks = fp8.facts.effective["kv_cache_blocks"] * PLAIN_GIB / plain.facts.effective["kv_cache_blocks"]
    assert blocks > 1.8, f"a GiB holds {blocks:.2f} times the blocks of 16 bits"


def _read_weights_gib(workers: WorkerPool, name: str) -> float:
    """Read the weight memory from vLLM's log."""
    sizes = re.findall(r"Model loading took ([\d.]+) GiB", workers.log(name).read_text(errors="replace"))
    assert sizes, f"{workers.log(name)} does not report the weight memory"
    return float(sizes[-1])


async def test_an_adapter_changes_only_its_own_answers(workers: WorkerPool) -> None:
    lora, plain = await workers.get("lora"), await workers.get("plain")
    await EFFECTS["lora"](lora, PROFILE)
    without = (await ask_greedy(lora, PROFILE.certain, max_tokens=12)).ids
    assert without == (await ask_greedy(plain, PROFILE.certain, max_tokens=12)).ids
    adapted = (await ask(lora, PROFILE.long, PROFILE.lora, temperature=0.0, max_tokens=24)).ids
    assert adapted != (await ask_greedy(lora, PROFILE.long, max_tokens=24)).ids


@pytest.mark.parametrize("parameter", ["guided_json", "guided_regex", "guided_choice", "guided_grammar"])
async def test_guided_output(workers: WorkerPool, parameter: str) -> None:
    await EFFECTS[parameter](await workers.get("plain"), PROFILE)


async def test_compiled_with_cuda_graphs_answers_as_eager(workers: WorkerPool) -> None:
    compiled, plain = await workers.get("compiled"), await workers.get("plain")
    assert compiled.facts.effective["enforce_eager"] is False
    assert "capture" in compiled.facts.phases, f"no graphs were captured: {compiled.facts.phases}"
    assert "capture" not in plain.facts.phases
    for prompt in (PROFILE.certain, COUNTING):
        assert (await ask_greedy(compiled, prompt, max_tokens=12)).ids == (
            await ask_greedy(plain, prompt, max_tokens=12)
        ).ids


@pytest.mark.parametrize("name", ["compiled", "odd"])
async def test_prompts_among_answers_in_one_graph_give_the_same(workers: WorkerPool, name: str) -> None:
    """Requests arrive while others decode. "odd" is filled up: its decode steps have no graph of their exact size."""
    compiled, plain = await workers.get(name), await workers.get("plain")
    assert compiled.facts.effective["mixed_graphs"] == "on"
    assert plain.facts.effective["mixed_graphs"] == "off"
    prompts = [", ".join(map(str, range(first, first + 20 + first % 13))) + "," for first in range(1, 41)]

    async def later(number: int, prompt: str) -> list[int]:
        await asyncio.sleep(0.003 * number)
        return (await ask_greedy(compiled, prompt, max_tokens=32)).ids

    together = await asyncio.gather(*(later(number, prompt) for number, prompt in enumerate(prompts)))
    alone = [(await ask_greedy(plain, prompt, max_tokens=32)).ids for prompt in prompts]
    different = [prompts[number] for number, ids in enumerate(together) if ids != alone[number]]
    assert len(different) <= len(prompts) // 10, different  # rounding decides where two tokens are as likely


async def test_a_planted_wrong_mixed_graph_is_refused_at_load() -> None:
    """The engine goes back to vLLM's default graphs, says why, and answers rightly."""
    model = await asyncio.to_thread(ensure_dense_smollm2)
    results = dict(
        zip(FAULTS, await asyncio.gather(*(_load_planted(fault, str(model)) for fault in FAULTS)), strict=True)
    )
    expected = [f" {first + COUNT}, {first + COUNT + 1}" for first in FIRST_NUMBERS]
    for fault, result in results.items():
        print(fault, result)
        assert not result["errors"]
        assert [text[: len(start)] for text, start in zip(result["texts"], expected, strict=True)] == expected, fault
        refused = [line for line in result["warnings"] if line.startswith("mixed_graphs: ")]
        if fault == "none":
            assert result["mixed_graphs"] == "on" and not refused
        else:
            assert result["mixed_graphs"] == "off" and "more than rounding" in refused[0], fault


async def _load_planted(fault: str, model: str) -> dict[str, Any]:
    log = logs_dir() / f"gpu-vllm-planted-{fault}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.gpu.planted_graph", fault, model, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        output, _ = await asyncio.wait_for(process.communicate(), LOAD_S)
        errors.write(output)
    lines = [line for line in output.decode(errors="replace").splitlines() if line.startswith('{"mixed_graphs"')]
    assert lines, f"{fault} did not load, see {log}:\n{output.decode(errors='replace')[-2000:]}"
    return dict(json.loads(lines[-1]))


async def test_steps_larger_than_any_whole_graph_give_the_same(workers: WorkerPool) -> None:
    compiled, plain = await workers.get("compiled"), await workers.get("plain")
    prompts = [f"{number}. {COUNTING}" for number in range(1, 3)]  # together between 512 and 1,024 tokens
    count = sum([len(await compiled.prompt_encoder.encode(prompt)) for prompt in prompts])
    assert 512 < count <= 1024, count
    together = await asyncio.gather(*(ask_greedy(compiled, prompt, max_tokens=16) for prompt in prompts))
    alone = [await ask_greedy(plain, prompt, max_tokens=16) for prompt in prompts]
    assert [answer.ids for answer in together] == [answer.ids for answer in alone]


async def test_embeddings(workers: WorkerPool) -> None:
    embed = await workers.get("embed")
    embedding = await embed.embed(["The cat sleeps.", "Interest rates rose again in March.", "The cat sleeps."])
    first, different, same = embedding.vectors
    assert math.isclose(math.hypot(*first), 1.0, rel_tol=1e-2)
    assert sum(a * b for a, b in zip(first, same, strict=True)) > 0.999
    assert sum(a * b for a, b in zip(first, different, strict=True)) < 0.99


async def test_too_little_memory_for_the_cache_raises_out_of_memory(workers: WorkerPool) -> None:
    with pytest.raises(LoadFailed) as failure:
        await workers.wait_loaded("starved")
    assert failure.value.kind == "out_of_memory", failure.value
    assert "\n" not in failure.value.message and "cache" in failure.value.message
    assert "gpu_memory_utilization" in failure.value.hint


@pytest.mark.parametrize("level", [1, 2])
async def test_sleep_frees_memory_and_keeps_the_model(workers: WorkerPool, level: int) -> None:
    from tests.gpu.gpu_memory import GIB
    from tests.gpu.sleep_cycle import sleep_and_wake

    plain = await workers.get("plain")
    assert plain.facts.sleep_levels == (1, 2)
    for turn in (1, 2):  # the first sleep also allocates the pinned memory
        slept = await sleep_and_wake(plain, level)
        print(f"level {level} turn {turn}: {slept}")
        assert slept.freed_bytes > PLAIN_GIB * GIB * 3 // 4, slept
        assert slept.same, "answers differ after the sleep"


@pytest.mark.parametrize("name", ["lora", "fp8", "compiled"])
async def test_other_setups_sleep_at_their_declared_levels(workers: WorkerPool, name: str) -> None:
    from tests.gpu.sleep_cycle import sleep_and_wake

    worker = await workers.get(name)
    assert worker.facts.sleep_levels == ((1,) if name == "lora" else (1, 2))
    for level in worker.facts.sleep_levels:
        slept = await sleep_and_wake(worker, level)
        print(f"{name} level {level}: {slept}")
        assert slept.same, f"answers differ after level {level}"


async def test_a_worker_killed_under_load_fails_its_requests_and_is_cleaned_up(workers: WorkerPool) -> None:
    victim = await workers.get("chunked")
    pids, directory = list_process_tree(victim.process.pid), victim.process.directory
    received = asyncio.Semaphore(0)

    async def stream(number: int) -> None:
        request = make_request(f"{PROFILE.long} {number}", temperature=1.0, max_tokens=450, ignore_eos=True)
        async for event in victim.generate(request):
            if isinstance(event, Delta) and event.token_ids:
                received.release()

    streams = [asyncio.create_task(stream(number)) for number in range(8)]
    for _ in range(4 * len(streams)):
        await received.acquire()
    os.kill(victim.process.pid, signal.SIGKILL)
    ends = await asyncio.gather(*streams, return_exceptions=True)
    assert [type(end) for end in ends] == [WorkerDied] * len(streams), ends
    assert all("SIGKILL" in str(end) for end in ends), ends
    with pytest.raises(WorkerDied):
        await ask_greedy(victim, PROFILE.certain)
    deadline = time.monotonic() + 15
    while left := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        await asyncio.sleep(0.1)
    assert not directory.exists(), "its guard did not clean up"


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False
