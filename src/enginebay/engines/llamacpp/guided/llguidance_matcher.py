"""Follow an output with llguidance, to notice when llama.cpp no longer enforces a constraint.

llama.cpp drops a constraint that is too complex and continues without it; its API does not say so. Its library exports
llguidance's C functions, so that an output can be followed byte by byte beside it: with a vocabulary of single bytes,
the same for every model.
"""

from __future__ import annotations

import ctypes
import random
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from enginebay.errors import Cancelled
from enginebay.text.gguf.gguf_reader import GgufFile

_END_TOKEN = 256
_SPECIAL_MARKER = b"\xff"
_BYTE_TOKENS = (*(bytes([byte]) for byte in range(255)), _SPECIAL_MARKER + b"<255>")
_CACHE_SIZE = 64
_TRIAL_BYTES = 256
_CLOSING_BYTES = b'}]"'
_INIT_WORDS = 64  # more than LlgConstraintInit has, whichever its version
_LOG_LEVELS_WORD = 1  # of LlgConstraintInit
_VOCABULARY_KIND, _ADDS_BLANK = "tokenizer.ggml.model", "tokenizer.ggml.add_space_prefix"
_KINDS_WITH_BLANKS = ("llama", "t5")
_TOO_COMPLEX = ("too complex", "toocomplex", "fuel", "too many", "too large")
_PLACE, _QUOTE = re.compile(r"^at \d+\(\d+\): "), "\n   1 | "
_SCHEMA_REPORT = "failed to compile JSON schema: "


class ConstraintError(Exception):
    """llguidance does not take the constraint, or cannot continue with it."""

    def __init__(self, report: str) -> None:
        super().__init__(report)
        problem = report.partition(_QUOTE)[0].lower()
        self.is_too_complex = any(phrase in problem for phrase in _TOO_COMPLEX)

    @property
    def reason(self) -> str:
        """The report without its place, and without the grammar that it quotes."""
        reason = _PLACE.sub("", str(self).partition(_QUOTE)[0])
        return " ".join(reason.removeprefix(_SCHEMA_REPORT).split())


DROPPED = ConstraintError("llama.cpp no longer enforces the constraint")


class _TokenizerInit(ctypes.Structure):
    _fields_ = (
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", ctypes.c_void_p),
        ("token_bytes", ctypes.c_void_p),
        ("tokenizer_json", ctypes.c_char_p),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", ctypes.c_void_p),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("tokenize_user_data", ctypes.c_void_p),
        ("slices", ctypes.c_void_p),
        ("reserved", ctypes.c_uint64 * 16),  # fields of later versions
    )


