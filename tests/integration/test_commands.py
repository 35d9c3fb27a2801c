"""The `bay` command as users and scripts run it: answers, exit codes, one clear line per error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from enginebay import models
from enginebay.fleet.batch_runner import BatchRequest

BAY = [sys.executable, "-m", "enginebay.cli.main"]


def bay(*arguments: str, stdin: str = "", timeout: float = 300, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BAY, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environ},
        check=False,
    )


def one_clear_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Check the exit code, that there is no traceback, and the first line of ours."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    line = next(line for line in done.stderr.splitlines() if line.startswith("bay: "))
    for word in words:
        assert word in done.stderr, line


def test_run_streams_an_answer_and_prints_stats() -> None:
    done = bay("run", "smollm2", "hi", "--stats", "--temperature", "0")
    assert done.returncode == 0 and done.stdout == "Hello there! How can I assist you today?\n"
    assert "first token" in done.stderr and "llamacpp" in done.stderr


def test_run_reads_standard_input() -> None:
    for arguments in (("run", "toy", "-"), ("run", "toy")):
        done = bay(*arguments, "-e", "fake", "--set", "script_by_prompt={piped words: from stdin}", stdin="piped words")
        assert done.stdout == "from stdin\n"


@pytest.mark.slow
def test_third_party_engines_run_with_the_defaults() -> None:
    """They apply them: at the default temperature, one letter in sixty differs."""
    assert re.fullmatch("[abc]{3}\n", bay("run", "toy", "abc", "-e", "echo").stdout)
    assert bay("run", "toy", "abc", "-e", "echo", "--temperature", "0").stdout == "abc\n"


def test_a_version_can_be_requested() -> None:
    one_clear_line(bay("run", "toy", "abc", "-e", "echo==9.9.9"), 1, "echo 9.9.9")


def test_a_launcher_around_bay_does_not_confuse_the_worker() -> None:
    assert bay("run", "toy", "x", "-e", "fake", "--set", "script=fine", RANK="1", WORLD_SIZE="2").stdout == "fine\n"


def test_a_truncated_answer_is_noted() -> None:
    done = bay("run", "toy", "x", "-e", "fake", "--ignore-eos", "--max-tokens", "3")
    assert "truncated" in done.stderr and len(done.stdout) == 4


def test_help_in_every_spelling() -> None:
    for arguments in (("run", "-h"), ("help", "run"), ("run", "--help")):
        assert "Answer one prompt" in bay(*arguments).stdout
    assert bay("version").stdout == bay("--version").stdout


def test_run_as_json_has_everything() -> None:
    done = bay(
        "run", "toy", "hi", "-e", "fake", "--json", "--n", "2", "--logprobs", "1", "--max-tokens", "3", "--seed", "1"
    )
    found = json.loads(done.stdout)
    assert [len(choice["logprobs"]) for choice in found["choices"]] == [3, 3]
    assert found["usage"]["completion_tokens"] == 6


THINKS = ("-e", "fake", "--set", "models.toy.reasoning_format=think", "--set", "script=<think>Let me see.</think>Done.")


def test_a_thought_is_not_part_of_the_answer() -> None:
    done = bay("run", "toy", "x", *THINKS)
    assert done.stdout == "Done.\n" and "Let me see." in done.stderr and "<think>" not in done.stderr
    assert "Let me see." not in bay("run", "toy", "x", *THINKS, "--hide-thinking").stderr
    [choice] = json.loads(bay("run", "toy", "x", *THINKS, "--json").stdout)["choices"]
    assert (choice["text"], choice["reasoning"]) == ("Done.", "Let me see.")
    done = bay("chat", "toy", *THINKS, stdin="x\n")
    assert done.stdout == "Done.\n" and "Let me see." in done.stderr
    bound = "<think>all of it</think> is bound"
    assert bay("run", "toy", "x", *THINKS[:4], "--choice", bound).stdout == f"{bound}\n"


@pytest.mark.slow
def test_chat_remembers_and_forgets() -> None:
    scripts = 'script_by_prompt={"one\\nfirst\\ntwo": remembered, one: first, two: forgotten}'
    done = bay("chat", "toy", "-e", "fake", "--set", scripts, stdin="one\ntwo\n/reset\ntwo\n/help\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["first", "remembered", "forgotten"] and "/reset" in done.stderr
    assert "truncated" not in done.stderr
    one_clear_line(bay("chat", "toy", "-e", "fake", "--n", "2", stdin="x\n"), 2, "one answer")
    assert "truncated" in bay("chat", "toy", "-e", "fake", "--ignore-eos", "--max-tokens", "3", stdin="x\n").stderr


@pytest.mark.slow
def test_batch_runs_and_resumes(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"number {n}", "max_tokens": 5}) + "\n" for n in range(50)))
    kept = BatchRequest("7", "number 6", False, {"max_tokens": 5})
    target.write_text(json.dumps({"id": "7", "request": kept.line_hash, "text": "kept"}) + "\n" + '{"id": "8", "te')
    done = bay("batch", str(source), str(target), "-m", "toy", "-e", "fake", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answered"] == 49
    answers = {answer["id"]: answer for answer in map(json.loads, target.read_text().splitlines())}
    assert len(answers) == 50 and answers["7"]["text"] == "kept"
    again = bay("batch", str(source), str(target), "-m", "toy", "-e", "fake")
    assert again.returncode == 0 and "50 already answered" in again.stderr
    for other in (("-m", "other", "-e", "fake"), ("-m", "toy"), ("-m", "toy", "-e", "fake", "--temperature", "0")):
        one_clear_line(
            bay("batch", str(source), str(target), *other), 2, "another model or engine", "another output file"
        )
    source.write_text(json.dumps({"prompt": "another question"}) + "\n")
    one_clear_line(bay("batch", str(source), str(target), "-m", "toy", "-e", "fake"), 2, "different requests")


@pytest.mark.slow
def test_a_bad_line_in_a_batch_fails_alone(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines: tuple[dict[str, Any], ...] = (
        {"prompt": "a\u2028b", "max_tokens": 3, "logprobs": 1, "logit_bias": {"97": 1}, "guided": {"choice": ["x"]}},
        {"prompt": "b", "temperature": 9},
        {"prompt": "c", "num_beams": 2},
        {"prompt": "d", "temperature": "hot"},
        {"prompt": "e", "max_tokens": 1.5},
    )
    source.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    arguments = ("batch", str(source), str(target), "-m", "toy", "-e", "fake", "--retry-failed")
    for _ in range(2):  # the second time only what failed is done again, and fails again
        assert bay(*arguments).returncode == 1
        answers = {answer["id"]: answer for answer in map(json.loads, target.read_text().splitlines())}
        assert answers["1"]["text"] == "x" and len(answers["1"]["logprobs"][0]) == 1
        wrong = {name: answer["error"]["param"] for name, answer in answers.items() if "error" in answer}
        assert wrong == {"2": "temperature", "3": "num_beams", "4": "temperature", "5": "max_tokens"}
    again = bay(*arguments[:-1], "--json")
    told = json.loads(again.stdout)
    assert again.returncode == 1 and (told["answered"], told["failed"], told["failed_before"]) == (0, 0, 4)
    assert "1 already answered" in again.stderr and "4 failed earlier: retry with --retry-failed" in again.stderr
    one_clear_line(
        bay("batch", str(source), "/no/such/place.jsonl", "-m", "toy", "-e", "fake"), 2, "/no/such/place.jsonl"
    )


@pytest.mark.slow
def test_unknown_names_are_bad_usage() -> None:
    one_clear_line(bay("run", "smollm3", "hi"), 2, "smollm3", "smollm2")
    one_clear_line(bay("run", "smollm2", "hi", "-e", "vlm"), 2, "vlm", "vllm")
    one_clear_line(bay("run", "toy", "hi", "-e", "fake", "--temperature", "7"), 2, "temperature", "between 0.0 and 2.0")
    one_clear_line(bay("run", "toy", "hi", "-e", "fake", "--num-beams", "2"), 2, "num_beams", "best_of")
    one_clear_line(bay("run", "toy", "hi", "-e", "fake", "--set", "max_bach=3"), 2, "max_bach", "max_batch")
    one_clear_line(bay("run", "toy", "", "-e", "fake"), 2, "prompt")


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("engine: fake\nsampling:\n  temprature: 0.5\n")
    one_clear_line(bay("run", "toy", "hi", "-c", str(path)), 2, "temprature", "temperature", "3")


def test_a_missing_engine_names_the_command_that_installs_it(tmp_path: Path) -> None:
    done = bay("run", "toy", "hi", "-e", "vllm", ENGINEBAY_HOME=str(tmp_path))
    one_clear_line(done, 1, "vllm", "bay engines install vllm")


@pytest.mark.parametrize("damage", ["truncated", "corrupt", "empty"])
def test_a_damaged_gguf_is_reported(tmp_path: Path, damage: str) -> None:
    whole = models.ensure_model("smollm2").path.read_bytes()
    path = tmp_path / "model.gguf"
    path.write_bytes({"truncated": whole[: len(whole) // 3], "corrupt": b"GGUF" + b"\xff" * 4096, "empty": b""}[damage])
    done = bay("run", str(path), "hi")
    assert done.returncode in (1, 2)
    one_clear_line(done, done.returncode, "model.gguf")


def test_a_directory_with_only_a_pickle_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    done = bay("run", str(tmp_path), "hi")
    assert done.returncode in (1, 2)
    one_clear_line(done, done.returncode, "safetensors")


@pytest.mark.parametrize(
    ("how", "words"), [("crash", "SIGSEGV"), ("error", "fail_load is error"), ("out_of_memory", "memory")]
)
def test_an_engine_that_dies_while_loading_is_reported(how: str, words: str) -> None:
    one_clear_line(bay("run", "toy", "hi", "-e", "fake", "--set", f"fail_load={how}"), 1, words)


def test_an_engine_that_dies_while_answering_is_reported() -> None:
    done = bay(
        "run", "toy", "hi", "-e", "fake", "--ignore-eos", "--set", "crash_after_tokens=10", "--set", "step_s=0.01"
    )
    one_clear_line(done, 1, "SIGSEGV", "crash_after_tokens is 10")


@pytest.mark.parametrize(
    ("number", "after_s"),
    [
        *((signal.SIGINT, after_s) for after_s in (0.1, 0.4, 0.8, 1.5, 2.5)),
        (signal.SIGTERM, 0.8),
        (signal.SIGTERM, 2.5),
    ],
)
def test_a_signal_at_any_moment(number: signal.Signals, after_s: float) -> None:
    arguments = [
        "run",
        "toy",
        "hi",
        "-e",
        "fake",
        "--ignore-eos",
        "--max-tokens",
        "4000",
        "--set",
        "step_s=0.05",
        "--set",
        "load_s=0.7",
    ]
    with tempfile.TemporaryDirectory(prefix="bay-") as folder:  # a short path, for sockets
        process = subprocess.Popen(
            [*BAY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "XDG_RUNTIME_DIR": folder},
        )  # fmt: skip
        time.sleep(after_s)
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=60)
        before_ours = process.returncode == -number or "Fatal Python error: init_" in said  # no line of it had run
        assert process.returncode == 128 + number or before_ours, said
        assert "Traceback" not in said or before_ours
        deadline = time.monotonic() + 30
        while list(Path(folder).glob("enginebay/*")):
            assert time.monotonic() < deadline, "something was left behind"
            time.sleep(0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_an_answer_of_a_chat_or_the_chat(number: signal.Signals, code: int) -> None:
    slow = ("--ignore-eos", "--max-tokens", "400", "--set", "step_s=0.05")
    with subprocess.Popen([*BAY, "chat", "toy", "-e", "fake", *slow], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdin and process.stdout
        process.stdin.write("hi\n")
        process.stdin.flush()
        process.stdout.read(1)
        process.send_signal(number)
        _, said = process.communicate("/exit\n", timeout=60)
    assert process.returncode == code and ("(stopped)" in said) is (code == 0), said
    assert "Traceback" not in said and "Task was destroyed" not in said, said


@pytest.mark.root
def test_a_full_disk_while_pulling_leaves_nothing(tmp_path: Path) -> None:
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(tmp_path)], check=False).returncode
    ):
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        done = bay("models", "pull", "smollm2", ENGINEBAY_HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path))
        one_clear_line(done, 1, "space")
        assert not list(tmp_path.rglob("*.gguf"))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_offline_is_obeyed(tmp_path: Path) -> None:
    one_clear_line(bay("run", "smollm2", "hi", "--offline", ENGINEBAY_HOME=str(tmp_path)), 1, "offline")
