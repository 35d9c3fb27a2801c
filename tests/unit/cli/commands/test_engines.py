"""`bay engines install` when the package index lacks the requested version, and `bay engines show`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay import environments
from enginebay.cli.main import main
from enginebay.contract import Probe
from enginebay.engines import registry
from enginebay.errors import FetchFailed

PINNED = registry.get_spec("llamacpp").recipes[0].version
NO_MATCH = "the install failed at: step 1 of 1 (exit code 1)\n     ERROR: No matching distribution found for xllamacpp"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    def fail_with(message: str) -> None:
        def build(*_: Any) -> Any:
            raise FetchFailed(message, "the whole output: install.log")

        monkeypatch.setattr("enginebay.environments.environment_build.install_engine", build)

    return fail_with


@pytest.mark.parametrize("asked", ["llamacpp==9.9.9", "llama.cpp==9.9.9"])
def test_a_version_that_is_not_there_names_the_one_that_is(
    failing: Any, capsys: pytest.CaptureFixture[str], asked: str
) -> None:
    failing(NO_MATCH)
    assert main(["engines", "install", asked]) == 1
    hint = capsys.readouterr().err.splitlines()[-1]
    assert "llamacpp 9.9.9 is not available" in hint
    assert f"`bay engines install llamacpp` installs {PINNED}" in hint and "install.log" in hint


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("llamacpp", NO_MATCH),
        (f"llamacpp=={PINNED}", NO_MATCH),
        ("--package=some-engine==9.9.9", NO_MATCH),
        ("./folder", NO_MATCH),
        ("llamacpp==9.9.9", "the install failed at: step 1 of 1: the disk is full"),
    ],
)
def test_where_no_other_version_helps_none_is_named(
    failing: Any, capsys: pytest.CaptureFixture[str], asked: str, message: str
) -> None:
    failing(message)
    arguments = ["--package", asked.partition("=")[2]] if asked.startswith("--package") else [asked]
    assert main(["engines", "install", *arguments]) == 1
    assert capsys.readouterr().err.splitlines()[-1].strip() == "the whole output: install.log"


@pytest.mark.parametrize(
    ("patches", "state"),
    [
        ({"step_outputs": "", "mixed_graphs": "not tested with vllm 9"}, "does not apply: not tested"),
        ({}, "not probed"),
    ],
)
def test_show_lists_patches_with_their_state(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], patches: dict[str, str], state: str
) -> None:
    monkeypatch.setattr(environments, "get_installed_engines", lambda: {"vllm": Probe("9.0", patches=patches)})
    assert main(["engines", "show", "vllm", "--json"]) == 0
    shown = {patch["name"]: patch for patch in json.loads(capsys.readouterr().out)["patches"]}
    assert set(shown) == {patch.name for patch in registry.get_spec("vllm").patches}
    assert shown["step_outputs"]["applies"] is bool(patches)
    assert shown["mixed_graphs"]["applies"] is False
    assert shown["step_outputs"]["setting"] == "stepwise"
    assert main(["engines", "show", "vllm"]) == 0
    assert state in " ".join(capsys.readouterr().out.split())


def test_show_of_an_engine_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "get_installed_engines", lambda: {"vllm": None})
    assert main(["engines", "show", "vllm"]) == 0
    assert " not installed " in " ".join(capsys.readouterr().out.split())
    assert main(["engines", "show", "nonesuch"]) != 0
