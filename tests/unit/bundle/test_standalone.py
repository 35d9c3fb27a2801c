"""Options and final output of install.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from enginebay.bundle import standalone
from enginebay.bundle.standalone import BundleError, _parse_options
from tests.unit.bundle.small_bundle import make_small_bundle, make_stored_model

HERE = ["--python", sys.executable]


@pytest.mark.parametrize(
    ("arguments", "venv", "rest"),
    [
        ([], None, HERE),
        (["--venv", "/opt/bay"], "/opt/bay", HERE),
        (["--venv=/opt/bay", "--no-models"], "/opt/bay", ["--no-models", *HERE]),
        (["--python=/usr/bin/python3", "--recreate"], None, ["--recreate", "--python", "/usr/bin/python3"]),
        (["--python", "python3"], None, ["--python", "python3"]),
        (["--py", "python3"], None, ["--py", "python3", *HERE]),  # abbreviations pass through
        (["--into", "current"], None, ["--into", "current"]),  # bay's own environment, so no other Python
        (["--into=own"], None, ["--into", "own", *HERE]),
        (["--into", "current", "--python", "x"], None, ["--into", "current", "--python", "x"]),  # bay refuses it
    ],
)
def test_options_are_seen_in_both_forms(arguments: list[str], venv: str | None, rest: list[str]) -> None:
    assert _parse_options(arguments) == (Path(venv) if venv else None, rest)


@pytest.mark.parametrize("given", [["--venv"], ["--venv="], ["--venv", "--no-models"], ["--python"]])
def test_an_option_without_its_value_is_refused(given: list[str]) -> None:
    with pytest.raises(BundleError, match=given[0].rstrip("=")) as caught:
        _parse_options(given)
    assert "\n" not in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("code", "options", "said"),
    [
        (0, [], "next: {bay} serve tiny"),
        (0, ["--no-models"], "next: {bay} engines list"),
        (3, [], None),
    ],
)
def test_it_ends_with_the_path_of_bay_and_the_next_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    options: list[str],
    said: str | None,
) -> None:
    folder, bay = tmp_path / "bundle", tmp_path / "my bay" / "bin" / "bay"
    make_small_bundle(folder, store=make_stored_model(tmp_path))
    bay.parent.mkdir(parents=True)
    bay.write_text(f"#!/bin/sh\nexit {code}\n")
    bay.chmod(0o755)
    monkeypatch.setattr(standalone, "__file__", str(folder / "install.py"))
    monkeypatch.setattr(standalone, "_install_bay", lambda *_: bay)
    monkeypatch.delenv("ENGINEBAY_HOME", raising=False)
    assert standalone.main(options) == code
    lines = capsys.readouterr().err.splitlines()
    if said is None:
        assert not any("next:" in line or "installed;" in line for line in lines)
    else:
        assert lines[-2].endswith(f"bay is {bay}")
        assert lines[-1].endswith(said.format(bay=f"'{bay}'"))


def test_the_suggested_command_sets_a_custom_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    said = standalone._suggest_next_command(Path("/b/bay"), {"models": []}, [])
    assert said == f"ENGINEBAY_HOME={tmp_path} /b/bay engines list"


def test_help_names_all_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert standalone.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(option in said for option in ("--venv", "--into", "--python", "--recreate", "--no-models"))
