from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginebay.contract import Guided
from enginebay.errors import UsageError
from enginebay.fleet.batch_runner import (
    BatchAnswer,
    BatchDefaults,
    BatchRequest,
    list_unanswered,
    read_answers,
    read_requests,
)


def test_requests_are_read_with_their_ids_and_parameters(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"prompt": "a", "seed": 1}\n\n{"id": "x", "messages": [{"role": "user", "content": "b"}], "top_p": 1}\n'
    )
    first, second = read_requests(path)
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
def test_an_invalid_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match="line"):
        read_requests(path)


def test_up_to_ten_invalid_lines_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n{\n{}\n')
    with pytest.raises(UsageError, match=r"2 invalid lines\n  line 2 is not valid JSON.*\n  line 3 needs either"):
        read_requests(path)
    path.write_text("{}\n" * 13)
    with pytest.raises(UsageError, match=r"line 10 needs.*\n  and 3 more") as caught:
        read_requests(path)
    assert "line 11" not in caught.value.message


def test_a_line_cut_off_by_a_crash_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    whole = json.dumps({"id": "1", "request": "abc", "text": "é"}, ensure_ascii=False) + "\n"
    path.write_text(whole + '{"id": "2", "te')
    assert read_answers(path) == {"1": BatchAnswer("abc", None)}
    assert path.read_text() == whole
    path.write_text(whole + '{"id": "2", "request": "d", "text": "b"}')  # whole but for its line end: it may go on
    assert read_answers(path) == {"1": BatchAnswer("abc", None)}


def test_failed_answers_can_be_retried(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"id": "1", "request": "abc", "text": "é"}\n{"id": "2", "request": "d", "error": {}}\n')
    assert read_answers(path) == {"1": BatchAnswer("abc", None), "2": BatchAnswer("d", None, failed=True)}
    assert read_answers(path, retry_failed=True) == {"1": BatchAnswer("abc", None)}


def test_an_answer_to_a_different_request_raises(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first, second = BatchRequest("1", "a", False, {}), BatchRequest("2", "b", False, {"seed": 1})
    done = {"1": BatchAnswer(first.line_hash, first.request_hash)}
    assert list_unanswered([first, second], done, path) == [second]
    with pytest.raises(UsageError, match="different requests"):
        list_unanswered([BatchRequest("1", "changed", False, {})], done, path)


COMMON = BatchDefaults("smollm2", "auto", False, {"seed": 1})


@pytest.mark.parametrize(
    "changed",
    [
        BatchDefaults("other", "auto", False, {"seed": 1}),
        BatchDefaults("smollm2", "fake", False, {"seed": 1}),
        BatchDefaults("smollm2", "auto", True, {"seed": 1}),
        BatchDefaults("smollm2", "auto", False, {"seed": 1, "max_tokens": 32}),
        BatchDefaults("smollm2", "auto", False, {"seed": 1, "guided": Guided(choice=("x",))}),
    ],
)
def test_an_answer_from_another_model_engine_or_parameter_raises(tmp_path: Path, changed: BatchDefaults) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
    lines = [
        {"id": job.id, "request": job.line_hash, "asked": job.request_hash} for job in read_requests(source, COMMON)[:2]
    ]
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [job.id for job in list_unanswered(read_requests(source, COMMON), read_answers(target), target)] == ["3"]
    with pytest.raises(UsageError, match=r"another model or engine.* for 2 of 3 ids, first '1'") as caught:
        list_unanswered(read_requests(source, changed), read_answers(target), target)
    assert "another output file" in caught.value.hint


def test_a_parameter_of_the_line_hashes_like_a_common_one() -> None:
    alone = BatchRequest("1", "a", False, {"seed": 1}, BatchDefaults("m", "auto"))
    assert (
        BatchRequest("1", "a", False, {}, BatchDefaults("m", "auto", sampling={"seed": 1})).request_hash
        == alone.request_hash
    )
    assert (
        BatchRequest("1", "a", False, {"seed": 1}, BatchDefaults("m", "auto", sampling={"seed": 2})).request_hash
        == alone.request_hash
    )


def test_answers_without_a_request_hash_count(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    job = BatchRequest("1", "a", False, {}, COMMON)
    path.write_text(json.dumps({"id": "1", "request": job.line_hash, "text": "b"}) + "\n")
    assert list_unanswered([job], read_answers(path), path) == []


def test_an_unrelated_file_is_not_modified(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("my diary\nof many years\n")
    with pytest.raises(UsageError, match=r"line 1 of .* is not an answer"):
        read_answers(path)
    assert path.read_text() == "my diary\nof many years\n"
