"""Model files, errors and the start, without vLLM."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.engines import cpu_cores
from enginebay.engines.vllm import engine_process, library, model_checks
from enginebay.engines.vllm.errors import extract_reason, to_load_error, to_request_error
from enginebay.engines.vllm.load_plan import VllmLoadPlan
from enginebay.engines.vllm.patches import compatibility, forked_start, step_outputs
from enginebay.engines.vllm.patches.load_log import LoadLog
from enginebay.engines.vllm.request_stream import RequestStream
from enginebay.errors import EngineFailed, InvalidRequest, LoadFailed, ModelInvalid, OutOfMemory, WorkerDied


def directory(tmp_path: Path, *files: str, config: str = "{}") -> str:
    for name in files:
        (tmp_path / name).touch()
    (tmp_path / "config.json").write_text(config)
    return str(tmp_path)


def test_a_directory_with_safetensors_gives_its_config(tmp_path: Path) -> None:
    assert model_checks.check_model(directory(tmp_path, "model.safetensors", config='{"a": 1}')) == {"a": 1}


def test_gguf_is_for_another_engine(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed) as caught:
        model_checks.check_model("model.gguf")
    assert "llamacpp" in caught.value.hint
    with pytest.raises(LoadFailed, match="GGUF"):
        model_checks.check_model(directory(tmp_path, "model.gguf"))


def test_pickle_alone_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path, "pytorch_model.bin")
    with pytest.raises(ModelInvalid, match="pickle"):
        model_checks.check_model(path)
    (tmp_path / "model.safetensors").touch()
    assert model_checks.check_model(path) == {}


@pytest.mark.parametrize("config", ["", "[]", "{"])
def test_a_damaged_config(tmp_path: Path, config: str) -> None:
    with pytest.raises(ModelInvalid):
        model_checks.check_model(directory(tmp_path, "model.safetensors", config=config))


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid):
        model_checks.check_model(str(tmp_path / "nowhere"))
    with pytest.raises(ModelInvalid, match="safetensors"):
        model_checks.check_model(directory(tmp_path))


def test_adapter_ranks(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 24}))
    assert model_checks.read_lora_ranks({"a": str(tmp_path)}) == {"a": 24}
    with pytest.raises(ModelInvalid):
        model_checks.read_lora_ranks({"a": "adapter.gguf"})


@pytest.mark.parametrize("file", ["adapter_model.bin", "adapter_model.pt"])
def test_an_adapter_of_pickles_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8}))
    (tmp_path / file).touch()
    (tmp_path / "other.safetensors").touch()  # vLLM would not look at it
    with pytest.raises(ModelInvalid, match="adapter a has only pickle"):
        model_checks.read_lora_ranks({"a": str(tmp_path)})
    (tmp_path / "adapter_model.safetensors").touch()
    assert model_checks.read_lora_ranks({"a": str(tmp_path)}) == {"a": 8}


def test_a_draft_model_of_pickles_is_refused(tmp_path: Path) -> None:
    draft = {"speculative.model": directory(tmp_path, "pytorch_model.bin"), "speculative.method": "eagle"}
    with pytest.raises(ModelInvalid, match=r"speculative\.model .* pickle"):
        model_checks.check_draft_model(draft)
    model_checks.check_draft_model({**draft, "speculative.method": "ngram"})  # uses no draft model
    model_checks.check_draft_model({"speculative.model": "org/name"})  # not here to be looked at
    (tmp_path / "model.safetensors").touch()
    model_checks.check_draft_model(draft)


def failure(text: str, kind: str = "ValueError", architectures: list[str] | None = None) -> Exception:
    return to_load_error(
        kind, text, "m", "0.32.0", architectures or ["LlamaForCausalLM"], frozenset({"LlamaForCausalLM"})
    )


def test_load_errors_are_classified() -> None:
    assert isinstance(failure("No available memory for the cache blocks."), OutOfMemory)
    assert isinstance(failure("CUDA out of memory.", "OutOfMemoryError"), OutOfMemory)
    assert isinstance(failure("Error while deserializing header: x", "SafetensorError"), ModelInvalid)
    strange = failure("Model architectures ['FooLM'] are not supported", architectures=["FooLM"])
    assert isinstance(strange, LoadFailed)
    assert "FooLM" in str(strange)
    assert "engine transformers" in str(strange)
    assert "kernel" in str(failure("'_OpNamespace' '_C' object has no attribute 'x'", "AttributeError"))
    single = failure("int8_scaled_mm_with_quant: expect A to be bfloat16 or half.", "RuntimeError")
    assert isinstance(single, LoadFailed) and "set dtype: bfloat16" in str(single)
    assert type(failure("heads must be divisible")) is LoadFailed


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        ("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.", "raise gpu_memory_util"),
        ("(0.5 GiB KV cache is needed, which is larger than the available KV cache memory (0.1 GiB).", "max_model_len"),
        ("Free memory on device cuda:0 (9/139 GiB) is less than desired GPU memory utilization (0.92).", "lower gpu_"),
        ("CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of 139 GiB.", "tensor_parallel"),
    ],
)
def test_the_hint_depends_on_which_memory_is_short(text: str, helps: str) -> None:
    error = failure(text)
    assert isinstance(error, OutOfMemory)
    assert helps in error.hint
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("text", "again"),
    [("Engine core initialization failed.", True), ("Error in memory profiling. Initial free", True), ("no", False)],
)
def test_a_transient_start_failure_is_retried_spawned(text: str, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def start(config: object, plan: object, method: str, patches: object, notes: object) -> str:
        tried.append(method)
        if method == "fork":
            raise engine_process.EngineStartFailed("AssertionError", text)
        return "up"

    monkeypatch.setattr(engine_process, "_start_once", start)
    monkeypatch.setattr(forked_start, "choose_start_method", lambda _: "fork")
    monkeypatch.setattr(compatibility, "find_incompatibility", lambda patch, version: None)
    patches = compatibility.PatchSelection({}, "0.32.0", [])
    if again:
        assert engine_process.start_engine(None, VllmLoadPlan(), patches, LoadLog()) == "up"
    else:
        with pytest.raises(engine_process.EngineStartFailed):
            engine_process.start_engine(None, VllmLoadPlan(), patches, LoadLog())
    assert tried == (["fork", "spawn"] if again else ["fork"])


@pytest.mark.parametrize(
    ("settings", "environment"),
    [({"start_method": "spawn"}, {}), ({}, {"VLLM_CPU_OMP_THREADS_BIND": "0"}), ({"start_method": "fork"}, {})],
)
def test_a_start_is_spawned_where_forking_is_off_or_does_not_fit(
    settings: dict[str, Any], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "_start_once", lambda config, plan, method, *_: method)
    warnings: list[str] = []
    patches = compatibility.PatchSelection(settings, "0.25.0", warnings)
    assert engine_process.start_engine(None, VllmLoadPlan(environment=environment), patches, LoadLog()) == "spawn"
    assert len(warnings) == (settings == {"start_method": "fork"})


def test_one_line_of_a_validation_error() -> None:
    text = "1 validation error for X\n  Value error, heads (4) must be divisible [type=value_error, input=...]\n  More"
    assert extract_reason(text) == "heads (4) must be divisible"
    assert extract_reason("") == ""
    assert extract_reason("First. " + "Long " * 60) == "First"


class EngineDeadError(Exception):
    pass


class VLLMValidationError(Exception):
    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter

    def __str__(self) -> str:
        return f"{super().__str__()} (parameter={self.parameter})"


class EngineGenerateError(Exception):
    pass


def test_request_errors_are_classified() -> None:
    assert isinstance(to_request_error(EngineDeadError()), WorkerDied)
    wrong = to_request_error(VLLMValidationError("out of vocabulary", "logit_bias"))
    assert isinstance(wrong, InvalidRequest)
    assert (wrong.message, wrong.param) == ("out of vocabulary", "logit_bias")
    assert isinstance(to_request_error(ValueError("bad")), InvalidRequest)
    assert isinstance(to_request_error(RuntimeError("bad")), EngineFailed)
    wrapped = EngineGenerateError()
    wrapped.__cause__ = ValueError("bad")
    assert isinstance(to_request_error(wrapped), InvalidRequest)
    ours = InvalidRequest("ours")
    assert to_request_error(ours) is ours


@pytest.mark.parametrize(
    ("text", "param", "reason"),
    [
        (
            "The provided JSON schema contains features not supported by xgrammar.",
            "guided_json",
            "not supported by xgrammar",
        ),
        (
            "Failed to transform json schema into a grammar: [12:17:11] /project/cpp/json_schema_converter.cc:4950: Cannot find field 0",
            "guided_json",
            "into a grammar: Cannot find field 0",
        ),
        ("Failed to transform regex into a grammar: [01:02:03] /x/regex.cc:7: no", "guided_regex", "grammar: no"),
        ("Failed to transform choices into a grammar: no", "guided_choice", "no"),
        ("Invalid grammar specification.", "guided_grammar", "Invalid grammar"),
    ],
)
def test_a_constraint_that_vllm_rejects_is_named(text: str, param: str, reason: str) -> None:
    error = to_request_error(ValueError(text))
    assert isinstance(error, InvalidRequest) and error.param == param
    assert reason in error.message and "/" not in error.message


@pytest.mark.parametrize(
    ("given", "chosen"), [("auto", "xgrammar"), ("guidance", "guidance"), ("xgrammar", "xgrammar")]
)
def test_the_first_request_does_not_choose_the_constraint_library(given: str, chosen: str) -> None:
    config = SimpleNamespace(backend=given)
    engine_process.choose_constraint_library(config)
    assert config.backend == chosen


def test_a_second_thread_forbids_forking() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        assert forked_start.choose_start_method("auto") == "spawn"
        assert forked_start.choose_start_method("fork") == "fork"
    finally:
        go.set()
        thread.join()


def test_an_error_in_a_forked_process_is_collected() -> None:
    notes = LoadLog()
    assert notes.find_first_error() is None
    with notes.capture():
        child = os.fork()
        if child == 0:
            try:
                raise MemoryError("too big")
            except MemoryError:
                logging.getLogger("some.library").exception("failed")
            os._exit(0)
        os.waitpid(child, 0)
    assert notes.find_first_error() == ("MemoryError", "too big")
    with notes.capture():
        pass
    assert notes.find_first_error() is None


def test_a_log_that_is_off_collects_nothing() -> None:
    notes = LoadLog(enabled=False)
    with notes.capture():
        try:
            raise MemoryError("too big")
        except MemoryError:
            logging.getLogger("vllm").exception("failed")
    assert notes.find_first_error() is None and notes.read_phases() == {}


class FakeVllm:
    """As much of AsyncLLM as one request without choices needs."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.input_processor = self.output_processor = self.engine_core = self
        self.request_states: dict[str, Any] = {}
        self.step: list[Any] = []

    def _run_output_handler(self) -> None:
        pass

    def process_inputs(self, request_id: str, prompt: Any, params: Any, **_: Any) -> Any:
        return SimpleNamespace(request_id=request_id, sampling_params=params)

    def assign_request_id(self, request: Any) -> None:
        request.request_id += "-abc"

    def add_request(self, request: Any, prompt: Any, parent: Any, index: int, queue: Any) -> None:
        self.calls.append(("register", request.request_id, index, queue))

    async def add_request_async(self, request: Any) -> None:
        self.calls.append(("send", request.request_id))

    async def get_output_async(self) -> Any:
        return SimpleNamespace(outputs=self.step)

    def process_outputs(self, engine_core_outputs: list[Any]) -> Any:
        names = [output.request_id for output in engine_core_outputs]
        self.calls.append(("process", *names))
        return SimpleNamespace(reqs_to_abort=[name for name in names if name.endswith("!")])

    async def abort(self, request_id: str, internal: bool = False) -> None:
        self.calls.append(("abort", request_id, internal))


