"""Encodes text to token ids and decodes them, without any engine's library.

    tokenizer = load_tokenizer(path)                    # a model directory or a GGUF file
    ids = tokenizer.encode("hello", add_special=True)
    text = tokenizer.decode(ids)
    tokenizer.bos_id, tokenizer.eos_ids, tokenizer.special_tokens["eos_token"], tokenizer.vocabulary_size

A GGUF vocabulary is converted to a Hugging Face tokenizer folder (tokenizer.json, tokenizer_config.json,
chat_template.jinja), which loads several times faster. The folder is cached next to files in the model store, which
have a manifest.json; nothing is written next to other files.
Raises `Unsupported` if only the engine's own tokenizer works, `ModelInvalid` for broken files.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebay.errors import InvalidRequest, ModelInvalid, Unsupported
from enginebay.text.gguf.gguf_reader import GgufFile, read_gguf, read_special_tokens
from enginebay.text.tokenization.special_text import SpecialText
from enginebay.util.atomic_file import read_json_object, read_json_or_none

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RawTokenizer

_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
CONVERSION_VERSION = 1  # increment when the conversion changes, to invalidate cached tokenizers
STAMP_FILE = "made_from.json"
MANIFEST_FILE = "manifest.json"
CACHE_FOLDER = "tokenizer"


class Tokenizer:
    """A model's tokenizer. Thread-safe."""

    def __init__(self, raw: RawTokenizer, special_tokens: Mapping[str, str], eos_ids: Iterable[int] = ()) -> None:
        self.raw = raw
        self.special_tokens = dict(special_tokens)  # by names of chat templates: "bos_token" -> "<s>"
        self.bos_id = self._find_id("bos_token")
        self.eos_id = self._find_id("eos_token")
        main = () if self.eos_id is None else (self.eos_id,)
        self.eos_ids = tuple(dict.fromkeys((*main, *eos_ids)))  # all that end an answer
        added = raw.get_added_tokens_decoder()
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        self.added_ids = frozenset(added)
        self.byte_level = "ByteLevel" in repr(raw.decoder)  # tokens use the byte-level BPE alphabet
        self.vocabulary_size: int = raw.get_vocab_size(with_added_tokens=True)

    def _find_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.raw.token_to_id(token)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the token ids of a text. Special tokens in the text are recognized, as in every engine."""
        return self.encode_batch((text,), add_special)[0]

    def encode_batch(self, texts: Sequence[str], add_special: bool = True) -> list[list[int]]:
        """Encode many texts. Releases the GIL meanwhile, which the library's `encode` does not."""
        try:
            return [encoding.ids for encoding in self.raw.encode_batch(list(texts), add_special_tokens=add_special)]
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidRequest("the text is not valid Unicode", "remove lone surrogates", param="prompt") from error

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        return self.raw.decode(list(ids), skip_special_tokens=skip_special)

    @cached_property
    def special_text(self) -> SpecialText:
        return SpecialText(self.raw)

    def id_to_token(self, number: int) -> str | None:
        """Return a token as spelled in the vocabulary."""
        return self.raw.id_to_token(number)


def decode_token_bytes(tokenizer: Tokenizer, number: int) -> bytes:
    """Return the bytes of one token; for a special token, those of its name."""
    token = tokenizer.id_to_token(number)
    if token is None:
        return b""
    if number in tokenizer.added_ids:
        return token.encode()
    if tokenizer.byte_level:
        table = _build_byte_level_table()
        return bytes(table[char] for char in token if char in table)
    if match := _BYTE_TOKEN.match(token):
        return bytes((int(match[1], 16),))
    if token.startswith("##"):  # WordPiece: within a word
        return token[2:].encode()
    return token.replace("▁", " ").encode()


@lru_cache(maxsize=1)
def _build_byte_level_table() -> dict[str, int]:
    """Map characters to bytes. Printable bytes stand for themselves; the others are numbered from 256, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a model directory or a GGUF file."""
    if path.is_dir():
        return _load_from_directory(path)
    if (path.parent / MANIFEST_FILE).is_file():
        with suppress(OSError):  # a full or read-only disk only costs time
            return _load_from_directory(ensure_converted_tokenizer(path, path.parent / CACHE_FOLDER))
    file = read_gguf(path)
    built, _ = convert_vocabulary(file)
    return Tokenizer(built, read_special_tokens(file), _read_end_token_ids(file))


def ensure_converted_tokenizer(path: Path, cache: Path) -> Path:
    """Return the folder with the converted tokenizer of a GGUF file. Converts it if missing or out of date."""
    stamp = _compute_stamp(path)
    if read_json_or_none(cache / STAMP_FILE) == stamp:
        return cache
    fresh = cache.with_name(f".{cache.name}-{os.getpid()}-{secrets.token_hex(4)}")
    fresh.mkdir(parents=True)
    try:
        write_tokenizer(path, fresh)
        (fresh / STAMP_FILE).write_text(json.dumps(stamp))
        _move_into_place(fresh, cache)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return cache


