"""What a server reports and its parity answers: malformed ones raise an error, or count as unknown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from enginebay.errors import UsageError
from enginebay.lab.loadgen.sender_task import TargetServer
from enginebay.lab.measures.parity import ParityAnswer, compare_answers
from enginebay.lab.study.server_api import ServerUnusable, find_only_model, request_json
from enginebay.lab.study.server_facts import ask_parity_prompts, fetch_checked_facts, fetch_server_facts
from enginebay.lab.study.study_point import ParityPlan
from enginebay.lab.workload.request_records import Prompt, Request
from tests.unit.lab.page_servers import serve_answers, serve_pages

PLAN = ParityPlan(prompts=1, tokens=2)


@contextmanager
def serve_always(content: Any) -> Iterator[TargetServer]:
    """Serve the same body for every request: JSON, or raw bytes."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    with serve_answers(lambda path: (200, body)) as url:
        yield TargetServer(url, "m", timeout_s=10)


def answer(content: Any, prompt: Prompt = (1, 2, 3)) -> ParityAnswer:
    with serve_always(content) as target:
        return ask_parity_prompts(target, [Request(prompt, 3, 2)], PLAN)[0]


def choice(**said: Any) -> dict[str, Any]:
    return {"choices": [{"text": "x", **said}], "usage": {"prompt_tokens": 3}}


@pytest.mark.parametrize(
    "content",
    [{}, [], "no", None, {"choices": None}, {"choices": []}, {"choices": [None]}, {"choices": {"a": 1}}, {"choices": [[]]}],
)  # fmt: skip
def test_an_answer_without_a_choice_raises(content: Any) -> None:
    with pytest.raises(ServerUnusable, match="failed a simple request"):
        answer(content)


@pytest.mark.parametrize(
    "logprobs",
    [
        7,
        {"content": [{"logprob": -1.0}]},
        {"content": [None]},
        {"content": [{"token": "a", "logprob": "likely"}]},
        {"tokens": ["a"], "token_logprobs": None},
        {"tokens": [7], "token_logprobs": [-1.0]},
        {"tokens": ["a"], "token_logprobs": [10**400]},
    ],
)
def test_malformed_logprobs_are_unknown(logprobs: Any) -> None:
    found = answer(choice(logprobs=logprobs))
    assert (found.token_ids, found.logprobs, found.text) == (None, None, "x")


def test_logprobs_are_read_in_both_forms() -> None:
    chat = {"content": [{"token": "a", "logprob": -1}, {"token": "b", "logprob": -0.5}]}
    completions = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -0.5]}
    for form in (chat, completions):
        found = answer(choice(logprobs=form))
        assert (found.token_ids, found.logprobs) == (("a", "b"), (-1.0, -0.5))


@pytest.mark.parametrize("said", [{"text": None, "message": "hi"}, {"text": None, "message": None}, {"text": ""}])
def test_an_answer_without_text_has_none(said: dict[str, Any]) -> None:
    assert answer(choice(**said)).text == ""


@pytest.mark.parametrize("usage", [None, 3, {}, {"prompt_tokens": "three"}, {"prompt_tokens": float("nan")}])
def test_without_a_token_count_the_prompt_ids_are_unknown(usage: Any) -> None:
    assert answer({**choice(), "usage": usage}).prompt_ids is None


def test_a_different_token_count_means_different_prompt_ids() -> None:
    as_sent, longer, longest = (answer({**choice(), "usage": {"prompt_tokens": count}}) for count in (3, 4, 5))
    assert as_sent.prompt_ids == (1, 2, 3)
    assert compare_answers([as_sent], [as_sent]).same_prompt_ids is True
    assert compare_answers([as_sent], [longer]).same_prompt_ids is False
    assert compare_answers([longer], [longest]).same_prompt_ids is False
    assert compare_answers([longer], [longer]).same_prompt_ids is None  # the same count, but which ids is unknown


def test_tokens_of_a_text_come_from_the_server() -> None:
    content = {**choice(), "tokens": [5, 6, 7]}
    assert answer(content, "a text").prompt_ids == (5, 6, 7)
    assert answer({**content, "tokens": [5, 6]}, "a text").prompt_ids is None
    assert answer({**content, "tokens": ["a", "b", "c"]}, "a text").prompt_ids is None


def facts_from(**ours: Any) -> Any:
    with serve_always({"id": "m", "enginebay": {"engine": "fake", **ours}}) as target:
        return fetch_server_facts(target)


@pytest.mark.parametrize("settings", [None, [], "x", {"a": 1}, {"a": None}, {"a": {}}])
def test_malformed_settings_are_ignored(settings: Any) -> None:
    found = facts_from(settings=settings, warnings="odd")
    assert found.is_enginebay and (found.requested, found.effective, list(found.warnings)) == ({}, {}, [])


def test_malformed_numbers_are_ignored() -> None:
    found = facts_from(context_length="8k", memory_bytes=True, load_s=[1])
    assert (found.context_length, found.memory_bytes, found.load_s) == (None, None, None)
    found = facts_from(context_length=8192, memory_bytes=1 << 30, load_s=2)
    assert (found.context_length, found.memory_bytes, found.load_s) == (8192, 1 << 30, 2.0)


@pytest.mark.parametrize("rows", [None, {"a": 1}, [None], [{"id": None}], [{"id": 7}], [{"id": ["m"]}], [{}]])
def test_a_model_list_without_names_counts_as_none(rows: Any) -> None:
    with serve_always({"data": rows}) as target, pytest.raises(ServerUnusable, match="does not list its models"):
        find_only_model(target)


def test_the_only_model_is_found_and_several_are_listed() -> None:
    with serve_always({"data": [{"id": "a"}, {"id": 7}]}) as target:
        assert find_only_model(target) == "a"
    with serve_always({"data": [{"id": "a"}, {"id": "b"}]}) as target, pytest.raises(ServerUnusable, match="a, b"):
        find_only_model(target)


def test_an_unlisted_model_is_rejected_with_the_listed_ones() -> None:
    listed = {"data": [{"id": "a"}, {"id": "b"}]}
    with serve_pages({"/v1/models": listed}) as url:
        assert fetch_checked_facts(TargetServer(url, "a")).model_card == {}
        with pytest.raises(UsageError, match=r"has no model 'm'\nchoose one of: a, b"):
            fetch_checked_facts(TargetServer(url, "m"))
    with serve_pages({"/v1/models": listed, "/v1/models/m": {"id": "m"}}) as url:  # it knows more than it lists
        assert fetch_checked_facts(TargetServer(url, "m")).model_card == {"id": "m"}


@pytest.mark.parametrize("pages", [{}, {"/v1/models": {"data": []}}, {"/v1/models": "none"}])
def test_a_server_without_a_model_list_is_accepted(pages: dict[str, Any]) -> None:
    with serve_pages(pages) as url:
        assert fetch_checked_facts(TargetServer(url, "m")).kind == ""


def test_json_nested_too_deeply_is_text() -> None:
    deep = b"[" * 200_000
    with serve_always(deep) as target:
        assert request_json(target, "/v1/models") == (200, deep.decode())
