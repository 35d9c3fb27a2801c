"""The forward pass of continuous batching, the same on every rank."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from transformers import AttentionInterface

from enginebay.engines.transformers.adapters import PeftAdapters
from enginebay.engines.transformers.continuous.bucketed_attention import (
    ATTENTION_NAME,
    AttentionMetadata,
    BucketedAttention,
    DecodeBatch,
    DecodeKernel,
)
from enginebay.engines.transformers.continuous.cuda_graphs import DecodeGraphs, GraphRecorder, compute_logit_distance
from enginebay.engines.transformers.continuous.kv_cache import BucketedKVCache
from enginebay.engines.transformers.continuous.scheduler import KVCacheBudget, Release, Reserve, ScheduledStep, Segment
from enginebay.engines.transformers.continuous.step_layout import build_layout
from enginebay.engines.transformers.loading.model_loader import is_out_of_memory
from enginebay.util.text_format import summarize_error

_log = logging.getLogger(__name__)
_SUPPORTED_LAYER_TYPES = {"full_attention", "sliding_attention"}
# Tolerated distance from the library's logits, in multiples of the distance between two of the library's own attention
# implementations, which is pure rounding (measured: 0.3 to 1.4 times, in three dtypes, with 2 to 126 layers, on CPUs and a GPU).
_ROUNDING_FACTOR = 4.0
_MIN_TOLERANCE, _MAX_TOLERANCE = 0.001, 0.5  # unrelated logits are 1.4 apart
# Row lengths of the trial. The decode kernel reads in blocks, and splits long rows.
_TRIAL_LENGTHS, _KERNEL_TRIAL_LENGTHS = (9, 7), (600, 150, 7)
_DEFAULT_TOLERANCE = 0.12  # if the library has no second working attention


class ModelRunner:
    """Runs steps on a model, replacing its attention with `BucketedAttention` during each step."""

    def __init__(
        self,
        model: Any,
        adapters: PeftAdapters,
        context_length: int,
        device: Any,
        compile_mode: str | None,
        kernel: DecodeKernel | None = None,
        fallback_reason: str | None = None,
    ) -> None:
        self._model = model
        self._adapters = adapters
        self._device = device
        self._context_length = context_length
        self._config = model.config.get_text_config()
        self._library_attention = self._config._attn_implementation
        self._attention = BucketedAttention(self._library_attention == "eager", kernel, fallback_reason)
        AttentionInterface.register(ATTENTION_NAME, self._attention)
        self._compiled = compile_mode is not None
        self._forward = torch.compile(model, mode=compile_mode, dynamic=True) if compile_mode else model
        self._graphs: DecodeGraphs | None = None
        self._batches_prefills = device.type == "cuda"  # similar lengths: fewer launches, a little padding
        self.is_async = device.type == "cuda"  # `run` returns before the step completes
        self.cache = BucketedKVCache(context_length)
        self.bytes_per_token = 0  # of the KV cache; set by `find_obstacle`
        if device.type == "cuda":
            # Some devices prefer cuDNN attention, which builds a plan per shape: here most shapes are new.
            torch.backends.cuda.enable_cudnn_sdp(False)

    @property
    def has_graphs(self) -> bool:
        """Whether decode steps use CUDA graphs."""
        return self._graphs is not None and self._graphs.disabled_reason is None

    @property
    def has_kernel(self) -> bool:
        """Whether decoding rows use the custom kernel."""
        return self._attention.kernel is not None

    @property
    def fallback_reason(self) -> str | None:
        return self._attention.fallback_reason

    @property
    def graphs_disabled_reason(self) -> str | None:
        return self._graphs.disabled_reason if self._graphs is not None else None

    def enable_graphs(self, recorder: GraphRecorder, budget: KVCacheBudget) -> None:
        """Use CUDA graphs for decode steps."""
        self.cache.budget = budget
        self._batches_prefills = True
        self._graphs = DecodeGraphs(
            recorder, self._compute_decode_logits, budget.max_rows, self._device, reads_by_length=self.has_kernel
        )

    def invalidate_graphs(self) -> None:
        """Discard all graphs: the model is about to change."""
        if self._graphs is not None:
            self._graphs.invalidate()

    def prepare_to_sleep(self) -> None:
        """Free caches before the weights are offloaded. Nothing is running."""
        self.invalidate_graphs()
        self.cache.free_unused()

    def reset(self) -> None:
        """Discard all state after a failed step."""
        self.invalidate_graphs()
        self.cache.clear()

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def run(self, step: ScheduledStep) -> tuple[list[Segment], Any]:
        """Return the segments that need a token, in order, and their logits [segments, vocabulary] in float32.

        The logits are valid until the next step.
        """
        self.cache.apply(step.operations)
        if not step.segments:
            return [], None
        layout = build_layout(step.segments, self.cache, self._batches_prefills)
        self._adapters.activate(step.lora)
        is_decode = (
            not layout.prefill_batches
            and not layout.single_prefills
            and all(segment.needs_logits for segment in layout.segments)
        )
        if self._graphs is not None and is_decode and step.lora is None:
            logits = self._graphs.run(layout.decode_groups)
            if logits is not None:
                return layout.segments, logits
        tokens = [token for segment in layout.segments for token in segment.tokens]
        positions = [
            position
            for segment in layout.segments
            for position in range(segment.start, segment.start + len(segment.tokens))
        ]
        segments, ends = _find_logit_positions(layout.segments)
        logits = self._compute_logits(
            AttentionMetadata.from_layout(layout, self._device),
            torch.tensor([tokens], device=self._device),
            torch.tensor([positions], device=self._device),
            torch.tensor(ends, dtype=torch.long, device=self._device),
        )
        return segments, logits.float()

    def _compute_logits(self, metadata: AttentionMetadata, tokens: Any, positions: Any, logits_to_keep: Any) -> Any:
        self._attention.metadata = metadata
        self._config._attn_implementation = ATTENTION_NAME
        try:
            output = self._forward(
                input_ids=tokens,
                position_ids=positions,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=logits_to_keep,
            )
        finally:
            self._config._attn_implementation = self._library_attention
            self._attention.metadata = None
        return output.logits[0]

    def _compute_decode_logits(self, batch: DecodeBatch, tokens: Any, positions: Any) -> Any:
        # Keep all logits. A compiled model was compiled for a tensor argument; a number would recompile it.
        logits_to_keep = batch.rows if self._compiled else 0
        return self._compute_logits(AttentionMetadata([batch]), tokens[None], positions[None], logits_to_keep)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def find_obstacle(self) -> str | None:
        """Try the model, and return why continuous batching is not possible, or None if it is."""
        reason = find_structural_obstacle(self._model, self._config)
        if reason is not None:
            return reason
        try:
            reason = self._try_steps()
        except Exception as error:  # out of memory; without the kernel the trial is shorter
            if self._attention.kernel is None:
                raise
            reason = summarize_error(error)
        if reason is None or self._attention.kernel is None:
            return reason
        self._attention.disable_kernel(reason)
        obstacle = self._try_steps()
        if obstacle is None:
            _log.warning("falling back to the library's attention: %s", reason)
        return obstacle

    def _try_steps(self) -> str | None:
        try:
            return self._compare_with_library()
        except Exception as error:  # from the model, the library or a compiler: the caller falls back
            if is_out_of_memory(error):
                raise
            return f"its attention cannot be replaced ({summarize_error(error)})"
        finally:
            self.cache.apply(
                [Release(-number) for number in range(1, 1 + max(len(_TRIAL_LENGTHS), len(_KERNEL_TRIAL_LENGTHS)))]
            )

    def _compare_with_library(self) -> str | None:
        """Compare rows of different length, each computed in two steps, with a plain forward pass."""
        lengths = [
            min(self._context_length, length)
            for length in (_KERNEL_TRIAL_LENGTHS if self.has_kernel else _TRIAL_LENGTHS)
        ]
        prompts = {
            -number: [((2 * number + 3) * i + number) % self._config.vocab_size for i in range(length)]
            for number, length in enumerate(lengths, start=1)
        }
        first = [Segment(key, 0, prompt[:-1], False) for key, prompt in prompts.items()]
        second = [Segment(key, len(prompt) - 1, prompt[-1:], True) for key, prompt in prompts.items()]
        self.run(ScheduledStep(None, [Reserve(key, len(prompt) - 1) for key, prompt in prompts.items()], first))
        segments, logits = self.run(
            ScheduledStep(None, [Reserve(key, len(prompt)) for key, prompt in prompts.items()], second)
        )
        self.bytes_per_token = self.cache.bytes_per_token(-1)
        rows = [prompts[segment.sequence_id] for segment in segments]
        reference = self._compute_reference_logits(rows)
        if compute_logit_distance(logits, reference.to(logits.device)) > self._compute_tolerance(rows, reference):
            return "its attention is not standard: results differ from the library's"
        return None

    def _compute_tolerance(self, rows: list[list[int]], reference: Any) -> float:
        """Return the distance that rounding alone explains for this model and dtype."""
        self._config._attn_implementation = "sdpa" if self._library_attention == "eager" else "eager"
        try:
            rounding = compute_logit_distance(self._compute_reference_logits(rows), reference)
        except Exception:  # the model may support one attention only
            rounding = math.inf
        finally:
            self._config._attn_implementation = self._library_attention
        return (
            min(_MAX_TOLERANCE, max(_MIN_TOLERANCE, _ROUNDING_FACTOR * rounding))
            if math.isfinite(rounding)
            else _DEFAULT_TOLERANCE
        )

    def _compute_reference_logits(self, rows: list[list[int]]) -> Any:
        """Return the library's logits after the last token of each row.

        Padding on the right does not affect them: attention is causal.
        """
        longest = max(map(len, rows))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self._device)
        ends = torch.tensor([len(row) - 1 for row in rows])  # on the CPU: the last layer may be on another device
        logits = self._model(input_ids=padded, logits_to_keep=ends).logits  # [rows, rows, vocabulary]
        return torch.stack([logits[row, row] for row in range(len(rows))]).float()


def find_structural_obstacle(model: Any, config: Any) -> str | None:
    """Return why the model's class or config rules out continuous batching, or None."""
    if getattr(model.config, "is_encoder_decoder", False):
        return "the model has an encoder"
    if not getattr(model, "_supports_attention_backend", False):
        return f"{type(model).__name__} does not support custom attention"
    if getattr(model, "_is_stateful", False) or getattr(config, "num_kv_shared_layers", 0):
        return "its cache is not a standard KV cache"
    unsupported = set(getattr(config, "layer_types", None) or ()) - _SUPPORTED_LAYER_TYPES
    return f"the model has layers of type {', '.join(sorted(unsupported))}" if unsupported else None


def _find_logit_positions(order: list[Segment]) -> tuple[list[Segment], list[int]]:
    """Return the segments that need logits, and the index of each one's last token in the step."""
    segments, ends, offset = [], [], 0
    for segment in order:
        offset += len(segment.tokens)
        if segment.needs_logits:
            segments.append(segment)
            ends.append(offset - 1)
    return segments, ends
