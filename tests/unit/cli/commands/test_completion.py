"""Completion scripts: their content, and completion in a real bash."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from enginebay.cli.commands.completion import build_command_tree
from enginebay.cli.main import COMMANDS
from enginebay.cli.output.completion_scripts import (
    SCRIPTS,
    CompletionCommand,
    CompletionOption,
    render_bash,
    render_fish,
    walk_commands,
)

TREE = CompletionCommand(
    "bay",
    options=(CompletionOption(("--help",)),),
    children=(
        CompletionCommand(
            "run", "It's for one prompt", (CompletionOption(("--engine", "-e"), "which", True, ("vllm", "fake")),)
        ),
        CompletionCommand(
            "engines", "Manage: engines", children=(CompletionCommand("install", words=("vllm", "fake")),)
        ),
    ),
)


def complete(script: str, *words: str) -> list[str]:
    """Return bash's completions of the last word."""
    typed = " ".join(f"'{word}'" for word in words)
    program = f"{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _bay; echo ${{COMPREPLY[*]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("bay", ""), ["run", "engines"]),
        (("bay", "r"), ["run"]),
        (("bay", "--"), ["--help"]),
        (("bay", "engines", ""), ["install"]),
        (("bay", "engines", "install", "v"), ["vllm"]),
        (("bay", "run", "--engine", ""), ["vllm", "fake"]),
        (("bay", "run", "-e", "f"), ["fake"]),
        (("bay", "run", "engines", ""), []),
    ],
)
def test_bash_completes_by_position(words: tuple[str, ...], offered: list[str]) -> None:
    assert complete(render_bash(TREE), *words) == offered


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_command_and_option_is_in_every_script(shell: str) -> None:
    tree = build_command_tree()
    script = SCRIPTS[shell](tree)
    for path, command in walk_commands(tree):
        assert path in script
        for option in command.options:
            assert all(flag.lstrip("-") in script for flag in option.flags)


def test_the_tree_has_every_command_with_its_own_options() -> None:
    found = dict(walk_commands(build_command_tree()))
    assert [path for path in found if path.count("/") == 1] == [f"/{name}" for name in COMMANDS]
    flags = {flag: option for option in found["/engines/install"].options for flag in option.flags}
    assert flags["--for"].values == ("cpu", "cuda")
    assert not flags["--recreate"].takes_value
    assert "vllm" in found["/engines/install"].words


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_shell_itself_accepts_the_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, "-n"], input=SCRIPTS[shell](build_command_tree()), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_apostrophes_in_help_do_not_end_a_string() -> None:
    assert "'It'\"'\"'s for one prompt'" in render_fish(TREE)
