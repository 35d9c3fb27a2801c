"""Requests that run through generate(): static and dynamic batches, assisted generation, beam search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from enginebay.contract import FinishReason, Sampling
from enginebay.engines.transformers.batches import BatchRules, pick, ready
from enginebay.engines.transformers.drawn import Drawn
from enginebay.engines.transformers.generation import GenerateCall, Generator, ScoreCall, only
from enginebay.engines.transformers.outlet import Outlet
from enginebay.engines.transformers.parallel import Peers, Resume
from enginebay.engines.transformers.row import Row
from enginebay.engines.transformers.sampling import draw, logprobs_of, shaped


class Batcher:
    """Collects rows, runs them batch by batch, and streams each step.

    `between` is called after every step inside generate(): what else is going on goes on there.
    """

    def __init__(
        self,
        generator: Generator,
        rules: BatchRules,
        outlet: Outlet,
        peers: Peers,
        between: Callable[[], None],
        assisted: bool,
    ) -> None:
        self._generator = generator
        self._rules = rules
        self._outlet = outlet
        self._peers = peers
        self._between = between
        self._assisted = assisted
        self._waiting: list[Row] = []
        self._searches: list[list[Row]] = []
        self._running: list[Row] = []
        self._cancelled: set[int] = set()
        self._oldest_s = 0.0
        self.steps = 0

    def add(self, rows: Sequence[Row]) -> None:
        if not self._waiting:
            self._oldest_s = time.monotonic()
        self._waiting.extend(rows)

    def add_search(self, rows: Sequence[Row]) -> None:
        """A request for beam search; its rows get the best sequences found."""
        self._searches.append(list(rows))

    def cancel(self, number: int) -> None:
        self._waiting = [row for row in self._waiting if row.number != number]
        self._searches = [rows for rows in self._searches if rows[0].number != number]
        if any(row.number == number for row in self._running):
            self._cancelled.add(number)

    def numbers(self) -> set[int]:
        held = (*self._waiting, *self._running, *(row for rows in self._searches for row in rows))
        return {row.number for row in held if row.finished is None} - self._cancelled

    def computing(self) -> set[int]:
        """Requests of the batch that runs now. Any thread may ask."""
        return {row.number for row in tuple(self._running)}

    def loras(self) -> set[str | None]:
        """Adapters of the requests that are held."""
        return {row.lora for row in (*self._waiting, *self._running, *(row for rows in self._searches for row in rows))}

    def advance(self) -> bool:
        """Run one batch or one search to its end; false when none is ready."""
        if self._searches:
            self._running = self._searches.pop(0)
            self._search(self._running)
            self.abandon()
            return True
        if not ready(self._rules, len(self._waiting), time.monotonic() - self._oldest_s):
            return False
        batch = self._waiting[:1] if self._assisted else pick(self._rules, self._waiting)
        chosen = {id(row) for row in batch}
        self._waiting = [row for row in self._waiting if id(row) not in chosen]
        self._running = batch
        self._generate(batch)
        self.abandon()
        return True

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def abandon(self) -> None:
        """Nothing is being computed any more: the batch is over, or it failed."""
        self._running = []
        self._cancelled.clear()

    def _generate(self, rows: list[Row]) -> None:
        batch = _Batch(rows, self._outlet)

        def choose(ids: Any, scores: Any) -> Any:
            return self._peers.share(batch.choose(ids, scores, self._assisted))

        def judge(ids: Any) -> list[bool]:
            batch.take(ids)
            self._breathe()
            return self._verdict([row.finished is not None or row.number in self._cancelled for row in rows])

        config: dict[str, Any] = {"max_new_tokens": max(row.limit for row in rows)}
        if self._assisted and rows[0].ends:
            config["eos_token_id"] = sorted(rows[0].ends)
        call = GenerateCall([list(row.prompt) for row in rows], config, rows[0].lora, self._assisted)
        self._peers.send(call)
        self._generator.run(call, choose, judge)

    def _search(self, rows: list[Row]) -> None:
        """Beam search says nothing until it is over: which beam wins is only known then."""
        first = rows[0]
        made = 0

        def choose(ids: Any, scores: Any) -> Any:
            outputs = [ids_of_beam[-made:] if made else [] for ids_of_beam in ids.tolist()]
            return self._peers.share(shaped(scores, [first] * len(outputs), outputs))

        def judge(ids: Any) -> list[bool]:
            nonlocal made
            made += 1
            self._breathe()
            return self._verdict([first.number in self._cancelled] * ids.shape[0])

        call = GenerateCall(
            [list(first.prompt)], beam_config(first, len(rows)), first.lora, stop_strings=list(first.sampling.stop)
        )
        self._peers.send(call)
        for row, sequence in zip(rows, self._generator.run(call, choose, judge), strict=True):
            if first.number not in self._cancelled:
                self._hand_out(row, sequence)
        self._outlet.flush()

    def _hand_out(self, row: Row, sequence: list[int]) -> None:
        """A finished sequence at once; what follows its end is padding."""
        ended = next(
            (i + 1 for i, token in enumerate(sequence) if token in row.ends and i >= row.min_tokens), len(sequence)
        )
        tokens = sequence[: min(ended, row.limit)]
        for drawn in self._drawn(row, tokens):
            if row.finished is None:
                self._outlet.token(row, drawn)
        if row.finished is None:
            self._outlet.end(row, FinishReason.STOP)

    def _drawn(self, row: Row, tokens: list[int]) -> list[Drawn]:
        count = row.sampling.logprobs
        if count is None or not tokens:
            return [Drawn(token) for token in tokens]
        call = ScoreCall(list(row.prompt), tokens, row.lora)
        self._peers.send(call)
        known = logprobs_of(self._generator.score(call), tokens, [count] * len(tokens))
        return [Drawn(token, (entry,)) for token, entry in zip(tokens, known, strict=True)]

    def _breathe(self) -> None:
        """Send what there is, and let others go on; requests may be cancelled meanwhile."""
        self.steps += 1
        self._outlet.flush()
        self._between()

    def _verdict(self, done: list[bool]) -> list[bool]:
        self._peers.send(Resume(done))
        return done


class _Batch:
    """Rows inside one call of generate()."""

    def __init__(self, rows: list[Row], outlet: Outlet) -> None:
        self._rows = rows
        self._outlet = outlet
        self._width: int | None = None  # of the padded prompts
        self._taken = 0
        self._drawn: dict[tuple[int, int], Drawn] = {}  # (row, place in the output) -> what was drawn there

    def choose(self, ids: Any, scores: Any, drafted: bool) -> Any:
        """Draw each row's next token, and leave generate() no other choice."""
        if self._width is None:
            self._width = ids.shape[1]
        if drafted and bool((scores == scores[0, 0]).all()):
            return scores  # prompt lookup asks whether a draft is forbidden, with scores that are all the same
        outputs = [ids[i, self._width :].tolist() if drafted else row.output for i, row in enumerate(self._rows)]
        open_rows = [i for i, row in enumerate(self._rows) if row.finished is None]
        tokens = [0] * len(self._rows)
        drawn = draw(scores[open_rows], [self._rows[i] for i in open_rows], [outputs[i] for i in open_rows])
        for i, one in zip(open_rows, drawn, strict=True):
            tokens[i] = one.token
            self._drawn[i, len(outputs[i])] = one
        return only(tokens, scores)

    def take(self, ids: Any) -> None:
        """Hand out the tokens that generate() has added."""
        new = ids[:, (self._width or 0) + self._taken :].tolist()
        for i, row in enumerate(self._rows):
            for token in new[i]:
                if row.finished is None:
                    known = self._drawn.pop((i, len(row.output)), None)
                    self._outlet.token(row, known if known is not None and known.token == token else Drawn(token))
        self._taken += len(new[0])


def beam_config(row: Row, sequences: int) -> dict[str, Any]:
    """Arguments of generate() for beam search. Temperature and filters count only where sampling was asked for."""
    sampling: Sampling = row.sampling
    config: dict[str, Any] = {
        "num_beams": sampling.value("num_beams"),
        "num_return_sequences": sequences,
        "length_penalty": float(sampling.value("length_penalty")),
        "early_stopping": bool(sampling.value("early_stopping")),
        "max_new_tokens": row.limit,
        "eos_token_id": sorted(row.ends) or None,
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
