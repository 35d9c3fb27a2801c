from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginebay.errors import UsageError
from enginebay.fleet.batch import Job, finished, left_to_do, read_jobs


def test_requests_are_read_with_their_ids_and_parameters(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"prompt": "a", "seed": 1}\n\n{"id": "x", "messages": [{"role": "user", "content": "b"}], "top_p": 1}\n'
    )
    first, second = read_jobs(path)
    assert (first.id, first.prompt, first.sampling, first.raw) == ("1", "a", {"seed": 1}, False)
    assert (second.id, second.prompt, second.sampling) == ("x", [{"role": "user", "content": "b"}], {"top_p": 1})


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"prompt": "a", "messages": []}',
        '{"prompt": 5}',
        '{"id": "1", "prompt": "a"}\n{"id": 1, "prompt": "b"}',
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match="line"):
        read_jobs(path)


def test_a_line_cut_off_by_a_crash_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    whole = json.dumps({"id": "1", "request": "abc", "text": "é"}, ensure_ascii=False) + "\n"
    path.write_text(whole + '{"id": "2", "te')
    assert finished(path) == {"1": "abc"}
    assert path.read_text() == whole
    path.write_text(whole + '{"id": "2", "request": "d", "text": "b"}')  # whole but for its line end: it may go on
    assert finished(path) == {"1": "abc"}


def test_an_answer_to_another_question_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first, second = Job("1", "a", False, {}), Job("2", "b", False, {"seed": 1})
    assert left_to_do([first, second], {"1": first.digest}, path) == [second]
    with pytest.raises(UsageError, match="another request"):
        left_to_do([Job("1", "changed", False, {})], {"1": first.digest}, path)


def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("my diary\nof many years\n")
    with pytest.raises(UsageError, match="not a file of answers"):
        finished(path)
    assert path.read_text() == "my diary\nof many years\n"
