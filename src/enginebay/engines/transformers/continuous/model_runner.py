"""One forward pass of continuous batching, the same on every rank."""

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
from enginebay.engines.transformers.continuous.cuda_graphs import DecodeGraphs, GraphRecorder
from enginebay.engines.transformers.continuous.kv_cache import BucketedKVCache
from enginebay.engines.transformers.continuous.kv_cache_budget import KVCacheBudget
from enginebay.engines.transformers.continuous.logit_distance import compute_logit_distance
from enginebay.engines.transformers.continuous.scheduler import Release, Reserve, ScheduledStep, Segment
from enginebay.engines.transformers.continuous.step_layout import build_layout
from enginebay.engines.transformers.loading.model_loader import is_out_of_memory
from enginebay.util.text_format import summarize_error

_log = logging.getLogger(__name__)
_SUPPORTED_LAYER_TYPES = {"full_attention", "sliding_attention"}
# What ours may be from the library's own logits: so many times what two attentions of the library's are from each other, which is
# rounding alone (seen: 0.3 to 1.4 times, in three formats, with 2 to 126 layers, on processors and on a GPU).
_ROUNDING_FACTOR = 4.0
_MIN_TOLERANCE, _MAX_TOLERANCE = 0.001, 0.5  # logits that have nothing in common are 1.4 apart
# Tokens of a row. A kernel of our own reads in blocks, and splits what is on a long shelf.
_TRIAL_LENGTHS, _KERNEL_TRIAL_LENGTHS = (9, 7), (600, 150, 7)
_DEFAULT_TOLERANCE = 0.12  # where the library has no other attention that works


