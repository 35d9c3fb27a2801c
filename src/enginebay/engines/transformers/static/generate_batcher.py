"""Batches that run through generate(): static and dynamic batching, assisted generation, beam search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from enginebay.contract import FinishReason, Sampling
from enginebay.engines.transformers.decoding.output_writer import OutputWriter
from enginebay.engines.transformers.decoding.sequence_state import SampledToken, SequenceState
from enginebay.engines.transformers.decoding.token_sampler import (
    MIN_TEMPERATURE,
    compute_logprobs,
    process_logits,
    sample_tokens,
)
from enginebay.engines.transformers.distributed.ranks import RankGroup, Resume
from enginebay.engines.transformers.loading.model_loader import is_out_of_memory
from enginebay.engines.transformers.static.batch_selection import BatchRules, is_batch_ready, select_batch
from enginebay.engines.transformers.static.library_generator import (
    GenerateCall,
    LibraryGenerator,
    ScoreCall,
    force_tokens,
)
from enginebay.errors import EnginebayError, EngineFailed, InvalidRequest
from enginebay.util.text_format import summarize_error

# Phrases of torch.multinomial.
_TOO_FEW_TOKENS = ("probability tensor contains", "invalid multinomial distribution", "cannot sample n_sample")


class OtherWorkFailed(Exception):
    """A step of other requests failed inside generate(). The cause is the error."""


class GenerateBatcher:
    """Collects sequences, runs them batch by batch, and streams each step.

    Calls `on_step` after every step inside generate(), so that other work continues meanwhile.
    """

    def __init__(
        self,
        generator: LibraryGenerator,
        rules: BatchRules,
        output: OutputWriter,
        ranks: RankGroup,
        on_step: Callable[[], None],
        assisted: bool,
    ) -> None:
        self._generator = generator
        self._rules = rules
        self._output = output
        self._ranks = ranks
        self._on_step = on_step
        self._assisted = assisted
        self._waiting: list[SequenceState] = []
        self._beam_searches: list[list[SequenceState]] = []
        self._running: list[SequenceState] = []
        self._cancelled: set[int] = set()
        self._oldest_arrival_s = 0.0
        self.steps = 0

    def add(self, sequences: Sequence[SequenceState]) -> None:
        if not self._waiting:
            self._oldest_arrival_s = time.monotonic()
        self._waiting.extend(sequences)

    def add_beam_search(self, sequences: Sequence[SequenceState]) -> None:
        """Add a beam search request; its sequences receive the best beams."""
        self._beam_searches.append(list(sequences))

    def cancel(self, number: int) -> None:
        self._waiting = [sequence for sequence in self._waiting if sequence.number != number]
        self._beam_searches = [sequences for sequences in self._beam_searches if sequences[0].number != number]
        if any(sequence.number == number for sequence in self._running):
            self._cancelled.add(number)

    def get_request_numbers(self) -> set[int]:
        """Return the waiting and running requests."""
        unfinished = {sequence.number for sequence in self._list_sequences() if sequence.finish_reason is None}
        return unfinished - self._cancelled

    def get_running_numbers(self) -> set[int]:
        """Return the requests of the running batch. Thread-safe."""
        return {sequence.number for sequence in tuple(self._running)}

    def get_adapters_in_use(self) -> set[str | None]:
        """Return the adapters of the waiting and running requests."""
        return {sequence.lora for sequence in self._list_sequences()}

    def _list_sequences(self) -> list[SequenceState]:
        searches = (sequence for sequences in self._beam_searches for sequence in sequences)
        return [*self._waiting, *self._running, *searches]

    def advance(self) -> bool:
        """Run one batch or beam search to its end. Return False if none is ready."""
        if self._beam_searches:
            self._running = self._beam_searches.pop(0)
            self._run_beam_search_alone(self._running)
            self.clear_running()
            return True
        if not is_batch_ready(self._rules, len(self._waiting), time.monotonic() - self._oldest_arrival_s):
            return False
        batch = self._waiting[:1] if self._assisted else select_batch(self._rules, self._waiting)
        selected = {id(sequence) for sequence in batch}
        self._waiting = [sequence for sequence in self._waiting if id(sequence) not in selected]
        self._running = batch
        self._run_batch(batch)
        self.clear_running()
        return True

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def clear_running(self) -> None:
        """Forget the running batch after it ended or failed."""
        self._running = []
        self._cancelled.clear()

    def _run_batch(self, sequences: list[SequenceState]) -> None:
        batch = _RunningBatch(sequences, self._output)

        def process_scores(ids: Any, scores: Any) -> Any:
            return self._ranks.broadcast_tensor(batch.force_sampled(ids, scores, self._assisted))

        def check_stop(ids: Any) -> list[bool]:
            batch.emit_new_tokens(ids)
            self._finish_step()
            return self._broadcast_done(
                [sequence.finish_reason is not None or sequence.number in self._cancelled for sequence in sequences]
            )

        config: dict[str, Any] = {
            "max_new_tokens": max(sequence.max_output_tokens - len(sequence.output) for sequence in sequences)
        }
        if self._assisted and sequences[0].end_token_ids:
            config["eos_token_id"] = sorted(sequences[0].end_token_ids)
        call = GenerateCall(
            [[*sequence.prompt, *sequence.output] for sequence in sequences], config, sequences[0].lora, self._assisted
        )
        self._ranks.broadcast(call)
        self._generator.run(call, process_scores, check_stop)

    def _run_beam_search_alone(self, sequences: list[SequenceState]) -> None:
        """Run a beam search. An error fails this request alone."""
        try:
            self._run_beam_search(sequences)
        except OtherWorkFailed:
            raise
        except Exception as error:
            if not self._ranks.is_single_process or is_out_of_memory(error):
                raise
            self._output.fail(sequences[0].number, _to_beam_search_error(error))

    def _run_beam_search(self, sequences: list[SequenceState]) -> None:
        """Run a beam search. It emits its output at the end, when the best beams are known."""
        first = sequences[0]
        generated = 0

        def process_beam_scores(ids: Any, scores: Any) -> Any:
            outputs = [beam[-generated:] if generated else [] for beam in ids.tolist()]
            return self._ranks.broadcast_tensor(process_logits(scores, [first] * len(outputs), outputs))

        def check_stop(ids: Any) -> list[bool]:
            nonlocal generated
            generated += 1
            self._finish_step()
            return self._broadcast_done([first.number in self._cancelled] * ids.shape[0])

        call = GenerateCall(
            [list(first.prompt)],
            build_beam_config(first, len(sequences)),
            first.lora,
            stop_strings=list(first.sampling.stop),
        )
        self._ranks.broadcast(call)
        for sequence, token_ids in zip(
            sequences, self._generator.run(call, process_beam_scores, check_stop), strict=True
        ):
            if first.number not in self._cancelled:
                self._emit_sequence(sequence, token_ids)
        self._output.flush()

    def _emit_sequence(self, sequence: SequenceState, token_ids: list[int]) -> None:
        """Emit a finished sequence, without the padding after its end."""
        end = next(
            (
                i + 1
                for i, token in enumerate(token_ids)
                if token in sequence.end_token_ids and i >= sequence.min_tokens
            ),
            len(token_ids),
        )
        tokens = token_ids[: min(end, sequence.max_output_tokens)]
        for sampled in self._to_sampled_tokens(sequence, tokens):
            if sequence.finish_reason is None:
                self._output.add_token(sequence, sampled)
        if sequence.finish_reason is None:
            self._output.finish(sequence, FinishReason.STOP)

    def _to_sampled_tokens(self, sequence: SequenceState, tokens: list[int]) -> list[SampledToken]:
        count = sequence.sampling.logprobs
        if count is None or not tokens:
            return [SampledToken(token) for token in tokens]
        call = ScoreCall(list(sequence.prompt), tokens, sequence.lora)
        self._ranks.broadcast(call)
        logprobs = compute_logprobs(self._generator.score(call), tokens, [count] * len(tokens))
        return [SampledToken(token, (entry,)) for token, entry in zip(tokens, logprobs, strict=True)]

    def _finish_step(self) -> None:
        """Flush the output and let other work continue; requests may be cancelled meanwhile."""
        self.steps += 1
        self._output.flush()
        try:
            self._on_step()
        except Exception as error:
            raise OtherWorkFailed from error

    def _broadcast_done(self, done: list[bool]) -> list[bool]:
        self._ranks.broadcast(Resume(done))
        return done


class _RunningBatch:
    """The sequences of one call of generate()."""

    def __init__(self, sequences: list[SequenceState], output: OutputWriter) -> None:
        self._sequences = sequences
        self._output = output
        self._prompt_width: int | None = None  # width of the padded prompts
        self._emitted = 0
        self._sampled: dict[tuple[int, int], SampledToken] = {}  # (index, output position) -> token

    def force_sampled(self, ids: Any, scores: Any, drafted: bool) -> Any:
        """Sample each sequence's next token, and return scores that force generate() to take it."""
        if self._prompt_width is None:
            self._prompt_width = ids.shape[1]
        if drafted and bool((scores == scores[0, 0]).all()):
            return scores  # prompt lookup tests whether drafts are allowed, with constant scores
        outputs = [
            [*sequence.restored, *ids[i, self._prompt_width :].tolist()] if drafted else sequence.output
            for i, sequence in enumerate(self._sequences)
        ]
        unfinished = [i for i, sequence in enumerate(self._sequences) if sequence.finish_reason is None]
        tokens = [0] * len(self._sequences)
        sampled = sample_tokens(
            scores[unfinished], [self._sequences[i] for i in unfinished], [outputs[i] for i in unfinished]
        )
        for i, token in zip(unfinished, sampled, strict=True):
            tokens[i] = token.token
            self._sampled[i, len(outputs[i])] = token
        return force_tokens(tokens, scores)

    def emit_new_tokens(self, ids: Any) -> None:
        """Emit the tokens that generate() has added."""
        new = ids[:, (self._prompt_width or 0) + self._emitted :].tolist()
        for i, sequence in enumerate(self._sequences):
            for token in new[i]:
                if sequence.finish_reason is None:
                    sampled = self._sampled.pop((i, len(sequence.output)), None)
                    self._output.add_token(
                        sequence, sampled if sampled is not None and sampled.token == token else SampledToken(token)
                    )
        self._emitted += len(new[0])


