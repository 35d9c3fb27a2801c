from __future__ import annotations

import json

import pytest

from enginebay.errors import ModelInvalid
from enginebay.models.model_description import describe_model
from tests.unit.models.tiny_models import TAKEN, build_directory_files, build_safetensors, write_directory, write_gguf
from tests.unit.text.tiny_gguf import build_tiny_llama


def test_a_gguf_file(tmp_path):
    found = describe_model(write_gguf(tmp_path / "m.gguf"))
    assert (found.format, found.architecture, found.context_length) == ("gguf", "LlamaForCausalLM", 256)
    assert found.path == tmp_path / "m.gguf"
    assert found.size_bytes == found.path.stat().st_size
    assert found.parameters > 10_000


def test_a_directory(tmp_path):
    found = describe_model(write_directory(tmp_path))
    assert (found.format, found.architecture, found.context_length) == ("safetensors", "LlamaForCausalLM", 64)
    assert (found.parameters, found.quantisation, found.path) == (4, "F32", tmp_path)
    assert {file.relative_to(tmp_path).as_posix() for file in found.files} == {*TAKEN, "modeling_evil.py"}


def test_a_directory_with_one_gguf_is_that_gguf(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    assert describe_model(tmp_path).path == tmp_path / "m.gguf"


def test_a_quantised_directory_says_how(tmp_path):
    files = build_directory_files()
    config = {**json.loads(files["config.json"]), "quantization_config": {"quant_method": "gptq"}}
    assert (
        describe_model(write_directory(tmp_path, {**files, "config.json": json.dumps(config).encode()})).quantisation
        == "gptq"
    )


def test_a_split_gguf_needs_all_its_files(tmp_path):
    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    first.write_bytes(build_tiny_llama(**{"split.count": 2}))
    with pytest.raises(ModelInvalid, match="00002-of-00002"):
        describe_model(first)
    second.write_bytes(build_tiny_llama(**{"split.count": 2}))
    found = describe_model(second)
    assert found.path == first and found.files == (first, second)


def test_a_part_of_a_split_gguf_under_another_name(tmp_path):
    (tmp_path / "renamed.gguf").write_bytes(build_tiny_llama(**{"split.count": 2}))
    with pytest.raises(ModelInvalid, match="split into 2 files"):
        describe_model(tmp_path / "renamed.gguf")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config.json": None}, r"no config.json"),
        ({"config.json": b"["}, r"config.json cannot be read"),
        ({"config.json": b"[]"}, "not a JSON object"),
        ({"model.safetensors": None}, "only as pickle"),
        ({"model.safetensors": None, "pytorch_model.bin": None}, "no safetensors or GGUF"),
        ({"model.safetensors": build_safetensors()[:-3]}, "its header declares"),
        ({"model.safetensors": build_safetensors()[:20]}, "truncated"),
        ({"model.safetensors": b"abc"}, "not a safetensors file"),
        ({"model.safetensors": b"\x02" + bytes(7) + b"[]"}, "not a safetensors file"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "model-2.safetensors"}}'}, "lacks model-2"),
    ],
)
def test_broken_directories(tmp_path, change, reason):
    files = {name: content for name, content in {**build_directory_files(), **change}.items() if content is not None}
    with pytest.raises(ModelInvalid, match=reason) as caught:
        describe_model(write_directory(tmp_path, files))
    assert "\n" not in caught.value.message


def test_files_that_are_not_models(tmp_path):
    pickle, text = tmp_path / "pytorch_model.bin", tmp_path / "x.gguf"
    pickle.write_bytes(b"\x80\x02")
    text.write_bytes(b"hello")
    with pytest.raises(ModelInvalid, match="only as pickle"):
        describe_model(pickle)
    with pytest.raises(ModelInvalid, match="does not start with GGUF"):
        describe_model(text)
    with pytest.raises(ModelInvalid, match="file not found"):
        describe_model(tmp_path / "none.gguf")