class LlguidanceLibrary:
    """llguidance's functions in a shared library. Raises `OSError` or `AttributeError` if it does not export them."""

    def __init__(self, path: str, get_piece: Callable[[int], bytes] | None = None) -> None:
        self._get_piece = get_piece
        self.functions = ctypes.CDLL(path)
        self._declare("llg_new_tokenizer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
        self._declare("llg_constraint_init_set_defaults", None, ctypes.c_void_p, ctypes.c_void_p)
        self._declare("llg_new_matcher", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
        self._declare("llg_clone_matcher", ctypes.c_void_p, ctypes.c_void_p)
        self._declare("llg_free_matcher", None, ctypes.c_void_p)
        self._declare("llg_matcher_get_error", ctypes.c_char_p, ctypes.c_void_p)
        self._declare("llg_matcher_consume_tokens", ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self._declare("llg_matcher_compute_mask", ctypes.c_int32, ctypes.c_void_p)
        self._declare("llg_matcher_get_mask", ctypes.POINTER(ctypes.c_uint32), ctypes.c_void_p)
        self._declare("llg_matcher_is_accepting", ctypes.c_bool, ctypes.c_void_p)
        self._declare("llg_matcher_is_stopped", ctypes.c_bool, ctypes.c_void_p)
        self._tokenizer = self._create_tokenizer([*_BYTE_TOKENS, _SPECIAL_MARKER + b"<end>"], _END_TOKEN)
        self._vocabulary_tokenizer: int | None = None  # created when an output is continued
        self._compiled: dict[str, LlguidanceMatcher | ConstraintError] = {}  # oldest first
        self._compile_lock = threading.Lock()  # one at a time: compiling takes the processor from the model
        self._clone_lock = threading.Lock()

    def _declare(self, name: str, result: Any, *arguments: Any) -> None:
        function = getattr(self.functions, name)
        function.restype, function.argtypes = result, arguments

    def _create_tokenizer(self, tokens: Sequence[bytes], end_token: int) -> int:
        lengths = (ctypes.c_uint32 * len(tokens))(*map(len, tokens))
        text = ctypes.create_string_buffer(b"".join(tokens))
        init = _TokenizerInit(
            vocab_size=len(tokens),
            tok_eos=end_token,
            token_lens=ctypes.addressof(lengths),
            token_bytes=ctypes.addressof(text),
            use_approximate_greedy_tokenize_fn=True,
        )
        problem = ctypes.create_string_buffer(1024)
        tokenizer = self.functions.llg_new_tokenizer(ctypes.byref(init), problem, len(problem))
        if not tokenizer:
            raise OSError(f"llguidance takes no tokenizer: {problem.value.decode(errors='replace')}")
        return int(tokenizer)

    def start(self, grammar: str, is_cancelled: Callable[[], bool] = lambda: False) -> OutputFollower:
        """Return a follower at the start of the output. Raises `ConstraintError`, or `Cancelled` after a wait."""
        compiled = self._compiled.get(grammar) or self._compile(grammar, is_cancelled)
        if isinstance(compiled, ConstraintError):
            raise ConstraintError(str(compiled))  # a new one: a traceback keeps its request in memory
        with self._clone_lock:
            return OutputFollower(compiled.clone(), self._get_piece)

    @property
    def skips_blanks(self) -> bool:
        """Whether llama.cpp follows tokens without the blank that words begin with."""
        return self._get_piece is not None

    def start_with_vocabulary(self, grammar: str, pieces: Sequence[bytes], end_token: int) -> LlguidanceMatcher:
        """Return a matcher of the model's tokens at the start of the output. Raises `ConstraintError`."""
        with self._compile_lock:
            if self._vocabulary_tokenizer is None:
                tokens = [piece or _SPECIAL_MARKER + b"<%d>" % token for token, piece in enumerate(pieces)]
                self._vocabulary_tokenizer = self._create_tokenizer(tokens, end_token)
            return self._create_matcher(grammar, self._vocabulary_tokenizer, len(pieces))

    def _compile(self, grammar: str, is_cancelled: Callable[[], bool]) -> LlguidanceMatcher | ConstraintError:
        with self._compile_lock:
            if is_cancelled():
                raise Cancelled("the request was cancelled")
            compiled = self._compiled.get(grammar)
            if compiled is None:
                compiled = self._compiled[grammar] = self._try_compile(grammar)
                if len(self._compiled) > _CACHE_SIZE:
                    del self._compiled[next(iter(self._compiled))]
            return compiled

    def _try_compile(self, grammar: str) -> LlguidanceMatcher | ConstraintError:
        try:
            return self._compile_and_try(grammar)
        except ConstraintError as problem:
            return problem.with_traceback(None)

    def _compile_and_try(self, grammar: str) -> LlguidanceMatcher:
        matcher = self._create_matcher(grammar, self._tokenizer, len(_BYTE_TOKENS))
        matcher.clone().try_texts()
        return matcher

    def _create_matcher(self, grammar: str, tokenizer: int, vocabulary_size: int) -> LlguidanceMatcher:
        init = (ctypes.c_uint64 * _INIT_WORDS)()
        self.functions.llg_constraint_init_set_defaults(init, tokenizer)
        init[_LOG_LEVELS_WORD] = 0
        handle = self.functions.llg_new_matcher(init, b"lark", grammar.encode())
        matcher = LlguidanceMatcher(self.functions, handle, vocabulary_size)
        matcher.check()
        return matcher


class OutputFollower:
    """Follows one output within its constraint.

    Where words begin with a blank, llguidance inside llama.cpp sees each token without it, and the client does not. Then
    two matchers follow the output, one with these blanks and one without, as long as they can.
    """

    def __init__(self, matcher: LlguidanceMatcher, get_piece: Callable[[int], bytes] | None) -> None:
        self._exact: LlguidanceMatcher | None = matcher
        self._stripped = None if get_piece is None else matcher.clone()
        self._get_piece = get_piece

    def consume(self, text: str, tokens: Sequence[int]) -> bool:
        """Add to the output. Returns False if the constraint does not allow it, or cannot be followed any further."""
        if self._exact is not None and not self._exact.consume(text.encode()):
            self._exact = None
        if self._stripped is not None and self._get_piece is not None:
            pieces = [self._get_piece(token).removeprefix(b" ") for token in tokens]
            if not self._stripped.consume(b"".join(pieces)):
                self._stripped = None
        return bool(self._list_matchers())

    def _list_matchers(self) -> list[LlguidanceMatcher]:
        return [matcher for matcher in (self._exact, self._stripped) if matcher is not None]

    def is_accepting(self) -> bool:
        return any(matcher.is_accepting() for matcher in self._list_matchers())

    def is_complete(self) -> bool:
        """Return whether nothing may follow."""
        return all(matcher.is_complete() for matcher in self._list_matchers())


class LlguidanceMatcher:
    """Where one output stands in its constraint."""

    def __init__(self, functions: Any, handle: int | None, vocabulary_size: int) -> None:
        self._functions = functions
        self._handle = handle
        self._vocabulary_size = vocabulary_size
        if not handle:
            raise ConstraintError("llguidance returned no matcher")

    def __del__(self) -> None:
        if self._handle:
            self._functions.llg_free_matcher(self._handle)
            self._handle = 0

    def clone(self) -> LlguidanceMatcher:
        return LlguidanceMatcher(
            self._functions, self._functions.llg_clone_matcher(self._handle), self._vocabulary_size
        )

    def check(self) -> None:
        problem = self._functions.llg_matcher_get_error(self._handle)
        if problem:
            raise ConstraintError(problem.decode(errors="replace"))

    def consume(self, data: bytes) -> bool:
        """Add to the output. Returns False if the constraint does not allow it, or cannot be followed any further."""
        return self.consume_tokens(data)

    def consume_tokens(self, ids: Sequence[int]) -> bool:
        tokens = (ctypes.c_uint32 * len(ids))(*ids)
        return bool(self._functions.llg_matcher_consume_tokens(self._handle, tokens, len(ids)) == 0)

    def is_accepting(self) -> bool:
        return bool(self._functions.llg_matcher_is_accepting(self._handle))

    def is_complete(self) -> bool:
        """Return whether nothing may follow."""
        return bool(self._functions.llg_matcher_is_stopped(self._handle))

    def try_texts(self) -> None:
        """Follow some short texts. Raises `ConstraintError` if llguidance cannot: then llama.cpp could not either."""
        for seed in range(2):
            matcher, choices = self.clone(), random.Random(seed)
            for _ in range(_TRIAL_BYTES):
                allowed = list(matcher.iter_allowed())
                if not allowed:
                    break
                closing = [byte for byte in allowed if byte in _CLOSING_BYTES]
                matcher.consume(bytes([choices.choice(closing if closing and seed else allowed)]))
                matcher.check()

    def iter_allowed(self) -> Iterator[int]:
        """Yield the bytes that may follow."""
        if self.is_complete():
            return
        mask = self._compute_mask()
        yield from (byte for byte in range(255) if mask[byte // 32] >> (byte % 32) & 1)

    def find_allowed_ranges(self) -> list[tuple[int, int]]:
        """Return the tokens that may follow, as ranges with both ends."""
        words = -(-self._vocabulary_size // 32)
        bits = int.from_bytes(ctypes.string_at(self._compute_mask(), 4 * words), "little")
        text = f"{bits & (1 << self._vocabulary_size) - 1:b}"[::-1]
        return [(match.start(), match.end() - 1) for match in re.finditer("1+", text)]

    def _compute_mask(self) -> Any:
        if self._functions.llg_matcher_compute_mask(self._handle):
            self.check()
        return self._functions.llg_matcher_get_mask(self._handle)


def load_llguidance(library: Any, file: GgufFile, get_piece: Callable[[int], bytes]) -> LlguidanceLibrary | None:
    """Return llguidance's functions in xllamacpp; None if this build does not export them."""
    has_blanks = file.metadata.get(_VOCABULARY_KIND) in _KINDS_WITH_BLANKS and file.metadata.get(_ADDS_BLANK, True)
    try:
        return LlguidanceLibrary(library.xllamacpp.__file__, get_piece if has_blanks else None)
    except (AttributeError, OSError):
        return None
