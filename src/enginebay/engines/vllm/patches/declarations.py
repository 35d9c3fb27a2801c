"""What each patch needs of vLLM, as data. `compatibility.py` checks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from enginebay.contract import Patch

FIRST_TESTED, LAST_TESTED = "0.26", "0.32"


@dataclass(frozen=True, slots=True)
class VllmPatch:
    """One patch. `needs` maps "module:name" to parameters of a function, attributes of a class, or keys of a mapping."""

    name: str
    summary: str
    setting: str
    fallback: str  # what happens without it
    needs: Mapping[str, tuple[str, ...]]
    versions: tuple[str, str] = (FIRST_TESTED, LAST_TESTED)
    reads_only: bool = False
    off: str = "off"  # the setting's value that turns it off

    def declare(self) -> Patch:
        return Patch(self.name, self.summary, self.versions, self.setting)


_LLM = "vllm.v1.engine.async_llm:AsyncLLM"
_INPUTS = "vllm.v1.engine.input_processor:InputProcessor"
_OUTPUTS = "vllm.v1.engine.output_processor:OutputProcessor"
_CLIENT = "vllm.v1.engine.core_client:AsyncMPClient"
_GRAPHS = "vllm.v1.worker.gpu.cudagraph_utils"
_RUNNER = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
_STEP = "vllm.v1.core.sched.output"
_DETOKENIZER = "vllm.v1.engine.detokenizer:IncrementalDetokenizer"

STEP_OUTPUTS = VllmPatch(
    name="step_outputs",
    summary="Collect all tokens of a step at once, and send first tokens before the others",
    setting="stepwise",
    fallback="using generate(), which is slower",
    needs={
        _LLM: ("input_processor", "output_processor", "engine_core"),
        f"{_LLM}.abort": ("request_id", "internal"),
        f"{_LLM}._run_output_handler": (),
        f"{_INPUTS}.process_inputs": ("request_id", "prompt", "params", "supported_tasks", "lora_request"),
        f"{_INPUTS}.assign_request_id": ("request",),
        _OUTPUTS: ("request_states",),
        f"{_OUTPUTS}.add_request": ("request", "prompt", "parent_req", "request_index", "queue"),
        f"{_OUTPUTS}.process_outputs": ("engine_core_outputs",),
        f"{_CLIENT}.get_output_async": (),
        f"{_CLIENT}.add_request_async": ("request",),
        "vllm.v1.engine.parallel_sampling:ParentRequest.get_child_info": ("index",),
    },
)
MIXED_GRAPHS = VllmPatch(
    name="mixed_graphs",
    summary="On a GPU, run each step that mixes prefill and decode as one CUDA graph",
    setting="mixed_graphs",
    fallback="steps with prompts run vLLM's default way, which is slower",
    versions=("0.26", "0.26"),
    needs={
        f"{_GRAPHS}:CudaGraphManager": ("graphs", "_candidates", "_capture_descs", "_graphs_captured", "max_num_reqs"),
        f"{_GRAPHS}:CudaGraphManager._init_candidates": ("self",),
        f"{_GRAPHS}:CudaGraphManager.capture": ("self", "create_forward_fn"),
        f"{_GRAPHS}:InputBatch.make_dummy": ("num_reqs", "num_tokens"),
        f"{_GRAPHS}:CUDAGraphMode.FULL": (),
        _RUNNER: (
            "cudagraph_manager", "execute_model_state", "is_pooling_model", "kv_connector", "max_model_len",
            "max_num_reqs", "vocab_size", "dtype",
        ),
        f"{_RUNNER}.capture_model": ("self",),
        f"{_RUNNER}.execute_model": ("scheduler_output",),
        f"{_STEP}:SchedulerOutput.make_empty": (),
        f"{_STEP}:NewRequestData": (
            "req_id", "prompt_token_ids", "prefill_token_ids", "mm_features", "sampling_params", "pooling_params",
            "block_ids", "num_computed_tokens", "lora_request",
        ),
    },
)  # fmt: skip
SCHEDULER_STATS = VllmPatch(
    name="scheduler_stats",
    summary="Read KV cache usage and waiting requests from vLLM's scheduler after each step",
    setting="scheduler_stats",
    fallback="KV cache usage and waiting requests are unknown",
    needs={
        _LLM: ("log_stats", "logger_manager", "output_processor"),
        _OUTPUTS: ("log_stats", "lora_states"),
        f"{_OUTPUTS}.update_scheduler_stats": ("scheduler_stats",),
        "vllm.v1.metrics.stats:SchedulerStats": ("kv_cache_usage", "num_waiting_reqs", "num_skipped_waiting_reqs"),
    },
    reads_only=True,
)
LOAD_LOG = VllmPatch(
    name="load_log",
    summary="Read load phases and the first error of any process from vLLM's log lines",
    setting="load_log",
    fallback="load phases are unknown, and a failed load reports vLLM's own message",
    needs={"vllm.logger:init_logger": ("name",)},
    reads_only=True,
)
OUTPUT_HANDLER = VllmPatch(
    name="output_handler",
    summary="Notice at once when vLLM's engine process dies",
    setting="output_handler",
    fallback="the death of vLLM's engine process is noticed by the next request",
    needs={_LLM: ("output_handler",), f"{_LLM}._run_output_handler": ()},
    reads_only=True,
)
FORKED_START = VllmPatch(
    name="forked_start",
    summary="Fork vLLM's engine process from one that has imported all it needs",
    setting="start_method",
    fallback="vLLM's engine process is spawned, which is slower",
    needs={"vllm.envs:environment_variables": ("VLLM_WORKER_MULTIPROC_METHOD",)},
    reads_only=True,
    off="spawn",
)
CONTINUED_REQUESTS = VllmPatch(
    name="continued_requests",
    summary="Continue the output of a worker that died as vLLM resumes a preempted request",
    setting="continued_requests",
    fallback="streams with a constraint or penalties end in an error when their worker dies",
    versions=("0.32", "0.32"),
    needs={
        "vllm.v1.request:Request": ("_output_token_ids", "num_computed_tokens"),
        "vllm.v1.request:Request.from_engine_core_request": ("request", "block_hasher"),
        "vllm.v1.request:Request.append_output_token_ids": ("token_ids",),
        "vllm.v1.structured_output:StructuredOutputManager._create_grammar": ("request",),
        "vllm.v1.worker.gpu_input_batch:CachedRequestState": ("output_token_ids", "sampling_params", "__post_init__"),
        "vllm:SamplingParams": ("extra_args", "eos_token_id"),
        f"{_DETOKENIZER}.from_new_request": ("tokenizer", "request"),
        f"{_DETOKENIZER}.update": ("new_token_ids", "stop_terminated"),
        f"{_DETOKENIZER}.get_next_output_text": ("finished", "delta"),
        _OUTPUTS: ("request_states", "tokenizer"),
        "vllm.v1.engine.output_processor:RequestState": ("detokenizer", "sent_tokens_offset"),
    },
)
PATCHES = (STEP_OUTPUTS, CONTINUED_REQUESTS, MIXED_GRAPHS, SCHEDULER_STATS, LOAD_LOG, OUTPUT_HANDLER, FORKED_START)