def test_step_driver_registers_sends_flushes_once_per_step_and_aborts_by_vllms_id() -> None:
    llm = FakeVllm()
    runner = step_outputs.StepDriver(llm, ("generate",), lambda ends_step: llm.calls.append(("flush", ends_step)))
    stream: Any = SimpleNamespace(number=5, vllm_request_id=None, continued=None)

    async def all_of_it() -> None:
        await runner.abort(stream)  # not prepared yet: nothing to abort
        request = runner.prepare(stream, [1], SimpleNamespace(n=1), None)
        await runner.add(stream, request)
        llm.process_outputs([SimpleNamespace(request_id=name) for name in "ab"])
        await runner.abort(stream)

    asyncio.run(all_of_it())
    assert llm.calls == [
        ("register", "5-abc", 0, stream),
        ("send", "5-abc"),
        ("process", "a", "b"),
        ("flush", True),
        ("abort", "5-abc", True),
    ]


def test_first_tokens_are_sent_before_all_others() -> None:
    llm = FakeVllm()
    step_outputs.StepDriver(llm, ("generate",), lambda ends_step: llm.calls.append(("flush", ends_step)))
    for name, started in (("old", True), ("older!", True), ("new!", False), ("newer", False)):
        stream = RequestStream(1, SimpleNamespace(), {}, lambda *_: None, None)  # type: ignore[arg-type]
        stream.started = started
        llm.request_states[name] = SimpleNamespace(queue=stream)
    llm.step = [SimpleNamespace(request_id=name) for name in ("old", "gone", "older!", "new!", "newer")]

    async def one_step() -> list[str]:
        step = await llm.get_output_async()
        return list(llm.process_outputs(step.outputs).reqs_to_abort)

    assert asyncio.run(one_step()) == ["new!", "older!"]
    assert llm.calls == [
        ("process", "new!", "newer"), ("flush", False), ("process", "old", "gone", "older!"), ("flush", True),
    ]  # fmt: skip


