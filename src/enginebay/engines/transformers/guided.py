"""Constraints on the output, through xgrammar. Importing this file imports neither it nor torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from enginebay.contract import Guided
from enginebay.errors import InvalidRequest

_LOCATION = re.compile(r"^\S*\s*\S*\.(cc|h):\d+:\s*")


class Constraint:
    """What one output may contain. It follows any history, also one that took back tokens (drafts, beams)."""

    def __init__(self, matcher: Any, bitmask: Any, within: Any = None) -> None:
        self._matcher = matcher
        self._bitmask = bitmask
        self._within = within  # a bitmask that always holds too
        self._accepted: list[int] = []

    def mask(self, output: Sequence[int]) -> Any:
        """One bit per token of the vocabulary: which may come after this output."""
        self._follow(output)
        if self._matcher.is_terminated():
            return None
        self._matcher.fill_next_token_bitmask(self._bitmask, 0)
        return self._bitmask if self._within is None else self._bitmask & self._within

    def complete(self, output: Sequence[int]) -> bool:
        """Whether the output is whole and nothing may follow."""
        self._follow(output)
        return bool(self._matcher.is_terminated())

    def copy(self) -> Constraint:
        return Constraint(self._matcher.fork(), self._bitmask.clone(), self._within)

    def _follow(self, output: Sequence[int]) -> None:
        common = len(self._accepted)
        if list(output[:common]) != self._accepted:
            common = next(i for i, token in enumerate(self._accepted) if i >= len(output) or token != output[i])
            self._matcher.rollback(len(self._accepted) - common)
            del self._accepted[common:]
        for token in output[common:]:
            if self._matcher.is_terminated() or not self._matcher.accept_token(token):
                return
            self._accepted.append(token)


class GuidedCompiler:
    """Compiles constraints for one tokenizer; slow for large schemas, so not for the thread that steps the model."""

    def __init__(self, tokenizer: Any, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        import xgrammar

        self._vocab_size = vocab_size
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocab_size, stop_token_ids=list(stop_token_ids) or None
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2)
        self._printable = _bitmask_without(control_tokens(info.decoded_vocab), vocab_size)

    def compile(self, guided: Guided) -> Constraint:
        import xgrammar

        try:
            compiled = self._compiled(guided)
        except Exception as error:  # xgrammar raises plain RuntimeErrors with a C++ location in front
            reason = _LOCATION.sub("", str(error).strip().splitlines()[0] if str(error) else type(error).__name__)
            raise InvalidRequest(f"the guided constraint cannot be compiled: {reason}", param=_name(guided)) from None
        within = None if guided.json is None else self._printable
        bitmask = xgrammar.allocate_token_bitmask(1, self._vocab_size)
        return Constraint(xgrammar.GrammarMatcher(compiled), bitmask, within)

    def _compiled(self, guided: Guided) -> Any:
        if guided.json is not None:
            # One layout: a small model that may write any blanks can write blanks until max_tokens.
            return self._compiler.compile_json_schema(json_schema(guided.json), any_whitespace=False)
        if guided.regex is not None:
            return self._compiler.compile_regex(guided.regex)
        return self._compiler.compile_grammar(guided.grammar or choice_grammar(guided.choice or ()))


def json_schema(text: str) -> str:
    """The schema to compile: `{}` means any object, where xgrammar would take any value."""
    return '{"type": "object"}' if json.loads(text) == {} else text


def choice_grammar(choices: Sequence[str]) -> str:
    """One of these strings, as a grammar."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def control_tokens(vocabulary: Sequence[bytes]) -> list[int]:
    """Tokens that JSON text cannot contain: xgrammar lets some into strings, where JSON wants them escaped."""
    return [token for token, text in enumerate(vocabulary) if any(byte < 0x20 for byte in text)]


def _bitmask_without(tokens: Sequence[int], vocab_size: int) -> Any:
    import torch
    import xgrammar

    mask = xgrammar.allocate_token_bitmask(1, vocab_size)
    mask.fill_(-1)
    words: dict[int, int] = {}
    for token in tokens:
        words[token // 32] = words.get(token // 32, 0) | 1 << token % 32
    for word, bits in words.items():
        mask[0, word] = torch.tensor(~bits & 0xFFFFFFFF).to(torch.uint32).view(torch.int32)
    return mask


def _name(guided: Guided) -> str:
    return next(
        f"guided_{name}" for name in ("json", "regex", "grammar", "choice") if getattr(guided, name) is not None
    )
