"""Guided decoding with xgrammar. Importing this module imports neither xgrammar nor torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from enginebay.constraints.gbnf_writer import normalize_gbnf
from enginebay.contract import Guided
from enginebay.engines.compile_trial import CompileTrial, get_kind
from enginebay.engines.schema_support import check_schema_support
from enginebay.errors import EnginebayError, InvalidRequest

_CPP_LOCATION = re.compile(r"^\S*\s*\S*\.(cc|h):\d+:\s*")


class GrammarConstraint:
    """The grammar state of one output. It follows any history, including rollbacks (drafts, beams)."""

    def __init__(self, matcher: Any, bitmask: Any, base_bitmask: Any = None) -> None:
        self._matcher = matcher
        self._bitmask = bitmask
        self._base_bitmask = base_bitmask  # applied in addition to every bitmask
        self._accepted: list[int] = []

    def compute_bitmask(self, output: Sequence[int]) -> Any:
        """Return one bit per vocabulary token: whether it may follow this output. None if nothing may."""
        self._sync_matcher(output)
        if self._matcher.is_terminated():
            return None
        self._matcher.fill_next_token_bitmask(self._bitmask, 0)
        return self._bitmask if self._base_bitmask is None else self._bitmask & self._base_bitmask

    def is_complete(self, output: Sequence[int]) -> bool:
        """Return whether the output is complete and nothing may follow."""
        self._sync_matcher(output)
        return bool(self._matcher.is_terminated())

    def accepts(self, output: Sequence[int]) -> bool:
        """Return whether the output is within the constraint."""
        self._sync_matcher(output)
        return len(self._accepted) == len(output)

    def copy(self) -> GrammarConstraint:
        return GrammarConstraint(self._matcher.fork(), self._bitmask.clone(), self._base_bitmask)

    def _sync_matcher(self, output: Sequence[int]) -> None:
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
    """Compiles constraints for one tokenizer. Slow for large schemas: do not call it in the step thread."""

    def __init__(self, tokenizer: Any, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        import xgrammar

        self._vocab_size = vocab_size
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocab_size, stop_token_ids=list(stop_token_ids) or None
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2)
        self._trial = CompileTrial(info.serialize_json)
        self._printable_bitmask = _build_bitmask_without(find_control_tokens(info.decoded_vocab), vocab_size)

    def compile(self, guided: Guided, needs_trial: bool) -> GrammarConstraint:
        import xgrammar

        check_schema_support(guided)
        try:
            source = write_source(guided)
            if needs_trial:
                self._trial.check(guided, *source)
            compiled = self._compile_grammar(*source)
        except EnginebayError:
            raise
        except Exception as error:  # xgrammar raises RuntimeErrors that start with a C++ location
            reason = _CPP_LOCATION.sub("", str(error).strip().splitlines()[0] if str(error) else type(error).__name__)
            raise InvalidRequest(
                f"the guided constraint cannot be compiled: {reason}", param=f"guided_{get_kind(guided)}"
            ) from None
        base_bitmask = None if guided.json is None else self._printable_bitmask
        bitmask = xgrammar.allocate_token_bitmask(1, self._vocab_size)
        return GrammarConstraint(xgrammar.GrammarMatcher(compiled), bitmask, base_bitmask)

    def close(self) -> None:
        self._trial.close()

    def _compile_grammar(self, kind: str, text: str) -> Any:
        if kind == "json":
            # No free whitespace: a small model may otherwise emit blanks until max_tokens.
            return self._compiler.compile_json_schema(text, any_whitespace=False)
        return self._compiler.compile_regex(text) if kind == "regex" else self._compiler.compile_grammar(text)


def write_source(guided: Guided) -> tuple[str, str]:
    """Return the kind and the text that xgrammar compiles."""
    if guided.json is not None:
        return "json", normalize_json_schema(guided.json)
    if guided.regex is not None:
        return "regex", guided.regex
    if guided.grammar is not None:
        return "grammar", normalize_gbnf(guided.grammar)
    return "grammar", build_choice_grammar(guided.choice or ())


def normalize_json_schema(text: str) -> str:
    """Return the schema to compile: `{}` means any object, but xgrammar would allow any value."""
    return '{"type": "object"}' if json.loads(text) == {} else text


def build_choice_grammar(choices: Sequence[str]) -> str:
    """Return a grammar that matches one of these strings."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def find_control_tokens(vocabulary: Sequence[bytes]) -> list[int]:
    """Return the tokens with control characters: xgrammar allows some in strings, where JSON requires escapes."""
    return [token for token, text in enumerate(vocabulary) if any(byte < 0x20 for byte in text)]


def _build_bitmask_without(tokens: Sequence[int], vocab_size: int) -> Any:
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