class ModelRunner:
    """Runs steps on a model whose attention is replaced, for the time of a step, by one that knows the shelves."""

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
        self._batches_prefills = device.type == "cuda"  # prompts of similar length: fewer launches, a little padding
        self.is_async = device.type == "cuda"  # a step has only begun when `run` returns
        self.cache = BucketedKVCache(context_length)
        self.bytes_per_token = 0  # of keys and values; known once `obstacle` has tried
        if device.type == "cuda":
            # cuDNN's attention is preferred on some devices, and makes a plan for each new shape: here most are new.
            torch.backends.cuda.enable_cudnn_sdp(False)

    @property
    def has_graphs(self) -> bool:
        """Whether steps that only decode are recorded and replayed."""
        return self._graphs is not None and self._graphs.disabled_reason is None

    @property
    def has_kernel(self) -> bool:
        """Whether rows that decode are attended by a kernel of our own."""
        return self._attention.kernel is not None

    @property
    def fallback_reason(self) -> str | None:
        return self._attention.fallback_reason

    @property
    def graphs_disabled_reason(self) -> str | None:
        return self._graphs.disabled_reason if self._graphs is not None else None

    def enable_graphs(self, recorder: GraphRecorder, budget: KVCacheBudget) -> None:
        """Record steps that only decode, from now on."""
        self.cache.budget = budget
        self._batches_prefills = True
        self._graphs = DecodeGraphs(
            recorder, self._compute_decode_logits, budget.max_rows, self._device, reads_by_length=self.has_kernel
        )

    def invalidate_graphs(self) -> None:
        """The model is about to change."""
        if self._graphs is not None:
            self._graphs.invalidate()

    def prepare_to_sleep(self) -> None:
        """Nothing runs, and the weights are about to leave: give back what is kept for speed alone."""
        self.invalidate_graphs()
        self.cache.free_unused()

    def reset(self) -> None:
        """A step failed, wherever it was: no row of it is left."""
        self.invalidate_graphs()
        self.cache.clear()

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def run(self, step: ScheduledStep) -> tuple[list[Segment], Any]:
        """The segments that want a token, in order, and their logits [segments, vocabulary] in float32.

        The logits are good until the next step.
        """
        self.cache.apply(step.operations)
        if not step.segments:
            return [], None
        layout = build_layout(step.segments, self.cache, self._batches_prefills)
        self._adapters.activate(step.lora)
        decodes = (
            not layout.prefill_batches
            and not layout.single_prefills
            and all(segment.needs_logits for segment in layout.segments)
        )
        if self._graphs is not None and decodes and step.lora is None:
            logits = self._graphs.run(layout.decode_groups)
            if logits is not None:
                return layout.segments, logits
        tokens = [token for segment in layout.segments for token in segment.tokens]
        positions = [p for s in layout.segments for p in range(s.start, s.start + len(s.tokens))]
        wanted, ends = _find_logit_positions(layout.segments)
        logits = self._compute_logits(
            AttentionMetadata.from_layout(layout, self._device),
            torch.tensor([tokens], device=self._device),
            torch.tensor([positions], device=self._device),
            torch.tensor(ends, dtype=torch.long, device=self._device),
        )
        return wanted, logits.float()

    def _compute_logits(self, work: AttentionMetadata, tokens: Any, positions: Any, kept: Any) -> Any:
        self._attention.metadata = work
        self._config._attn_implementation = ATTENTION_NAME
        try:
            output = self._forward(
                input_ids=tokens,
                position_ids=positions,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=kept,
            )
        finally:
            self._config._attn_implementation = self._library_attention
            self._attention.metadata = None
        return output.logits[0]

    def _compute_decode_logits(self, rows: DecodeBatch, tokens: Any, positions: Any) -> Any:
        # All of them. A compiled model has met a tensor at load, and would be compiled again for a number.
        kept = rows.rows if self._compiled else 0
        return self._compute_logits(AttentionMetadata([rows]), tokens[None], positions[None], kept)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def find_obstacle(self) -> str | None:
        """Why this model cannot be batched continuously, found by trying; `None` when it can."""
        reason = find_structural_obstacle(self._model, self._config)
        if reason is not None:
            return reason
        try:
            reason = self._try_steps()
        except Exception as error:  # memory ran out; without a kernel the trial is a shorter one
            if self._attention.kernel is None:
                raise
            reason = summarize_error(error)
        if reason is None or self._attention.kernel is None:
            return reason
        self._attention.disable_kernel(reason)
        without = self._try_steps()
        if without is None:
            _log.warning("the library's attention is used, not our own: %s", reason)
        return without

    def _try_steps(self) -> str | None:
        try:
            return self._compare_with_library()
        except Exception as error:  # a model's, the library's or a compiler's: there may be another way
            if is_out_of_memory(error):
                raise
            return f"its attention cannot be replaced ({summarize_error(error)})"
        finally:
            self.cache.apply(
                [Release(-number) for number in range(1, 1 + max(len(_TRIAL_LENGTHS), len(_KERNEL_TRIAL_LENGTHS)))]
            )

    def _compare_with_library(self) -> str | None:
        """Rows of different length, each computed in two steps, must give the logits of a plain forward pass."""
        lengths = [
            min(self._context_length, length)
            for length in (_KERNEL_TRIAL_LENGTHS if self.has_kernel else _TRIAL_LENGTHS)
        ]
        texts = {
            -number: [((2 * number + 3) * i + number) % self._config.vocab_size for i in range(length)]
            for number, length in enumerate(lengths, start=1)
        }
        first = [Segment(key, 0, text[:-1], False) for key, text in texts.items()]
        second = [Segment(key, len(text) - 1, text[-1:], True) for key, text in texts.items()]
        self.run(ScheduledStep(None, [Reserve(key, len(text) - 1) for key, text in texts.items()], first))
        wanted, logits = self.run(ScheduledStep(None, [Reserve(key, len(text)) for key, text in texts.items()], second))
        self.bytes_per_token = self.cache.bytes_per_token(-1)
        rows = [texts[segment.sequence_id] for segment in wanted]
        plain = self._compute_reference_logits(rows)
        if compute_logit_distance(logits, plain.to(logits.device)) > self._compute_tolerance(rows, plain):
            return "its attention is not plain: results differ from the library's own"
        return None

    def _compute_tolerance(self, rows: list[list[int]], plain: Any) -> float:
        """How far apart logits may be and still be the same but for the order of sums, in this model and its number format."""
        self._config._attn_implementation = "sdpa" if self._library_attention == "eager" else "eager"
        try:
            rounding = compute_logit_distance(self._compute_reference_logits(rows), plain)
        except Exception:  # a model may have one attention only
            rounding = math.inf
        finally:
            self._config._attn_implementation = self._library_attention
        return (
            min(_MAX_TOLERANCE, max(_MIN_TOLERANCE, _ROUNDING_FACTOR * rounding))
            if math.isfinite(rounding)
            else _DEFAULT_TOLERANCE
        )

    def _compute_reference_logits(self, rows: list[list[int]]) -> Any:
        """After each row's last token, without our attention.

        What is padded comes after all that is looked at, so it changes nothing there.
        """
        longest = max(map(len, rows))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self._device)
        ends = torch.tensor([len(row) - 1 for row in rows])  # the last layer's device may be another
        logits = self._model(input_ids=padded, logits_to_keep=ends).logits  # [rows, rows, vocabulary]
        return torch.stack([logits[number, number] for number in range(len(rows))]).float()


def find_structural_obstacle(model: Any, config: Any) -> str | None:
    """What the model's class and config say against continuous batching."""
    if getattr(model.config, "is_encoder_decoder", False):
        return "it has an encoder"
    if not getattr(model, "_supports_attention_backend", False):
        return f"{type(model).__name__} does not let its attention be replaced"
    if getattr(model, "_is_stateful", False) or getattr(config, "num_kv_shared_layers", 0):
        return "its cache is not plain keys and values"
    other = set(getattr(config, "layer_types", None) or ()) - _SUPPORTED_LAYER_TYPES
    return f"it has layers of type {', '.join(sorted(other))}" if other else None


def _find_logit_positions(order: list[Segment]) -> tuple[list[Segment], list[int]]:
    """Segments that want a token, and the place of each one's last token in the step."""
    wanted, ends, at = [], [], 0
    for segment in order:
        at += len(segment.tokens)
        if segment.needs_logits:
            wanted.append(segment)
            ends.append(at - 1)
    return wanted, ends
