from __future__ import annotations

import json

import pytest

from enginebay.cli.main import main
from tests.unit.models.tiny_models import write_directory, write_gguf


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def bay(capsys, *args: str) -> tuple[int, str, str]:
    code = main(["models", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_catalogue_is_listed_before_anything_is_here(capsys):
    code, out, _ = bay(capsys, "list", "--json")
    listed = {model["name"]: model for model in json.loads(out)}
    assert code == 0
    assert listed["smollm2"]["state"] == listed["minilm"]["state"] == "available"
    assert "smollm2" in bay(capsys, "list")[1]


def test_a_models_life(capsys, tmp_path):
    path = write_gguf(tmp_path / "mine.gguf")
    assert bay(capsys, "pull", "./mine.gguf")[0] == 0
    listed = json.loads(bay(capsys, "list", "--json")[1])
    assert [model["name"] for model in listed if model["state"] == "here"] == ["mine"]
    code, out, _ = bay(capsys, "show", "mine", "--json")
    shown = json.loads(out)
    assert (code, shown["format"], shown["context_length"], shown["files"][0]["path"]) == (0, "gguf", 256, "mine.gguf")
    assert "256" in bay(capsys, "show", "mine")[1]
    assert bay(capsys, "verify", "mine")[0] == 0
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    code, out, error = bay(capsys, "verify", "mine", "--json")
    assert code == 1 and json.loads(out)["ok"] is False
    assert error.splitlines()[0] == "bay: mine: mine.gguf has changed: its sha256 does not match"
    assert bay(capsys, "remove", "mine")[0] == 0
    assert path.exists()


def test_show_takes_a_path(capsys, tmp_path):
    write_directory(tmp_path / "folder")
    code, out, _ = bay(capsys, "show", "./folder", "--json")
    assert code == 0 and json.loads(out)["format"] == "safetensors"


@pytest.mark.parametrize("command", ["show", "verify", "remove"])
def test_unknown_models(capsys, command):
    code, out, error = bay(capsys, command, "smolm2")
    assert (code, out) == (2, "")
    assert error.splitlines()[0] == "bay: unknown model 'smolm2'"
    assert "did you mean smollm2?" in error


def test_pull_offline(capsys, monkeypatch):
    assert bay(capsys, "pull", "smollm2", "--offline")[0] == 1
    monkeypatch.setenv("ENGINEBAY_OFFLINE", "1")
    code, _, error = bay(capsys, "pull", "smollm2")
    assert code == 1 and "offline mode is on" in error and "Traceback" not in error


def test_pull_an_unknown_source(capsys):
    code, _, error = bay(capsys, "pull", "nonsense")
    assert code == 2 and "is not a model source" in error


def test_why_an_engine_goes_by_the_configuration(capsys, tmp_path):
    write_gguf(tmp_path / "mine.gguf")
    (tmp_path / "other.yaml").write_text("models: {toy: {source: file:mine.gguf, engine: llamacpp}}")
    assert main(["engines", "why", "toy", "--config", "other.yaml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["engine"], told["reasons"]) == ("llamacpp", ["requested by name"])
    assert main(["engines", "why", "toy"]) == 2  # of which no other configuration knows