def _to_beam_search_error(error: Exception) -> EnginebayError:
    """Return the client's error if the parameters leave too few tokens to draw from, else the engine's."""
    reason = summarize_error(error)
    if isinstance(error, ValueError) or any(phrase in str(error) for phrase in _TOO_FEW_TOKENS):
        return InvalidRequest(
            f"beam search is impossible with these parameters: {reason}", "relax or remove some", param="num_beams"
        )
    return EngineFailed(f"beam search failed: {reason}")


def build_beam_config(sequence: SequenceState, num_return_sequences: int) -> dict[str, Any]:
    """Return the arguments of generate() for beam search. Temperature and filters apply only with do_sample."""
    sampling: Sampling = sequence.sampling
    config: dict[str, Any] = {
        "num_beams": sampling.value("num_beams"),
        "num_return_sequences": num_return_sequences,
        "length_penalty": float(sampling.value("length_penalty")),
        "early_stopping": bool(sampling.value("early_stopping")),
        "max_new_tokens": sequence.max_output_tokens,
        "eos_token_id": sorted(sequence.end_token_ids) or None,
    }
    if sampling.do_sample and not sampling.greedy:
        config |= {
            "do_sample": True,
            "temperature": max(float(sampling.value("temperature")), MIN_TEMPERATURE),
            "top_p": float(sampling.value("top_p")),
            "top_k": max(0, sampling.value("top_k")),
            "min_p": float(sampling.value("min_p")),
            "seed": sequence.seed,
        }
    return config
