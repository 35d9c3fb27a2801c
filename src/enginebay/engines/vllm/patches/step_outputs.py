"""Fast output path: handles all outputs of a step together, without a task and a queue per request.

Without it `async_llm.py` does the same through the public interface.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from enginebay.engines.vllm.patches.continued_requests import ContinuedOutput
from enginebay.engines.vllm.request_stream import RequestStream


class StepDriver:
    """Sends requests to vLLM's engine core and flushes once after each step. Runs in the loop's thread."""

    def __init__(self, llm: Any, tasks: tuple[str, ...], flush: Callable[[bool], None]) -> None:
        self._llm = llm
        self._tasks = tasks
        self._sort_first_tokens_first()
        self._flush_after_each_step(flush)
        llm._run_output_handler()  # vLLM starts it in `generate`, which nobody calls

    def prepare(self, stream: RequestStream, prompt: Any, params: Any, lora: Any) -> Any:
        """Validate and convert the request. May compile a grammar, so another thread may call it."""
        inputs = self._llm.input_processor
        request = inputs.process_inputs(
            str(stream.number), prompt, params, supported_tasks=self._tasks, lora_request=lora
        )
        inputs.assign_request_id(request)
        stream.vllm_request_id = request.request_id
        return request

    async def add(self, stream: RequestStream, request: Any) -> None:
        params = request.sampling_params
        if stream.continued is not None:
            await self._add_continued(request, stream, stream.continued)
            return
        if params.n == 1:
            await self._add_choice(request, None, 0, stream)
            return
        from vllm.v1.engine.parallel_sampling import ParentRequest

        parent = ParentRequest(request)
        children = [copy(request) for _ in range(params.n)]
        for index, child in enumerate(children):
            child.request_id, child.sampling_params = parent.get_child_info(index)
        for index, child in enumerate(children):
            await self._add_choice(child, parent, index, stream)
            if await self._abort_if_cancelled(stream):
                return  # a choice sent now would revive the parent and run to completion

    async def abort(self, stream: RequestStream) -> None:
        if stream.vllm_request_id is not None:
            # With vLLM's own id it also drops the parent request of several choices.
            await self._llm.abort(stream.vllm_request_id, internal=True)

    async def _add_choice(self, request: Any, parent: Any, index: int, stream: RequestStream) -> None:
        self._llm.output_processor.add_request(request, None, parent, index, stream)
        await self._llm.engine_core.add_request_async(request)

    async def _add_continued(self, request: Any, stream: RequestStream, output: ContinuedOutput) -> None:
        processor = self._llm.output_processor
        detokenizer, matched = output.restore_detokenizer(processor.tokenizer, request)
        end = matched or output.find_end(request)
        if end is not None:
            stream.finish(*end)
            return
        processor.add_request(request, None, None, 0, stream)
        state = processor.request_states[request.request_id]
        state.detokenizer, state.sent_tokens_offset = detokenizer, detokenizer.num_output_tokens()
        await self._llm.engine_core.add_request_async(request)

    async def _abort_if_cancelled(self, stream: RequestStream) -> bool:
        """Abort again if the request was cancelled while a choice was sent: the first abort may have missed that choice."""
        if stream.is_active:
            return False
        await self.abort(stream)
        return True

    def _sort_first_tokens_first(self) -> None:
        """Sort first tokens to the front of a step. vLLM puts new requests last, so they would wait for all others."""
        core, states = self._llm.engine_core, self._llm.output_processor.request_states
        get_output = core.get_output_async

        async def get_output_sorted() -> Any:
            step = await get_output()
            step.outputs.sort(key=lambda output: _has_started(states, output))  # stable
            return step

        core.get_output_async = get_output_sorted

    def _flush_after_each_step(self, flush: Callable[[bool], None]) -> None:
        """Flush after each step, and also in between, after the first tokens of new requests."""
        processor = self._llm.output_processor
        process, states = processor.process_outputs, processor.request_states

        def process_and_flush(outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
            new = sum(not _has_started(states, output) for output in outputs)
            if not 0 < new < len(outputs):
                processed = process(outputs, *args, **kwargs)
                flush(True)
                return processed
            first = process(outputs[:new], *args, **kwargs)
            flush(False)  # the step continues
            processed = process(outputs[new:], *args, **kwargs)
            flush(True)
            processed.reqs_to_abort[:0] = first.reqs_to_abort
            return processed

        processor.process_outputs = process_and_flush


def _has_started(states: Any, output: Any) -> bool:
    """Return whether the request has sent output, or is gone and never will."""
    state = states.get(output.request_id)
    return state is None or not isinstance(state.queue, RequestStream) or state.queue.started