class ParentOfThree:
    """As `vllm.v1.engine.parallel_sampling.ParentRequest`."""

    def __init__(self, request: Any) -> None:
        self.request = request

    def get_child_info(self, index: int) -> tuple[str, Any]:
        return f"{index}_{self.request.request_id}", self.request.sampling_params


def test_a_cancel_between_choices_leaves_none_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules,
        "vllm.v1.engine.parallel_sampling",
        SimpleNamespace(ParentRequest=ParentOfThree),  # type: ignore[arg-type]
    )
    live: dict[int, Any] = {}

    class CancelledMeanwhile(FakeVllm):
        async def add_request_async(self, request: Any) -> None:
            await super().add_request_async(request)
            if request.request_id.startswith("1_"):
                live.clear()

    llm = CancelledMeanwhile()
    runner = step_outputs.StepDriver(llm, ("generate",), lambda: None)
    stream = live[5] = RequestStream(5, SimpleNamespace(), live, lambda *_: None, None)  # type: ignore[arg-type]
    request = runner.prepare(stream, [1], SimpleNamespace(n=3), None)
    asyncio.run(runner.add(stream, request))
    assert [call[:2] for call in llm.calls if call[0] != "register"] == [
        ("send", "0_5-abc"),
        ("send", "1_5-abc"),
        ("abort", "5-abc"),
    ]


def test_one_cpu_per_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, siblings in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(cpu_cores, "_CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert cpu_cores.list_physical_cores() == [0, 1]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "pinned_use_cuda_host_register:True,pinned_num_register_threads:8"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "theirs"}, "theirs"),
        ({"PYTORCH_ALLOC_CONF": "theirs"}, None),
    ],
)
def test_sleep_memory_is_pinned_by_threads_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], found: str | None
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    library.set_environment()
    assert os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == found
