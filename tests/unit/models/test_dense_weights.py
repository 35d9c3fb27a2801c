from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import pytest

from enginebay.errors import FetchFailed, LoadFailed
from enginebay.models import dense_weights, ensure_dense_weights
from enginebay.text.chat.chat_renderer import load_renderer
from enginebay.text.tokenization.tokenizer import load_tokenizer
from enginebay.util.child_processes import interrupt_all
from enginebay.util.paths import logs_dir
from tests.unit.models.tiny_models import list_files, write_gguf
from tests.unit.text.tiny_gguf import write_tiny_llama

# Stands in for dequantize_gguf.py: what the library leaves behind, with a tokenizer and settings of its own.
CONVERTER = """
import sys, pathlib
folder = pathlib.Path(sys.argv[2])
(folder / "model.safetensors").write_bytes(b"weights")
(folder / "config.json").write_text("{}")
(folder / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": 77}')
(folder / "tokenizer.json").write_text('{"theirs": true}')
(folder.parent / "calls").open("a").write(" ".join(sys.argv[3:]) + ".")
"""


@pytest.fixture
def converter(tmp_path, monkeypatch) -> Path:
    script = tmp_path / "converter.py"
    script.write_text(CONVERTER)
    monkeypatch.setattr(dense_weights, "SCRIPT", script)
    return script


@pytest.fixture
def model(store, tmp_path):
    return store.pull(str(write_gguf(tmp_path / "mine.gguf")))


def test_weights_with_our_tokenizer_and_the_files_own_ends(model, converter):
    said = []
    folder = ensure_dense_weights(model, Path(sys.executable), say=said.append)
    assert folder == model.folder / "dense"
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    text = "hello  12 <|im_end|>"
    assert load_tokenizer(folder).encode(text) == load_tokenizer(model.path).encode(text)
    messages = [{"role": "user", "content": "hi"}]
    assert load_renderer(folder).render(messages) == load_renderer(model.path).render(messages)
    assert json.loads((folder / "generation_config.json").read_text()) == {"bos_token_id": 1, "eos_token_id": 2}
    assert "dequantizing mine" in said[0]


def test_weights_are_converted_once_until_the_model_changes(model, converter, tmp_path):
    for _ in range(2):
        ensure_dense_weights(model, Path(sys.executable))
    assert (model.folder / "calls").read_text() == "."
    write_tiny_llama(tmp_path / "mine.gguf", **{"general.name": "another"})
    ensure_dense_weights(model, Path(sys.executable))
    assert (model.folder / "calls").read_text() == ".."


def test_an_unsupported_tokenizer_is_left_to_the_library(store, tmp_path, converter):
    path = write_tiny_llama(tmp_path / "odd.gguf", **{"tokenizer.ggml.pre": "tomorrow"})
    folder = ensure_dense_weights(store.pull(str(path)), Path(sys.executable))
    assert (folder.parent / "calls").read_text() == "--tokenizer."
    assert json.loads((folder / "tokenizer.json").read_text()) == {"theirs": True}


def test_a_failure_is_one_line_with_the_log_kept(model, converter, tmp_path):
    converter.write_text("import sys\nprint('much talk')\nsys.exit('ValueError: no such architecture')")
    with pytest.raises(LoadFailed, match="failed to dequantize mine: ValueError: no such architecture") as caught:
        ensure_dense_weights(model, Path(sys.executable))
    log = tmp_path / "home" / "logs" / "dense-mine.log"
    assert str(log) in caught.value.hint
    assert "much talk" in log.read_text()
    assert not any("dense/" in name for name in list_files(model.folder))


def test_the_environments_python_does_not_see_our_packages(model, converter, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    converter.write_text("import os, sys\nsys.exit(f'sees {os.environ.get(\"PYTHONPATH\")}')")
    with pytest.raises(LoadFailed, match="failed to dequantize mine: sees None"):
        ensure_dense_weights(model, Path(sys.executable))


def test_a_conversion_in_a_thread_is_interrupted_and_leaves_nothing(model, converter):
    whole = converter.read_text()
    converter.write_text("import time; print('started', flush=True); time.sleep(60)")
    failures = []

    def convert() -> None:
        try:
            ensure_dense_weights(model, Path(sys.executable))
        except FetchFailed as error:
            failures.append(error.message)

    thread = threading.Thread(target=convert)
    thread.start()
    log = logs_dir() / "dense-mine.log"
    until = time.monotonic() + 30
    while not (log.exists() and log.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    interrupt_all()
    thread.join(20)
    assert failures == ["interrupted"]
    assert not any("dense/" in name for name in list_files(model.folder))
    converter.write_text(whole)
    assert ensure_dense_weights(model, Path(sys.executable)).is_dir()


def test_the_real_script_names_the_missing_library(model):
    with pytest.raises(LoadFailed, match=r"No module named '(torch|transformers)'"):
        ensure_dense_weights(model, Path(sys.executable))
