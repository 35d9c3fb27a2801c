"""Let a request continue an output that another worker generated.

vLLM then treats it like one that it resumes after preemption: the ids are output, and are computed again with the prompt. So
penalties, min_tokens, max_tokens and stop tokens follow, and a grammar accepts the ids once it is compiled. The ids travel in
`extra_args` of the sampling parameters. The patch reaches the engine process by fork.

Without it the ids are sent as a part of the prompt. A grammar and penalties on the output cannot follow then.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

from enginebay.contract import FinishReason, Sampling
from enginebay.engines.vllm.sampling import build_params
from enginebay.errors import Unsupported

_IDS = "enginebay_generated"  # in `extra_args`
_PATCHED_MARK = "_enginebay_continues"  # on vLLM's classes

OutputEnd = tuple[FinishReason, str | int | None]  # and the stop string or token that matched


def install() -> None:
    """Patch vLLM's classes for engine processes forked from now on."""
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    if hasattr(Request, _PATCHED_MARK):
        return
    setattr(Request, _PATCHED_MARK, True)
    _append_ids_to_new_requests(Request)
    _advance_new_grammars(StructuredOutputManager)
    _append_ids_in_model_runner(CachedRequestState)


def _read_ids(params: Any) -> list[int]:
    return list(((params.extra_args if params is not None else None) or {}).get(_IDS, ()))


def _append_ids_to_new_requests(request_type: Any) -> None:
    create = request_type.from_engine_core_request.__func__

    def create_continued(cls: Any, request: Any, block_hasher: Any) -> Any:
        created = create(cls, request, block_hasher)
        ids = _read_ids(request.sampling_params)
        if ids:
            created.append_output_token_ids(ids)
        return created

    request_type.from_engine_core_request = classmethod(create_continued)


def _advance_new_grammars(manager_type: Any) -> None:
    create = manager_type._create_grammar

    def create_advanced(self: Any, request: Any) -> Any:
        grammar = create(self, request)
        ids = _read_ids(request.sampling_params)
        if ids and not grammar.accept_tokens(request.request_id, ids):
            raise ValueError("the output to continue does not satisfy the constraint")
        return grammar

    manager_type._create_grammar = create_advanced


def _append_ids_in_model_runner(state_type: Any) -> None:
    """Append the ids where vLLM keeps only the prompt of a new request: in its first model runner."""
    initialize = state_type.__post_init__

    def initialize_continued(self: Any) -> None:
        initialize(self)
        if not self.output_token_ids:
            self.output_token_ids.extend(_read_ids(self.sampling_params))

    state_type.__post_init__ = initialize_continued


@dataclass(frozen=True, slots=True)
class ContinuedOutput:
    """What another worker generated and sent, and the request as it got it."""

    ids: tuple[int, ...]
    prompt: list[int]
    params: Any  # vLLM's SamplingParams, of the whole output

    def find_end(self, request: Any) -> OutputEnd | None:
        """Return how the output ended if only its end was not sent; None if it goes on."""
        params, last = request.sampling_params, self.ids[-1]
        if last == params.eos_token_id:
            return FinishReason.STOP, None
        if last in (params.stop_token_ids or ()):
            return FinishReason.STOP, last
        return (FinishReason.LENGTH, None) if len(self.ids) >= self.params.max_tokens else None

    def restore_detokenizer(self, tokenizer: Any, request: Any) -> tuple[Any, OutputEnd | None]:
        """Return a detokenizer after these ids, whose text was sent, and the end if a stop string matches."""
        from vllm.v1.engine.detokenizer import IncrementalDetokenizer

        original = copy(request)
        original.prompt_token_ids, original.sampling_params = self.prompt, self.params
        detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, original)
        stop = detokenizer.update(list(self.ids), False)
        detokenizer.get_next_output_text(False, True)
        return detokenizer, None if stop is None else (FinishReason.STOP, stop)


def plan_continuation(
    output: ContinuedOutput, sampling: Sampling, context: int, patched: bool
) -> tuple[list[int], Any]:
    """Return the prompt and the parameters that vLLM gets. Raises `Unsupported` for what needs the patch."""
    params = build_params(sampling, len(output.prompt), context)
    if patched:
        params.extra_args = {_IDS: list(output.ids)}
        return output.prompt, params
    if sampling.guided is not None or sampling.presence_penalty or sampling.frequency_penalty:
        raise Unsupported(
            "this vLLM cannot continue an output with a constraint or with penalties on the output",
            "install a version to which the patch continued_requests applies",
        )
    params.max_tokens = max(1, params.max_tokens - len(output.ids))
    params.min_tokens = max(0, params.min_tokens - len(output.ids))
    return [*output.prompt, *output.ids], params
