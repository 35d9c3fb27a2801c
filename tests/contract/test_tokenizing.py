"""The tokenizer of a GGUF file gives the same ids as llama.cpp, for every supported pre-tokenizer."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from enginebay import environments, models
from enginebay.text.gguf.gguf_reader import StringArray, read_gguf
from enginebay.text.tokenization.pretokenizers import PRETOKENIZERS
from enginebay.text.tokenization.tokenizer import load_tokenizer
from tests.unit.text.tiny_gguf import build_tiny_llama

# One name per way of splitting text, except two where llama.cpp knowingly differs from the models' tokenizer.json
# (it treats combining marks without a letter as punctuation), which we follow.
DIFFERENT = {PRETOKENIZERS[name] for name in ("tekken", "gpt-4o")}
ONE_OF_EACH = sorted({how: name for name, how in PRETOKENIZERS.items() if how not in DIFFERENT}.values())

TEXTS = [
    "hello world",
    "I'm you're THEY'LL don't",
    "  leading",
    "trailing  ",
    "a  b   c",
    "\r\n\n\t x\n",
    "1234567890 1 22  333",
    "x=1\n  y = 22\n\tz=333",
    "$1,234.56 3.14e-10",
    "٣٤٥ ४५६ Ⅷ ½ ²",
    "日本語のテキスト 中文 한국어",
    "हिन्दी ภาษาไทย العربية",
    "👍🏽 👨‍👩‍👧‍👦 🇫🇷",
    "\u00a0nbsp\u3000wide\u2028line",
    "def f(x):\n    return x**2  # why\n\n\nclass A:\n\tpass\n",
    "<b>&amp;</b>",
    "https://example.com/p?q=1#f",
    "a" * 300,
    " " * 100,
    "camelCaseHTTPServer",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start",
]
POOLS = [
    "abcXYZ",
    "0123456789",
    " \t\n\r\u00a0",
    "'\"!?.,;:-_()[]{}<>|/\\@#$%^&*+=~`",
    "éüßñİ",
    "日本語한국",
    "👍🏽☃️",
    "½Ⅷ٣",
    "\u0301",
    "Жж𝔘",
]

LLAMACPP = """
import json, sys, urllib.request, xllamacpp
def tokenize(address, text):
    body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
    request = urllib.request.Request(address + "/tokenize", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["tokens"]
asked, found = json.load(sys.stdin), {}
for path in asked["paths"]:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.warmup, params.port = 64, 1, False, 0
    server = xllamacpp.Server(params)
    found[path] = [tokenize(server.listening_address.rstrip("/"), text) for text in asked["texts"]]
    del server
print("@" + json.dumps(found))
"""


def make_texts() -> list[str]:
    source = random.Random(1)
    mixed = ["".join(source.choice(source.choice(POOLS)) for _ in range(source.randrange(1, 30))) for _ in range(150)]
    runs = [
        "".join(source.choice(pool) * source.randrange(1, 4) for pool in source.sample(POOLS, 4)) for _ in range(150)
    ]
    return [*TEXTS, *mixed, *runs]


def read_vocabulary(path: Path) -> dict[str, Any]:
    metadata = read_gguf(path).metadata
    entries = {
        key: value for key, value in metadata.items() if key.startswith("tokenizer.ggml.") and "add_bos" not in key
    }
    return {key: list(value) if isinstance(value, StringArray | tuple) else value for key, value in entries.items()}


def tokenize_with_llamacpp(paths: list[Path]) -> dict[str, list[list[int]]]:
    python = environments.find_environment("llamacpp").python
    payload = json.dumps({"paths": [str(path) for path in paths], "texts": make_texts()})
    result = subprocess.run([str(python), "-c", LLAMACPP], input=payload, capture_output=True, text=True, timeout=500)
    lines = [line for line in result.stdout.splitlines() if line.startswith("@")]
    assert lines, result.stderr[-2000:]
    ids: dict[str, list[list[int]]] = json.loads(lines[-1][1:])
    return ids


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[list[int]]]]:
    """A tiny model for each pre-tokenizer, with a real vocabulary, and llama.cpp's token ids for the texts."""
    folder = tmp_path_factory.mktemp("pre")
    shared = read_vocabulary(models.ensure_model("smollm2").path)
    paths = {}
    for name in ONE_OF_EACH:
        paths[name] = folder / f"{name}.gguf"
        paths[name].write_bytes(build_tiny_llama({**shared, "tokenizer.ggml.pre": name}, width=8))
    native = tokenize_with_llamacpp(list(paths.values()))
    return {name: (path, native[str(path)]) for name, path in paths.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_ids_match_llamacpp(name: str, cases: dict[str, tuple[Path, list[list[int]]]]) -> None:
    path, native = cases[name]
    tokenizer = load_tokenizer(path)
    different = {
        text: (ours, theirs)
        for text, theirs in zip(make_texts(), native, strict=True)
        if (ours := tokenizer.encode(text, add_special=True)) != theirs
    }
    assert different == {}
