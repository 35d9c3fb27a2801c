"""Requests that run through generate(): static and dynamic batches, assisted generation, beam search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from enginebay.contract import FinishReason, Sampling
from enginebay.engines.transformers.decoding.output_writer import OutputWriter
from enginebay.engines.transformers.decoding.sampled_token import SampledToken
from enginebay.engines.transformers.decoding.sequence_state import SequenceState
from enginebay.engines.transformers.decoding.token_sampler import compute_logprobs, process_logits, sample_tokens
from enginebay.engines.transformers.distributed.ranks import RankGroup, Resume
from enginebay.engines.transformers.static.batch_selection import BatchRules, is_batch_ready, select_batch
from enginebay.engines.transformers.static.generate_loop import GenerateCall, LibraryGenerator, ScoreCall, force_tokens


class GenerateBatcher:
    """Collects rows, runs them batch by batch, and streams each step.

    `between` is called after every step inside generate(): what else is going on goes on there.
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

    def add(self, rows: Sequence[SequenceState]) -> None:
        if not self._waiting:
            self._oldest_arrival_s = time.monotonic()
        self._waiting.extend(rows)

    def add_beam_search(self, rows: Sequence[SequenceState]) -> None:
        """A request for beam search; its rows get the best sequences found."""
        self._beam_searches.append(list(rows))

    def cancel(self, number: int) -> None:
        self._waiting = [row for row in self._waiting if row.number != number]
        self._beam_searches = [rows for rows in self._beam_searches if rows[0].number != number]
        if any(row.number == number for row in self._running):
            self._cancelled.add(number)

    def get_request_numbers(self) -> set[int]:
        held = (*self._waiting, *self._running, *(row for rows in self._beam_searches for row in rows))
        return {row.number for row in held if row.finish_reason is None} - self._cancelled

    def get_running_numbers(self) -> set[int]:
        """Requests of the batch that runs now. Any thread may ask."""
        return {row.number for row in tuple(self._running)}

    def get_adapters_in_use(self) -> set[str | None]:
        """Adapters of the requests that are held."""
        return {
            row.lora for row in (*self._waiting, *self._running, *(row for rows in self._beam_searches for row in rows))
        }

    def advance(self) -> bool:
        """Run one batch or one search to its end; false when none is ready."""
        if self._beam_searches:
            self._running = self._beam_searches.pop(0)
            self._run_beam_search(self._running)
            self.clear_running()
            return True
        if not is_batch_ready(self._rules, len(self._waiting), time.monotonic() - self._oldest_arrival_s):
            return False
        batch = self._waiting[:1] if self._assisted else select_batch(self._rules, self._waiting)
        chosen = {id(row) for row in batch}
        self._waiting = [row for row in self._waiting if id(row) not in chosen]
        self._running = batch
        self._run_batch(batch)
        self.clear_running()
        return True

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def clear_running(self) -> None:
        """Nothing is being computed any more: the batch is over, or it failed."""
        self._running = []
        self._cancelled.clear()

    def _run_batch(self, rows: list[SequenceState]) -> None:
        batch = _RunningBatch(rows, self._output)

        def choose(ids: Any, scores: Any) -> Any:
            return self._ranks.broadcast_tensor(batch.force_sampled(ids, scores, self._assisted))

        def judge(ids: Any) -> list[bool]:
            batch.emit_new_tokens(ids)
            self._finish_step()
            return self._broadcast_done(
                [row.finish_reason is not None or row.number in self._cancelled for row in rows]
            )

        config: dict[str, Any] = {"max_new_tokens": max(row.max_output_tokens for row in rows)}
        if self._assisted and rows[0].end_token_ids:
            config["eos_token_id"] = sorted(rows[0].end_token_ids)
        call = GenerateCall([list(row.prompt) for row in rows], config, rows[0].lora, self._assisted)
        self._ranks.broadcast(call)
        self._generator.run(call, choose, judge)

    def _run_beam_search(self, rows: list[SequenceState]) -> None:
        """Beam search says nothing until it is over: which beam wins is only known then."""
        first = rows[0]
        made = 0

        def choose(ids: Any, scores: Any) -> Any:
            outputs = [ids_of_beam[-made:] if made else [] for ids_of_beam in ids.tolist()]
            return self._ranks.broadcast_tensor(process_logits(scores, [first] * len(outputs), outputs))

        def judge(ids: Any) -> list[bool]:
            nonlocal made
            made += 1
            self._finish_step()
            return self._broadcast_done([first.number in self._cancelled] * ids.shape[0])

        call = GenerateCall(
            [list(first.prompt)],
            build_beam_config(first, len(rows)),
            first.lora,
            stop_strings=list(first.sampling.stop),
        )
        self._ranks.broadcast(call)
        for row, sequence in zip(rows, self._generator.run(call, choose, judge), strict=True):
            if first.number not in self._cancelled:
                self._emit_sequence(row, sequence)
        self._output.flush()

    def _emit_sequence(self, row: SequenceState, sequence: list[int]) -> None:
        """A finished sequence at once; what follows its end is padding."""
        ended = next(
            (i + 1 for i, token in enumerate(sequence) if token in row.end_token_ids and i >= row.min_tokens),
            len(sequence),
        )
        tokens = sequence[: min(ended, row.max_output_tokens)]
        for drawn in self._to_sampled_tokens(row, tokens):
            if row.finish_reason is None:
                self._output.add_token(row, drawn)
        if row.finish_reason is None:
            self._output.finish(row, FinishReason.STOP)

    def _to_sampled_tokens(self, row: SequenceState, tokens: list[int]) -> list[SampledToken]:
        count = row.sampling.logprobs
        if count is None or not tokens:
            return [SampledToken(token) for token in tokens]
        call = ScoreCall(list(row.prompt), tokens, row.lora)
        self._ranks.broadcast(call)
        known = compute_logprobs(self._generator.score(call), tokens, [count] * len(tokens))
        return [SampledToken(token, (entry,)) for token, entry in zip(tokens, known, strict=True)]

    def _finish_step(self) -> None:
        """Send what there is, and let others go on; requests may be cancelled meanwhile."""
        self.steps += 1
        self._output.flush()
        self._on_step()

    def _broadcast_done(self, done: list[bool]) -> list[bool]:
        self._ranks.broadcast(Resume(done))
        return done