def _move_into_place(fresh: Path, target: Path) -> None:
    """Replace `target`. If another process does the same, either folder is correct and the loser gives up."""
    old = fresh.with_name(f"{fresh.name}-old")
    with suppress(FileNotFoundError):
        target.rename(old)
    try:
        fresh.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _compute_stamp(path: Path) -> dict[str, Any]:
    try:
        status = path.stat()
    except OSError as error:
        raise ModelInvalid(f"{path} cannot be read: {error.strerror}") from error
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "conversion": CONVERSION_VERSION}


def write_tokenizer(gguf: Path, folder: Path) -> None:
    """Write the tokenizer and chat template of a GGUF file into `folder` in Hugging Face form."""
    file = read_gguf(gguf)
    built, config = convert_vocabulary(file)
    content = json.loads(built.to_str())
    # Merges as strings load a third faster. Safe only if no token holds a space.
    if all(" " not in part for pair in content["model"]["merges"] for part in pair):
        content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    _write_json(folder / "tokenizer.json", content, indent=None)
    _write_json(folder / "tokenizer_config.json", config, indent=2)
    if file.chat_template is not None:
        (folder / "chat_template.jinja").write_text(file.chat_template, encoding="utf-8")
    _write_json(folder / "generation_config.json", {"eos_token_id": _read_end_token_ids(file)}, indent=2)


def convert_vocabulary(file: GgufFile) -> tuple[RawTokenizer, dict[str, Any]]:
    from enginebay.text.tokenization.gguf_tokenizer import convert_gguf_tokenizer  # lazy: a slow import

    return convert_gguf_tokenizer(file)


def _read_end_token_ids(file: GgufFile) -> list[int]:
    """Return the ids that end an answer: end of sequence, turn and message."""
    ids = (file.get(f"tokenizer.ggml.{name}_token_id", int, None) for name in ("eos", "eot", "eom"))
    return list(dict.fromkeys(number for number in ids if number is not None))


def _write_json(path: Path, content: Any, indent: int | None) -> None:
    separators = (",", ":") if indent is None else None
    path.write_text(json.dumps(content, ensure_ascii=False, indent=indent, separators=separators), encoding="utf-8")


def _load_from_directory(folder: Path) -> Tokenizer:
    if not (folder / "tokenizer.json").is_file():
        raise Unsupported(f"{folder} has no tokenizer.json", "use the engine's own tokenizer")
    # A request uses one thread. With more, the library warns on stderr at every fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer as Raw

    try:
        raw = Raw.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises plain Exception
        raise ModelInvalid(f"{folder / 'tokenizer.json'} cannot be read: {error}", "fetch the model again") from error
    # Some models ship with truncation and padding on, which would silently lose text.
    raw.no_truncation()
    raw.no_padding()
    config = _read_object(folder / "tokenizer_config.json")
    special = load_special_tokens(folder)
    _add_declared_tokens(raw, config, special)
    _override_post_processor(raw, config, special)
    return Tokenizer(raw, special, _read_eos_ids(folder))


def load_special_tokens(path: Path) -> dict[str, str]:
    """Return the special tokens of a directory or a GGUF file by their names in chat templates."""
    if not path.is_dir():
        return read_special_tokens(read_gguf(path))
    config = _read_object(path / "tokenizer_config.json")
    older = _read_object(path / "special_tokens_map.json")
    tokens = {name: _extract_token_text(config.get(name, older.get(name))) for name in SPECIAL_TOKEN_NAMES}
    return {name: token for name, token in tokens.items() if token}


def _extract_token_text(token: Any) -> str | None:
    """Return the text of a token given as a string or as an object with `content`."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def _add_declared_tokens(raw: RawTokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Add tokens that only tokenizer_config.json declares."""
    from tokenizers import AddedToken

    present = {token.content for token in raw.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder") or {}
    tokens = []
    for _, fields in sorted(declared.items(), key=lambda item: int(item[0])):
        tokens.append(AddedToken(fields["content"], **{flag: bool(fields.get(flag)) for flag in TOKEN_FLAGS}))
    tokens += [AddedToken(token, special=True) for token in special.values()]
    for extra in (config.get("additional_special_tokens"), config.get("extra_special_tokens")):
        listed = extra if isinstance(extra, list) else []
        tokens += [AddedToken(token, special=True) for token in map(_extract_token_text, listed) if token]
    missing = {token.content: token for token in reversed(tokens) if token.content not in present}
    if missing:
        raw.add_tokens(list(reversed(missing.values())))


def _override_post_processor(raw: RawTokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Apply add_bos_token and add_eos_token of the config, which override tokenizer.json."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    from tokenizers import processors

    first = [special["bos_token"]] if config.get("add_bos_token") and "bos_token" in special else []
    last = [special["eos_token"]] if config.get("add_eos_token") and "eos_token" in special else []
    ids = [(token, raw.token_to_id(token)) for token in dict.fromkeys((*first, *last))]
    raw.post_processor = processors.TemplateProcessing(single=[*first, "$A", *last], special_tokens=ids)


def _read_eos_ids(folder: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        value = _read_object(folder / name).get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        ids = [number for number in values if isinstance(number, int)]
        if ids:
            return ids
    return []


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing."""
    try:
        return read_json_object(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelInvalid(f"{path} cannot be read: {error}", "fetch the model again") from error
