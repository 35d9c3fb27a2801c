from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.errors import ModelInvalid, UsageError
from enginebay.models.file_selection import select_files
from enginebay.models.known_models import DEFAULT_MODEL, KNOWN_MODELS
from enginebay.models.model_sources import (
    FileSource,
    HfSource,
    PypiSource,
    derive_name,
    list_split_files,
    looks_like_source,
    parse_source,
    validate_name,
)
from tests.unit.models.tiny_models import TAKEN, build_directory_files

SHA = "a" * 64


@pytest.mark.parametrize(
    ("text", "source", "name"),
    [
        ("hf:org/Name", HfSource("org/Name"), "Name"),
        ("hf:org/Name@v1.0", HfSource("org/Name", "v1.0"), "Name"),
        ("hf:org/n@refs/pr/1:q/m.Q4_0.gguf", HfSource("org/n", "refs/pr/1", "q/m.Q4_0.gguf"), "m.Q4_0"),
        ("hf:org/n:m-00001-of-00003.gguf", HfSource("org/n", "main", "m-00001-of-00003.gguf"), "m"),
        ("pypi:a-b==1.0/a/m.gguf", PypiSource("a-b", "1.0", "a/m.gguf"), "m"),
        (f"pypi:a==1.0/model#sha256={SHA}", PypiSource("a", "1.0", "model", SHA), "a"),
        ("file:/x/some model.gguf", FileSource(Path("/x/some model.gguf")), "some-model"),
    ],
)
def test_sources_as_text_and_back(text, source, name):
    assert parse_source(text) == source
    assert str(source) == text
    assert derive_name(source) == name
    assert looks_like_source(text)
    validate_name(name)


def test_paths_are_sources_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_source("./m.gguf") == FileSource(tmp_path / "m.gguf")
    assert parse_source("m.gguf") == FileSource(tmp_path / "m.gguf")
    (tmp_path / "folder").mkdir()
    assert parse_source("folder") == FileSource(tmp_path / "folder")
    assert not looks_like_source("smollm2")


@pytest.mark.parametrize(
    "text",
    ["nothing", "hf:name", "hf:a/b:weights.bin", "pypi:x/y", "pypi:x==1/../y", "pypi:x==1//etc", "ftp://x", "hf:"],
)
def test_invalid_sources(text):
    with pytest.raises(UsageError, match="is not a model source") as caught:
        parse_source(text)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "-x", "a b", "x" * 200])
def test_invalid_names(name):
    with pytest.raises(UsageError, match="is not a valid model name"):
        validate_name(name)


def test_the_catalogue_is_hashed_and_named_alike():
    assert DEFAULT_MODEL in KNOWN_MODELS
    for name, entry in KNOWN_MODELS.items():
        assert name == entry.name
        assert parse_source(str(entry.source)) == entry.source
        assert entry.source.sha256 or any(file.endswith(".safetensors") for file in entry.sha256)


def test_split_files():
    assert list_split_files("a.gguf") == ["a.gguf"]
    assert list_split_files("q/a-00002-of-00002.gguf") == ["q/a-00001-of-00002.gguf", "q/a-00002-of-00002.gguf"]


def test_only_files_that_cannot_run_code_are_selected():
    assert set(select_files(build_directory_files(), None, "it")) == TAKEN
    assert "modeling_evil.py" in select_files(build_directory_files(), None, "it", with_code=True)
    assert "pytorch_model.bin" not in select_files(build_directory_files(), None, "it", with_code=True)


def test_the_second_copy_of_the_weights_is_skipped():
    names = ["config.json", "consolidated.safetensors", "model-00001-of-00001.safetensors", "original/x.safetensors"]
    assert select_files(names, None, "it") == ["config.json", "model-00001-of-00001.safetensors"]
    assert select_files(["config.json", "consolidated.safetensors"], None, "it")[1] == "consolidated.safetensors"


def test_one_gguf_of_several():
    names = ["a-Q4.gguf", "a-Q8-00001-of-00002.gguf", "a-Q8-00002-of-00002.gguf", "mmproj-a.gguf", "README.md"]
    with pytest.raises(ModelInvalid, match="has 2 GGUF models") as caught:
        select_files(names, None, "it")
    assert caught.value.hint == "choose one: a-Q4.gguf, a-Q8-00001-of-00002.gguf"
    assert select_files(names, "a-Q8-00001-of-00002.gguf", "it") == names[1:3]
    assert select_files(names[:1], None, "it") == ["a-Q4.gguf"]
    with pytest.raises(ModelInvalid, match=r"has no file b.gguf"):
        select_files(names, "b.gguf", "it")


def test_pickle_only_and_nothing_at_all():
    with pytest.raises(ModelInvalid, match=r"only as pickle \(pytorch_model.bin\)"):
        select_files(["config.json", "pytorch_model.bin"], None, "it")
    with pytest.raises(ModelInvalid, match="no safetensors or GGUF"):
        select_files(["config.json"], None, "it")