class _RunningBatch:
    """Rows inside one call of generate()."""

    def __init__(self, rows: list[SequenceState], output: OutputWriter) -> None:
        self._rows = rows
        self._output = output
        self._prompt_width: int | None = None  # of the padded prompts
        self._emitted = 0
        self._sampled: dict[tuple[int, int], SampledToken] = {}  # (row, place in the output) -> what was drawn there

    def force_sampled(self, ids: Any, scores: Any, drafted: bool) -> Any:
        """Draw each row's next token, and leave generate() no other choice."""
        if self._prompt_width is None:
            self._prompt_width = ids.shape[1]
        if drafted and bool((scores == scores[0, 0]).all()):
            return scores  # prompt lookup asks whether a draft is forbidden, with scores that are all the same
        outputs = [ids[i, self._prompt_width :].tolist() if drafted else row.output for i, row in enumerate(self._rows)]
        open_rows = [i for i, row in enumerate(self._rows) if row.finish_reason is None]
        tokens = [0] * len(self._rows)
        drawn = sample_tokens(scores[open_rows], [self._rows[i] for i in open_rows], [outputs[i] for i in open_rows])
        for i, one in zip(open_rows, drawn, strict=True):
            tokens[i] = one.token
            self._sampled[i, len(outputs[i])] = one
        return force_tokens(tokens, scores)

    def emit_new_tokens(self, ids: Any) -> None:
        """Hand out the tokens that generate() has added."""
        new = ids[:, (self._prompt_width or 0) + self._emitted :].tolist()
        for i, row in enumerate(self._rows):
            for token in new[i]:
                if row.finish_reason is None:
                    known = self._sampled.pop((i, len(row.output)), None)
                    self._output.add_token(
                        row, known if known is not None and known.token == token else SampledToken(token)
                    )
        self._emitted += len(new[0])


def build_beam_config(row: SequenceState, sequences: int) -> dict[str, Any]:
    """Arguments of generate() for beam search. Temperature and filters count only where sampling was asked for."""
    sampling: Sampling = row.sampling
    config: dict[str, Any] = {
        "num_beams": sampling.value("num_beams"),
        "num_return_sequences": sequences,
        "length_penalty": float(sampling.value("length_penalty")),
        "early_stopping": bool(sampling.value("early_stopping")),
        "max_new_tokens": row.max_output_tokens,
        "eos_token_id": sorted(row.end_token_ids) or None,
    }
    if sampling.do_sample and not sampling.greedy:
        config |= {
            "do_sample": True,
            "temperature": float(sampling.value("temperature")),
            "top_p": float(sampling.value("top_p")),
            "top_k": max(0, sampling.value("top_k")),
            "min_p": float(sampling.value("min_p")),
            "seed": row.seed,
        }
    return config
