from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from enginebay.cli.main import COMMANDS, import_command, main
from enginebay.cli.options.sampling_options import _OPTIONS, collect_sampling
from enginebay.contract import Guided, Sampling
from enginebay.errors import UsageError

HEAVY = ("torch", "vllm", "transformers", "grpc", "pydantic", "rich", "typer", "huggingface_hub", "tokenizers")


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys; from enginebay.cli.main import main; main(['--help']); print([m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"
    assert all(name in found.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(import_command(name).app, typer.Typer)
    assert main([name, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("run", "shown with --json"),
        ("batch", "written with each answer"),
        ("chat", "not shown by chat"),
    ],
)
def test_the_help_says_where_logprobs_are(name: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"--logprobs <int> Number of top alternatives per token; {told} --" in said


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    assert "did you mean `bay run`?" in capsys.readouterr().err
    assert main(["bench"]) == 2 and "did you mean `bay experiment`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("list", "did you mean `bay models list`?"),
        ("pull", "did you mean `bay models pull`?"),
        ("stop", "to unload a model: `bay unload MODEL`; to stop a server: Ctrl-C or SIGTERM"),
        ("create", "to use your own files: `bay models pull PATH --name NAME`"),
        ("frobnicate", "`bay --help` lists all commands"),
    ],
)
def test_what_users_of_other_tools_type(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    assert capsys.readouterr().err.splitlines()[1].strip().startswith(said)


def test_an_unknown_flag_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-such-flag"]) == 2
    assert "--no-such-flag" in capsys.readouterr().err


def test_every_sampling_parameter_has_a_flag() -> None:
    flags = {name for name, _, _ in _OPTIONS}
    assert {field.name for field in fields(Sampling)} - {"guided"} <= flags


def test_flags_become_sampling() -> None:
    nothing = dict.fromkeys((name for name, _, _ in _OPTIONS), None)
    assert collect_sampling({**nothing, "stop": []}) == {}
    assert collect_sampling({**nothing, "logit_bias": '{"5": -1}', "choice": ["a", "b"]}) == {
        "logit_bias": {5: -1.0},
        "guided": Guided(choice=("a", "b")),
    }
    for wrong in ({"logit_bias": "{"}, {"logit_bias": "[1]"}, {"json_schema": "{"}, {"grammar": "@/no/such/file"}):
        with pytest.raises(UsageError):
            collect_sampling({**nothing, **wrong})


@pytest.mark.parametrize(
    "command",
    [
        "run", "chat", "serve", "batch", "experiment", "choose", "models pull", "engines why", "engines upgrade", "keys create",
        "keys list", "keys revoke", "config show", "config validate", "ps", "top", "load", "sleep", "unload", "switch",
        "switches", "adapters add", "adapters remove", "logs", "reload",
    ],
)  # fmt: skip
def test_every_command_that_reads_a_configuration_takes_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert "--config, -c" in capsys.readouterr().out.replace("-c, --config", "--config, -c")


def test_the_server_is_found_through_the_named_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ENGINEBAY_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.yaml").write_text("server: {port: 1}")
    assert main(["ps", "-c", "other.yaml"]) == 1
    assert "no server responds at http://127.0.0.1:1:" in capsys.readouterr().err
    assert main(["ps"]) == 1
    assert "http://127.0.0.1:1:" not in capsys.readouterr().err, "it does not outlive the command"
