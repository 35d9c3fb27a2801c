"""`bay engines install` when the package index lacks the requested version."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.cli.main import main
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
