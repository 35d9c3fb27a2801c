"""Pre-tokenizers of byte-level BPE models, by their name in GGUF files (`tokenizer.ggml.pre`).

Each entry does what the model's own tokenizer.json does: regular expressions that isolate their matches, applied in
order, then the byte alphabet. An unknown name is not guessed: the engine's own tokenizer is used then. llama.cpp splits
the same way except for `tekken` and `gpt-4o`, where it treats combining marks without a letter as punctuation.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"


def _build_words_pattern(numbers: str) -> str:
    """Return the pattern of GPT-4's cl100k and its derivatives, which differ in how they group digits."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _build_cased_words_pattern(contractions: str, numbers: str) -> str:
    """Return the pattern of GPT-4o's o200k, which splits words where lower case turns into upper case."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{start}{_UPPER}*{_LOWER}+{contractions}|{start}{_UPPER}+{_LOWER}*{contractions}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


@dataclass(frozen=True, slots=True)
class PreTokenizerSpec:
    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token stays whole
    add_bos: bool = False  # default if the file does not say


LLAMA3 = PreTokenizerSpec((_build_words_pattern(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
QWEN2 = PreTokenizerSpec((_build_words_pattern(DIGIT),))
SPLIT_DIGITS = PreTokenizerSpec((DIGIT, GPT2))
PLAIN_GPT2 = PreTokenizerSpec((GPT2,))
DEEPSEEK3 = PreTokenizerSpec(
    (
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    )
)
BLOOM = PreTokenizerSpec((" ?[^(\\s|.,!?…。，、।۔،)]+",))
# What llama.cpp does for files without a pre-tokenizer name, mostly older ones.
DEFAULT_PRETOKENIZER = PreTokenizerSpec((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

PRETOKENIZERS: dict[str, PreTokenizerSpec] = {
    "default": DEFAULT_PRETOKENIZER,
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), LLAMA3),
    **dict.fromkeys(
        ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenizerSpec((_build_words_pattern(r"\p{N}{1,3}"),))
    ),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2", "solar-open", "kormo", "f2llmv2"),
        QWEN2,
    ),
    "qwen35": PreTokenizerSpec(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        )
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), SPLIT_DIGITS
    ),
    **dict.fromkeys(
        (
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
        ),
        PLAIN_GPT2,
    ),
    **dict.fromkeys(("granite-docling", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"), PLAIN_GPT2),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), DEEPSEEK3),
    "deepseek-coder": PreTokenizerSpec(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", DIGIT)),
    "falcon": PreTokenizerSpec((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), BLOOM),
    "viking": PreTokenizerSpec((*BLOOM.patterns, DIGIT)),
    "tekken": PreTokenizerSpec((_build_cased_words_pattern("", DIGIT),), ignore_merges=True, add_bos=True),
    **dict.fromkeys(
        ("gpt-4o", "llama4", "kanana2", "minimax-m2"),
        PreTokenizerSpec((_build_cased_words_pattern(f"{_CONTRACTIONS}?", r"\p{N}{1,3}"),)),
    ),
    "seed-coder": PreTokenizerSpec(
        (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
    ),
    "minicpm5": PreTokenizerSpec((r"\p{N}{1,3}", _build_words_pattern(r"\p{N}+")), ignore_merges=True),
}
