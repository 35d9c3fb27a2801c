"""Encodes text that spells a special token, such as <|im_end|>, as the plain text that it is.

Special is what the tokenizer marks so, and what is written like it: DeepSeek does not mark its <｜User｜>.

A chat template writes special tokens as text, and so could a user, who would end a message or forge another one.

    escaped = special_text.escape(messages)             # None: no message spells a special token
    prompt = template.render(messages=escaped.value)    # with stand-ins for what the user spelled
    ids = special_text.encode(prompt, escaped.literals)

The template's own special tokens stay special. The rest is encoded in one piece, as if the user's text had no meaning.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from enginebay.errors import InvalidRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RawTokenizer

_STAND_INS = range(0xF0000, 0xFFFFE)  # characters without a meaning
_NAMES = range(0x100000, 0x10FFFE)  # others, for names in the twin
_NAME_CHARS = 12
_CONTROL_SHAPE = re.compile("<[|\uff5c][^<>]+[|\uff5c]>")


class Escaped(NamedTuple):
    """A value with stand-ins, and the text of each stand-in."""

    value: Any
    literals: dict[str, str]


class _Twin(NamedTuple):
    """The same tokenizer, but its special tokens have names that nobody can guess."""

    raw: RawTokenizer
    names: dict[str, str]  # special text -> its name
    ids: dict[int, int]  # ids of added tokens -> the original ids


class SpecialText:
    """The texts of a tokenizer's special tokens. Thread-safe."""

    def __init__(self, raw: RawTokenizer) -> None:
        self._raw = raw
        self._added = raw.get_added_tokens_decoder()
        self._control_ids = {number for number, token in self._added.items() if _is_control(token)}
        texts = {self._added[number].content for number in self._control_ids}
        self._pattern = re.compile(build_pattern(texts) or r"(?!)")
        # A fast test of a whole request: its JSON has the same texts, but for a few escapes.
        dumped = {_dump(text)[1:-1] for text in texts}
        self._openings = tuple({text[:2] for text in dumped})
        self._dumped_pattern = re.compile((build_pattern(map(bytes.decode, dumped)) or r"(?!)").encode())

    def count(self, text: str) -> int:
        """Return how many special tokens a text spells."""
        return sum(1 for _ in self._pattern.finditer(text))

    def escape(self, value: Any) -> Escaped | None:
        """Return nested lists and mappings with a stand-in for each special token; None if there is none."""
        if not self._may_spell(value):
            return None
        spelled = dict.fromkeys(match[0] for text in _iter_texts(value) for match in self._pattern.finditer(text))
        if not spelled:
            return None
        used = {char for text in _iter_texts(value) for char in text if char > "\U000effff"}
        free = (chr(number) for number in _STAND_INS if chr(number) not in used)
        stand_ins = dict(zip(spelled, free, strict=False))
        if len(stand_ins) < len(spelled):
            raise InvalidRequest("the messages use every private-use character", param="messages")
        escaped = _map_texts(value, lambda text: self._pattern.sub(lambda match: stand_ins[match[0]], text))
        return Escaped(escaped, {char: text for text, char in stand_ins.items()})

    def _may_spell(self, value: Any) -> bool:
        """Return false for most values without a special token, at the speed of their encoding as JSON."""
        try:
            dumped = _dump(value)
        except (TypeError, ValueError):  # not JSON: from Python, or a lone surrogate
            return True
        return any(opening in dumped for opening in self._openings) and bool(self._dumped_pattern.search(dumped))

    def encode(self, text: str, literals: Mapping[str, str], add_special: bool = False) -> list[int]:
        """Return the token ids of a text with stand-ins. Special tokens that it spells itself are recognized."""
        twin = self._twin
        named = self._pattern.sub(lambda match: twin.names[match[0]], text)
        for stand_in, literal in literals.items():
            named = named.replace(stand_in, literal)
        try:
            [encoding] = twin.raw.encode_batch([named], add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidRequest("the text is not valid Unicode", "remove lone surrogates", param="messages") from error
        ids: list[int] = []
        for number, piece in zip(encoding.ids, encoding.tokens, strict=True):
            if number in twin.ids:
                ids.append(twin.ids[number])
            elif number in self._added:
                ids += self._split_special(number, piece)
            else:
                ids.append(number)
        return self._add_special(ids) if add_special else ids

    def encode_literally(self, text: str, add_special: bool) -> list[int]:
        """Return the token ids of a text of which nothing is special."""
        escaped = self.escape(text) or Escaped(text, {})
        return self.encode(escaped.value, escaped.literals, add_special)

    @cached_property
    def _twin(self) -> _Twin:
        from tokenizers import Tokenizer as Raw

        secret = "".join(chr(secrets.choice(_NAMES)) for _ in range(_NAME_CHARS))
        twin = Raw(self._raw.model)  # shares the vocabulary
        if self._raw.normalizer is not None:
            twin.normalizer = self._raw.normalizer
        if self._raw.pre_tokenizer is not None:
            twin.pre_tokenizer = self._raw.pre_tokenizer
        names = {
            number: f"{secret}{chr(_NAMES[index])}" if number in self._control_ids else token.content
            for index, (number, token) in enumerate(sorted(self._added.items()))
        }
        twin.add_tokens([f"{secret}{secret}{count}" for count in range(_count_holes(twin))])
        twin.add_tokens([_rename_token(self._added[number], name) for number, name in names.items()])
        texts = {self._added[number].content: names[number] for number in self._control_ids}
        ids = {twin.token_to_id(name): number for number, name in names.items()}
        return _Twin(twin, texts, {twin_id: number for twin_id, number in ids.items() if twin_id is not None})

    def _split_special(self, number: int, piece: str) -> list[int]:
        """Return the ids of a special token's text. Some vocabularies have special tokens as pieces of text, too."""
        token, model = self._added[number], self._raw.model
        if number not in self._control_ids or piece != token.content or piece == getattr(model, "unk_token", None):
            return [number]
        return [part.id for half in (piece[:1], piece[1:]) for part in model.tokenize(half)]

    def _add_special(self, ids: list[int]) -> list[int]:
        """Add what the tokenizer adds to every text, such as a bos token."""
        inner = self._raw.encode("a", add_special_tokens=False).ids
        outer = self._raw.encode("a", add_special_tokens=True).ids
        start = next((at for at in range(len(outer)) if outer[at : at + len(inner)] == inner), 0)
        return [*outer[:start], *ids, *outer[start + len(inner) :]]


def _is_control(token: Any) -> bool:
    return bool(token.content) and (token.special or _CONTROL_SHAPE.fullmatch(token.content) is not None)


def _count_holes(raw: RawTokenizer) -> int:
    """Return how many ids to skip: new tokens are numbered from the vocabulary's size, which a gap makes too small."""
    vocabulary = raw.get_vocab(with_added_tokens=False)
    return max(vocabulary.values(), default=-1) + 1 - len(vocabulary)


def _rename_token(token: Any, name: str) -> Any:
    from tokenizers import AddedToken

    flags = {flag: getattr(token, flag) for flag in ("single_word", "lstrip", "rstrip", "special")}
    return AddedToken(name, normalized=token.normalized and not token.special, **flags)


def build_pattern(texts: Iterable[str]) -> str:
    """Return a regex that finds any of the texts, the longest first. As a trie it stays fast for thousands. Pure."""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[:1], []).append(text[1:])
    ends_here = by_first.pop("", None) is not None
    branches = [re.escape(first) + build_pattern(rest) for first, rest in by_first.items()]
    if not branches:
        return ""
    body = branches[0] if len(branches) == 1 and not ends_here else f"(?:{'|'.join(branches)})"
    return f"{body}?" if ends_here else body


def _dump(value: Any) -> bytes:
    from msgspec.json import encode  # slow to import

    return encode(value)


def _iter_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _iter_texts(key)
            yield from _iter_texts(child)
    elif isinstance(value, (list, tuple)):
        for child in value:
            yield from _iter_texts(child)


def _map_texts(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_texts(key, change): _map_texts(child, change) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_texts(child, change) for child in value]
    return value
