"""Step-by-step control of the library's generate(): callbacks choose the tokens and receive those of every step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation import GenerationMixin

from enginebay.engines.transformers.adapters import PeftAdapters

LogitsCallback = Callable[[Any, Any], Any]  # (token ids so far, scores) -> scores
StopCallback = Callable[[Any], list[bool]]  # token ids so far -> which rows have ended


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One call of generate(), the same on all ranks."""

    prompts: list[list[int]]
    config: dict[str, Any]
    lora: str | None = None
    assisted: bool = False
    stop_strings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """One forward pass over a prompt and its output, for log probabilities."""

    prompt: list[int]
    output: list[int]
    lora: str | None = None


class LibraryGenerator:
    """Calls generate() without the defaults of the model's generation config."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        adapters: PeftAdapters,
        device: Any,
        pad_token_id: int,
        use_cache: bool,
        draft: DraftSource | None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._adapters = adapters
        self._device = device
        self._pad_token_id = pad_token_id
        self._use_cache = use_cache
        self._draft = draft
        self._is_encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def run(self, call: GenerateCall, process_logits: LogitsCallback, check_stop: StopCallback) -> list[list[int]]:
        """Return the token ids of every sequence, without the prompt."""
        self._adapters.activate(call.lora)
        ids, mask = self._pad_prompts(call.prompts)
        options = dict(call.config)
        keywords: dict[str, Any] = {}
        if call.stop_strings:
            options["stop_strings"], keywords["tokenizer"] = call.stop_strings, self._tokenizer
        if call.assisted and self._draft is not None:
            self._draft.add_arguments(options, keywords)
        seed = options.pop("seed", None)
        if seed is not None:  # beam sampling uses torch's global generator
            torch.manual_seed(seed)
        config = GenerationConfig(
            pad_token_id=self._pad_token_id, use_cache=self._use_cache, **{"do_sample": False, **options}
        )
        sequences = self._model.generate(
            ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=LogitsProcessorList([_CallbackLogitsProcessor(process_logits)]),
            stopping_criteria=StoppingCriteriaList(
                [_CallbackStoppingCriteria(check_stop, call.assisted and is_stop_checked_on_drafts())]
            ),
            **keywords,
        )
        width = 1 if self._is_encoder_decoder else ids.shape[1]
        return [sequence[width:].tolist() for sequence in sequences]

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def score(self, call: ScoreCall) -> Any:
        """Return the logits of each output token, [output, vocabulary] in float32."""
        self._adapters.activate(call.lora)
        if self._is_encoder_decoder:
            start = self._model.generation_config.decoder_start_token_id
            decoder = torch.tensor([[start, *call.output[:-1]]], device=self._device)
            logits = self._model(
                input_ids=torch.tensor([call.prompt], device=self._device), decoder_input_ids=decoder, use_cache=False
            ).logits
        else:
            ids = torch.tensor([[*call.prompt, *call.output[:-1]]], device=self._device)
            logits = self._model(input_ids=ids, use_cache=False).logits
        return logits[0, -len(call.output) :].float()

    def _pad_prompts(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        """Pad on the left for decoders, which continue at the right end, and on the right for encoders."""
        width = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), width), self._pad_token_id, dtype=torch.long)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for i, prompt in enumerate(prompts):
            span = slice(0, len(prompt)) if self._is_encoder_decoder else slice(width - len(prompt), width)
            ids[i, span] = torch.tensor(list(prompt))
            mask[i, span] = 1
        return ids.to(self._device), mask.to(self._device)


@dataclass(frozen=True, slots=True)
class DraftSource:
    """The draft source of assisted generation: a small model, or earlier text that matches (prompt lookup)."""

    model: Any
    num_tokens: int

    def add_arguments(self, options: dict[str, Any], keywords: dict[str, Any]) -> None:
        if self.model is None:
            options["prompt_lookup_num_tokens"] = self.num_tokens
        else:
            keywords["assistant_model"] = self.model


class _CallbackLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    def __init__(self, process_logits: LogitsCallback) -> None:
        self._process_logits = process_logits

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return self._process_logits(input_ids, scores)


class _CallbackStoppingCriteria(StoppingCriteria):  # type: ignore[misc]
    """With `called_on_drafts`, every other call is about unverified draft tokens and is ignored."""

    def __init__(self, check_stop: StopCallback, called_on_drafts: bool) -> None:
        self._check_stop = check_stop
        self._called_on_drafts = called_on_drafts
        self._is_draft = False

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self._is_draft = self._called_on_drafts and not self._is_draft
        done = [False] * input_ids.shape[0] if self._is_draft else self._check_stop(input_ids)
        return torch.tensor(done, dtype=torch.bool, device=input_ids.device)


@cache
def is_stop_checked_on_drafts() -> bool:
    """Return whether the library also checks the stop criteria on unverified drafts, as it did until 5.17."""
    try:
        return "stopping_criteria(candidate_input_ids" in inspect.getsource(GenerationMixin._assisted_decoding)
    except (OSError, TypeError, AttributeError):
        return False


def force_tokens(tokens: Sequence[int], scores: Any) -> Any:
    """Return scores that force generate() to choose these tokens."""
    forced = torch.full_like(scores, -torch.inf)
    indices = torch.tensor(tokens, device=scores.device)[:, None]
    return forced.scatter_(-1, indices, 0.0)
