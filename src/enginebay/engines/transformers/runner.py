"""One forward pass of continuous batching, the same on every rank."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from transformers import AttentionInterface

from enginebay.engines.transformers.adapters import Adapters
from enginebay.engines.transformers.attention import NAME, Decoding, Kernel, ShelfAttention, Work
from enginebay.engines.transformers.graphs import Recorder, StepGraphs
from enginebay.engines.transformers.layout import lay_out
from enginebay.engines.transformers.loading import out_of_memory
from enginebay.engines.transformers.room import Room
from enginebay.engines.transformers.rounding import apart
from enginebay.engines.transformers.schedule import Release, Reserve, Segment, Step
from enginebay.engines.transformers.shelves import ShelfCache
from enginebay.wording import in_one_line

_log = logging.getLogger(__name__)
_PLAIN_LAYERS = {"full_attention", "sliding_attention"}
# What ours may be from the library's own logits: so many times what two attentions of the library's are from each other, which is
# rounding alone (seen: 0.3 to 1.4 times, in three formats, with 2 to 126 layers, on processors and on a GPU).
_TIMES = 4.0
_LEAST, _MOST = 0.001, 0.5  # logits that have nothing in common are 1.4 apart
# Tokens of a row. A kernel of our own reads in blocks, and splits what is on a long shelf.
_TRIAL, _KERNEL_TRIAL = (9, 7), (600, 150, 7)
_UNKNOWN = 0.12  # where the library has no other attention that works


class Runner:
    """Runs steps on a model whose attention is replaced, for the time of a step, by one that knows the shelves."""

    def __init__(
        self,
        model: Any,
        adapters: Adapters,
        context_length: int,
        device: Any,
        compile_mode: str | None,
        kernel: Kernel | None = None,
        why_no_kernel: str | None = None,
    ) -> None:
        self._model = model
        self._adapters = adapters
        self._device = device
        self._context_length = context_length
        self._config = model.config.get_text_config()
        self._library_attention = self._config._attn_implementation
        self._attention = ShelfAttention(self._library_attention == "eager", kernel, why_no_kernel)
        AttentionInterface.register(NAME, self._attention)
        self._compiled = compile_mode is not None
        self._forward = torch.compile(model, mode=compile_mode, dynamic=True) if compile_mode else model
        self._graphs: StepGraphs | None = None
        self._gathers = device.type == "cuda"  # prompts of similar length: fewer launches, a little padding
        self.runs_ahead = device.type == "cuda"  # a step has only begun when `run` returns
        self.cache = ShelfCache(context_length)
        self.bytes_per_token = 0  # of keys and values; known once `obstacle` has tried
        if device.type == "cuda":
            # cuDNN's attention is preferred on some devices, and makes a plan for each new shape: here most are new.
            torch.backends.cuda.enable_cudnn_sdp(False)

    @property
    def records(self) -> bool:
        """Whether steps that only decode are recorded and replayed."""
        return self._graphs is not None and self._graphs.off is None

    @property
    def has_kernel(self) -> bool:
        """Whether rows that decode are attended by a kernel of our own."""
        return self._attention.kernel is not None

    @property
    def why_library(self) -> str | None:
        return self._attention.why_library

    @property
    def why_not_recorded(self) -> str | None:
        return self._graphs.off if self._graphs is not None else None

    def record_with(self, recorder: Recorder, room: Room) -> None:
        """Record steps that only decode, from now on."""
        self.cache.room = room
        self._gathers = True
        self._graphs = StepGraphs(recorder, self._decoded, room.rows, self._device, by_length=self.has_kernel)

    def forget_recordings(self) -> None:
        """The model is about to change."""
        if self._graphs is not None:
            self._graphs.forget()

    def rest(self) -> None:
        """Nothing runs, and the weights are about to leave: give back what is kept for speed alone."""
        self.forget_recordings()
        self.cache.free_unused()

    def start_over(self) -> None:
        """A step failed, wherever it was: no row of it is left."""
        self.forget_recordings()
        self.cache.clear()

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def run(self, step: Step) -> tuple[list[Segment], Any]:
        """The segments that want a token, in order, and their logits [segments, vocabulary] in float32.

        The logits are good until the next step.
        """
        self.cache.apply(step.operations)
        if not step.segments:
            return [], None
        layout = lay_out(step.segments, self.cache, self._gathers)
        self._adapters.use(step.lora)
        decodes = not layout.batches and not layout.alone and all(segment.wanted for segment in layout.order)
        if self._graphs is not None and decodes and step.lora is None:
            logits = self._graphs.run(layout.groups)
            if logits is not None:
                return layout.order, logits
        tokens = [token for segment in layout.order for token in segment.tokens]
        positions = [p for s in layout.order for p in range(s.start, s.start + len(s.tokens))]
        wanted, ends = _ends(layout.order)
        logits = self._logits(
            Work.of(layout, self._device),
            torch.tensor([tokens], device=self._device),
            torch.tensor([positions], device=self._device),
            torch.tensor(ends, dtype=torch.long, device=self._device),
        )
        return wanted, logits.float()

    def _logits(self, work: Work, tokens: Any, positions: Any, kept: Any) -> Any:
        self._attention.work = work
        self._config._attn_implementation = NAME
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
            self._attention.work = None
        return output.logits[0]

    def _decoded(self, rows: Decoding, tokens: Any, positions: Any) -> Any:
        # All of them. A compiled model has met a tensor at load, and would be compiled again for a number.
        kept = rows.rows if self._compiled else 0
        return self._logits(Work([rows]), tokens[None], positions[None], kept)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def obstacle(self) -> str | None:
        """Why this model cannot be batched continuously, found by trying; `None` when it can."""
        reason = structural_obstacle(self._model, self._config)
        if reason is not None:
            return reason
        try:
            reason = self._tried()
        except Exception as error:  # memory ran out; without a kernel the trial is a shorter one
            if self._attention.kernel is None:
                raise
            reason = in_one_line(error)
        if reason is None or self._attention.kernel is None:
            return reason
        self._attention.drop_kernel(reason)
        without = self._tried()
        if without is None:
            _log.warning("the library's attention is used, not our own: %s", reason)
        return without

    def _tried(self) -> str | None:
        try:
            return self._difference()
        except Exception as error:  # a model's, the library's or a compiler's: there may be another way
            if out_of_memory(error):
                raise
            return f"its attention cannot be replaced ({in_one_line(error)})"
        finally:
            self.cache.apply([Release(-number) for number in range(1, 1 + max(len(_TRIAL), len(_KERNEL_TRIAL)))])

    def _difference(self) -> str | None:
        """Rows of different length, each computed in two steps, must give the logits of a plain forward pass."""
        lengths = [min(self._context_length, length) for length in (_KERNEL_TRIAL if self.has_kernel else _TRIAL)]
        texts = {
            -number: [((2 * number + 3) * i + number) % self._config.vocab_size for i in range(length)]
            for number, length in enumerate(lengths, start=1)
        }
        first = [Segment(key, 0, text[:-1], False) for key, text in texts.items()]
        second = [Segment(key, len(text) - 1, text[-1:], True) for key, text in texts.items()]
        self.run(Step(None, [Reserve(key, len(text) - 1) for key, text in texts.items()], first))
        wanted, logits = self.run(Step(None, [Reserve(key, len(text)) for key, text in texts.items()], second))
        self.bytes_per_token = self.cache.bytes_per_token(-1)
        rows = [texts[segment.key] for segment in wanted]
        plain = self._plain_logits(rows)
        if apart(logits, plain.to(logits.device)) > self._limit(rows, plain):
            return "its attention is not plain: results differ from the library's own"
        return None

    def _limit(self, rows: list[list[int]], plain: Any) -> float:
        """How far apart logits may be and still be the same but for the order of sums, in this model and its number format."""
        self._config._attn_implementation = "sdpa" if self._library_attention == "eager" else "eager"
        try:
            rounding = apart(self._plain_logits(rows), plain)
        except Exception:  # a model may have one attention only
            rounding = math.inf
        finally:
            self._config._attn_implementation = self._library_attention
        return min(_MOST, max(_LEAST, _TIMES * rounding)) if math.isfinite(rounding) else _UNKNOWN

    def _plain_logits(self, rows: list[list[int]]) -> Any:
        """After each row's last token, without our attention.

        What is padded comes after all that is looked at, so it changes nothing there.
        """
        longest = max(map(len, rows))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self._device)
        ends = torch.tensor([len(row) - 1 for row in rows])  # the last layer's device may be another
        logits = self._model(input_ids=padded, logits_to_keep=ends).logits  # [rows, rows, vocabulary]
        return torch.stack([logits[number, number] for number in range(len(rows))]).float()


def structural_obstacle(model: Any, config: Any) -> str | None:
    """What the model's class and config say against continuous batching."""
    if getattr(model.config, "is_encoder_decoder", False):
        return "it has an encoder"
    if not getattr(model, "_supports_attention_backend", False):
        return f"{type(model).__name__} does not let its attention be replaced"
    if getattr(model, "_is_stateful", False) or getattr(config, "num_kv_shared_layers", 0):
        return "its cache is not plain keys and values"
    other = set(getattr(config, "layer_types", None) or ()) - _PLAIN_LAYERS
    return f"it has layers of type {', '.join(sorted(other))}" if other else None


def _ends(order: list[Segment]) -> tuple[list[Segment], list[int]]:
    """Segments that want a token, and the place of each one's last token in the step."""
    wanted, ends, at = [], [], 0
    for segment in order:
        at += len(segment.tokens)
        if segment.wanted:
            wanted.append(segment)
            ends.append(at - 1)
    return wanted, ends
