"""Small tokenizers of the three usual kinds, trained in the test."""

from __future__ import annotations

from functools import cache
from itertools import product

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Raw

from enginebay.text.tokenization.tokenizer import Tokenizer

WORDS = ["".join(letters) for letters in product("bdgklmnprst", "aeiou", "lmnrs")]  # 275 of them
SPECIAL = "<|end|>"
FIRST = "<s>"


@cache
def make_byte_level() -> Tokenizer:
    """Like GPT-2: the space belongs to the next word; no special tokens are added."""
    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(
        raw,
        trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, special_tokens=[SPECIAL], show_progress=False),
    )
    return Tokenizer(raw, {"eos_token": SPECIAL})


@cache
def make_sentencepiece() -> Tokenizer:
    """Like Llama 2: adds a leading space and a BOS token."""
    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    _train(raw, trainers.BpeTrainer(vocab_size=3000, special_tokens=[SPECIAL, FIRST], show_progress=False))
    raw.post_processor = processors.TemplateProcessing(
        single=[FIRST, "$A"], special_tokens=[(FIRST, raw.token_to_id(FIRST))]
    )
    return Tokenizer(raw, {"eos_token": SPECIAL, "bos_token": FIRST})


@cache
def make_wordpiece() -> Tokenizer:
    """Like BERT: splits at spaces, which no token contains."""
    vocabulary = {token: place for place, token in enumerate(["[UNK]", *WORDS, "##ly", "x"])}
    raw = Raw(models.WordPiece(vocabulary, unk_token="[UNK]"))
    raw.normalizer = normalizers.Lowercase()
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.decoder = decoders.WordPiece()
    raw.add_special_tokens([AddedToken("[UNK]", special=True)])
    return Tokenizer(raw, {})


def _train(raw: Raw, trainer: trainers.BpeTrainer) -> None:
    raw.train_from_iterator([" ".join(("", *WORDS))] * 3, trainer)


KINDS = {"byte level": make_byte_level, "sentencepiece": make_sentencepiece, "wordpiece": make_wordpiece}
