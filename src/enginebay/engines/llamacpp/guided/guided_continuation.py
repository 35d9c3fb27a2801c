"""Continue a constrained output token by token.

llama.cpp starts every constraint at its beginning. So llguidance follows the output with the model's vocabulary, and each token
is generated with a constraint that allows just the tokens that may come next. Slower than a whole constraint, but only
outputs need it whose worker died.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.guided.llguidance_matcher import LlguidanceMatcher

_MAX_FORCED = 64  # tokens that begin the same way

Generate = Callable[[str], Mapping[str, Any]]  # a grammar of one token to the library's response
Send = Callable[[str, Sequence[int], Sequence[Any]], None]


def write_token_grammar(ranges: Iterable[tuple[int, int]], may_end: bool) -> str:
    """Return the grammar of one token of these ranges, ends included."""
    ids = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return f"%llguidance {{}}\nstart: <[{ids}]>{'?' if may_end else ''}\n"


def find_forced_token(ranges: Sequence[tuple[int, int]], get_piece: Callable[[int], bytes]) -> int | None:
    """Return the longest token if all others are its beginnings, which llama.cpp would take too; None if there is a choice."""
    if sum(last - first + 1 for first, last in ranges) > _MAX_FORCED:
        return None
    pieces = {token: get_piece(token) for first, last in ranges for token in range(first, last + 1)}
    longest = max(pieces, key=lambda token: len(pieces[token]))
    return longest if all(pieces[longest].startswith(piece) for piece in pieces.values()) else None


class GuidedContinuation:
    """Generates the rest of one output."""

    def __init__(self, output: ChoiceOutput, matcher: LlguidanceMatcher, get_piece: Callable[[int], bytes]) -> None:
        self._output = output
        self._matcher = matcher
        self._get_piece = get_piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(b"".join(map(get_piece, output.ids)))

    def step(self, generate: Generate, send: Send) -> bool:
        """Generate one token. Return False if the constraint does not allow it."""
        output = self._output
        ranges = [] if self._matcher.is_complete() else self._matcher.find_allowed_ranges()
        if not ranges:
            send(output.end_attempt("eos", False), (), ())
            return True
        may_end = self._matcher.is_accepting()
        forced = None if may_end else find_forced_token(ranges, self._get_piece)
        response = generate(write_token_grammar(ranges if forced is None else [(forced, forced)], may_end))
        choice, details = response["choices"][0], response["__verbose"]
        if details["stop_type"] == "eos":
            send(output.end_attempt("eos", False), (), ())
            return may_end
        token = details["tokens"][0]
        if not self._matcher.consume_tokens((token,)):
            return False
        output.begin_attempt()
        logprobs = choice["logprobs"]["content"] if choice["logprobs"] else ()
        send(*output.add_chunk(self._decoder.decode(self._get_piece(token)), token, 1, logprobs))
        if output.count >= output.limit:
            send(output.end_attempt("limit", False), (), ())
        return True
