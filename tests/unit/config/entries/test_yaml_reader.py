"""Reading YAML: lines, duplicates, and malicious files."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from enginebay.config.entries import yaml_reader
from enginebay.config.entries.config_entry import ProblemCollector
from enginebay.config.entries.yaml_reader import MAX_BYTES, read_yaml_file


def read(tmp_path: Path, text: str | bytes) -> tuple[object, list[str]]:
    path = tmp_path / "f.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    problems = ProblemCollector()
    return read_yaml_file(path, "f.yaml", problems).to_plain(), [str(problem) for problem in problems.items]


def test_values_keep_the_line_of_their_key(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: 1\n\nb:\n  # words\n  c:\n    [1, 2]\n")
    root = read_yaml_file(path, "f.yaml", ProblemCollector())
    assert root.value["a"].origin.line == 1
    assert root.value["b"].value["c"].origin.line == 5
    assert root.value["b"].value["c"].key_path == "b.c"
    assert root.to_plain() == {"a": 1, "b": {"c": [1, 2]}}


def test_a_key_given_twice_is_a_problem(tmp_path: Path) -> None:
    _, problems = read(tmp_path, "a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert problems == ["f.yaml:4: a.b: duplicate key, first set on line 2"]


def test_merge_keys_share_settings_and_own_keys_win(tmp_path: Path) -> None:
    found, problems = read(tmp_path, "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n")
    assert (found, problems) == ({"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}}, [])


def test_numbers_and_words_that_yaml_1_1_gets_wrong(tmp_path: Path) -> None:
    found, problems = read(tmp_path, "a: 1e-3\nb: 2024-01-01\nc: =\non: 1\n7: x\nd: '1e3'\n")
    assert (found, problems) == ({"a": 0.001, "b": "2024-01-01", "c": "=", "on": 1, 7: "x", "d": "1e3"}, [])


@pytest.mark.parametrize("text", ["", "# only words\n", "---\n"])
def test_an_empty_file_is_an_empty_config(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == ({}, [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n- b\n", "f.yaml:1: expected `key: value` lines"),
        ("a: [1\n", "f.yaml:2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not valid YAML"),
        ("x: 1\na: !!python/object/apply:os.system ['true']\n", "f.yaml:2: the tag !!python/object/apply:os.system"),
        ("a: !thing 1\n", "f.yaml:1: the tag !thing is not allowed"),
        ("a: !!int many\n", "f.yaml:1: cannot read 'many'"),
        ("a: " + "9" * 5000 + "\n", "f.yaml:1: a number has 5000 characters"),
        ("? [a]\n: 1\n", "f.yaml:1: a key must be plain text"),
        ("a: *nowhere\n", "f.yaml:1: not valid YAML: found undefined alias"),
        ("a: &a\n  b: *a\n", "nested too deeply"),
        ("a: " + "[" * 1500 + "]" * 1500 + "\n", "nested too deeply"),
        ("a: " + "[" * 60 + "]" * 60 + "\n", "nested too deeply"),
        ("<<: 3\n", "f.yaml:1: `<<` expects a mapping"),
        (b"a: \xff\n", "f.yaml: is not UTF-8 text"),
        (b"a: \x00\n", "f.yaml:1: not valid YAML"),
        (b"#" * (MAX_BYTES + 1), "f.yaml: the file is over 1 MiB"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    found, problems = read(tmp_path, text)
    assert found == {}
    assert len(problems) == 1
    assert says in problems[0]
    assert "\n" not in problems[0]


@pytest.mark.parametrize("use", ["[{refs}]", "{{<<: [{refs}]}}"])
def test_an_alias_bomb_ends_quickly(tmp_path: Path, use: str) -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} " + use.format(refs=", ".join([f"*a{i - 1}"] * 10)) for i in range(1, 12)]
    started = time.monotonic()
    _, problems = read(tmp_path, "\n".join(lines))
    assert "more than 50000 values" in problems[0]
    assert time.monotonic() - started < 10


def test_a_directory_is_one_line(tmp_path: Path) -> None:
    problems = ProblemCollector()
    read_yaml_file(tmp_path, "f.yaml", problems)
    assert str(problems.items[0]) == "f.yaml: cannot be read: Is a directory"


# Files that are no files, and numbers that are no numbers


def test_an_endless_device_is_one_line() -> None:
    problems = ProblemCollector()
    read_yaml_file(Path("/dev/zero"), "f.yaml", problems)
    assert [str(problem) for problem in problems.items] == ["f.yaml: the file is over 1 MiB"]


def test_an_empty_device_is_an_empty_file() -> None:
    problems = ProblemCollector()
    assert read_yaml_file(Path("/dev/null"), "f.yaml", problems).value == {} and not problems.items


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_reader, "_READ_TIMEOUT_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    problems = ProblemCollector()
    read_yaml_file(tmp_path / "pipe", "f.yaml", problems)
    assert [str(problem) for problem in problems.items] == ["f.yaml: cannot be read: nothing to read within 0.2 s"]


def test_a_pipe_is_read_to_its_end() -> None:
    """As in `bay serve -c <(generate)`."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "w") as pipe:
            for line in ("a: 1\n", "b: 2\n"):
                pipe.write(line)
                pipe.flush()
                time.sleep(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    problems = ProblemCollector()
    root = read_yaml_file(Path(f"/dev/fd/{reading}"), "f.yaml", problems)
    thread.join()
    os.close(reading)
    assert root.to_plain() == {"a": 1, "b": 2} and not problems.items


@pytest.mark.parametrize(
    "number",
    ["1" * 80_000, "0x" + "f" * 80_000, "0b" + "1" * 80_000, "1" * 80_000 + ".5", "1_" * 40_000 + "e", "1" + ":59" * 30_000, "-" + "7" * 65],
)  # fmt: skip
def test_a_number_of_many_digits_is_one_line_and_quick(tmp_path: Path, number: str) -> None:
    started = time.monotonic()
    _, problems = read(tmp_path, f"server: {{port: {number}}}\n")
    assert time.monotonic() - started < 10
    assert all(len(problem) < 200 for problem in problems)
    assert problems or number.endswith("e")  # which is text


def test_a_hexadecimal_number_is_a_number(tmp_path: Path) -> None:
    assert read(tmp_path, "port: 0x1F90\n") == ({"port": 8080}, [])
