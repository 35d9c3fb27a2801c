"""Converts the vocabulary of a GGUF file to a `tokenizers.Tokenizer`.

Supports byte-level BPE (`gpt2`) with a known pre-tokenizer, and SentencePiece BPE (`llama`). Others raise
`Unsupported` and need the engine's own tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from enginebay.errors import ModelInvalid, Unsupported
from enginebay.text.gguf.gguf_reader import GgufFile, read_special_tokens
from enginebay.text.tokenization.pretokenizers import GPT2, PRETOKENIZERS, PreTokenizerSpec

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5

SENTENCEPIECE_SPACE = "\u2581"  # SentencePiece's visible space


def convert_gguf_tokenizer(file: GgufFile) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer and the content of its tokenizer_config.json."""
    model = file.get("tokenizer.ggml.model", str, "none")
    tokens = _read_strings(file, "tokenizer.ggml.tokens")
    if model == "gpt2":
        built, add_bos = _build_byte_level_bpe(file, tokens)
    elif model == "llama":
        built, add_bos = _build_sentencepiece_bpe(file, tokens), True
    else:
        raise _unsupported_error(file, f"the tokenizer model {model!r}")
    _add_special_tokens(built, tokens, _read_token_types(file, tokens))
    named = read_special_tokens(file)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": file.get("tokenizer.ggml.add_bos_token", bool, add_bos) and "bos_token" in named,
        "add_eos_token": file.get("tokenizer.ggml.add_eos_token", bool, False) and "eos_token" in named,
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.context_length or 10**30,
        **named,
    }
    built.post_processor = _build_post_processor(built, config)
    return built, config


def _unsupported_error(file: GgufFile, feature: str) -> Unsupported:
    return Unsupported(f"{feature} of {file.path.name} is not supported", "use the engine's own tokenizer")


def _read_strings(file: GgufFile, key: str) -> list[str]:
    values = file.metadata.get(key)
    if not isinstance(values, Sequence) or isinstance(values, str) or (len(values) and not isinstance(values[0], str)):
        raise ModelInvalid(f"{file.path} has no {key}", "use another GGUF conversion of the model")
    return list(values)


def _read_token_types(file: GgufFile, tokens: list[str]) -> Sequence[int]:
    types = file.metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelInvalid(f"{file.path} has {len(tokens)} tokens but {len(types)} token types", "fetch the file again")
    return tuple(types)


def _build_vocabulary(file: GgufFile, tokens: list[str]) -> dict[str, int]:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise _unsupported_error(file, "a vocabulary with repeated tokens")
    return vocabulary


def _build_byte_level_bpe(file: GgufFile, tokens: list[str]) -> tuple[Tokenizer, bool]:
    name = file.get("tokenizer.ggml.pre", str, "default")
    if name not in PRETOKENIZERS:
        raise _unsupported_error(file, f"the pre-tokenizer {name!r}")
    pretokenizer = PRETOKENIZERS[name]
    vocabulary = _build_vocabulary(file, tokens)
    merges = [_split_merge(merge) for merge in _read_strings(file, "tokenizer.ggml.merges")]
    # A merge of tokens outside the vocabulary can never apply, and the library rejects it.
    known = [pair for pair in merges if pair[0] in vocabulary and pair[1] in vocabulary and "".join(pair) in vocabulary]
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=known, ignore_merges=pretokenizer.ignore_merges))
    built.pre_tokenizer = _build_pre_tokenizer(pretokenizer)
    built.decoder = decoders.ByteLevel()
    return built, pretokenizer.add_bos


def _split_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")  # the first character may be the space itself
    return merge[:1] + left, right


def _build_pre_tokenizer(pretokenizer: PreTokenizerSpec) -> Any:
    if pretokenizer.patterns[-1] == GPT2:  # the library has this pattern built in, which is faster
        splits, last = pretokenizer.patterns[:-1], pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        splits, last = pretokenizer.patterns, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splits]
    return pre_tokenizers.Sequence([*steps, last]) if steps else last


def _build_sentencepiece_bpe(file: GgufFile, tokens: list[str]) -> Tokenizer:
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not scores or len(scores) != len(tokens):
        raise ModelInvalid(f"{file.path} does not have one score per token", "use another GGUF conversion of the model")
    types = _read_token_types(file, tokens)
    vocabulary = _build_vocabulary(file, tokens)
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    built = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_derive_merges(tokens, scores, types, vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback="<0x0A>" in vocabulary,
        )
    )
    prefix = file.get("tokenizer.ggml.add_space_prefix", bool, True)
    spaces = normalizers.Replace(" ", SENTENCEPIECE_SPACE)
    built.normalizer = normalizers.Sequence([normalizers.Prepend(SENTENCEPIECE_SPACE), spaces]) if prefix else spaces
    steps: list[Any] = [decoders.Replace(SENTENCEPIECE_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    built.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return built


def _derive_merges(
    tokens: list[str], scores: Sequence[float], types: Sequence[int], vocabulary: dict[str, int]
) -> list[tuple[str, str]]:
    """Return merges in order of score. SentencePiece joins the pair whose union scores best, which is the same."""
    scored: list[tuple[float, int, int, str, str]] = []
    for token, score, kind in zip(tokens, scores, types, strict=True):
        if kind not in (NORMAL, UNUSED) or len(token) < 2:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                scored.append((-score, -len(left), -len(right), left, right))
    scored.sort()
    return [(left, right) for *_, left, right in scored]


def _add_special_tokens(built: Tokenizer, tokens: list[str], types: Sequence[int]) -> None:
    """Add control and user-defined tokens, which are split off before anything else; the latter stay visible."""
    added = [
        AddedToken(token, special=kind != USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (CONTROL, USER_DEFINED, UNKNOWN) and token
    ]
    built.add_tokens(added)


def _build_post_processor(built: Tokenizer, config: dict[str, Any]) -> Any:
    """Return the post-processor that adds the bos and eos tokens as configured."""
    first = [config["bos_token"]] if config["add_bos_token"] else []
    last = [config["eos_token"]] if config["add_eos_token"] else []
    special = [(token, built.token_to_id(token)) for token in {*first, *last}]
    return processors.TemplateProcessing(single=[*first, "$A", *last], special_tokens=special)
