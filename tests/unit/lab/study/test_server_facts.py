"""What a server says of itself and answers to the parity prompts: odd ones are refused in words, or count as not telling."""

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
def saying(told: Any) -> Iterator[TargetServer]:
    """A server that answers everything with this: JSON, or bytes as they are."""
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    with serve_answers(lambda path: (200, body)) as url:
        yield TargetServer(url, "m", timeout_s=10)


def answer(told: Any, prompt: Prompt = (1, 2, 3)) -> ParityAnswer:
    with saying(told) as target:
        return ask_parity_prompts(target, [Request(prompt, 3, 2)], PLAN)[0]


def choice(**said: Any) -> dict[str, Any]:
    return {"choices": [{"text": "x", **said}], "usage": {"prompt_tokens": 3}}


@pytest.mark.parametrize(
    "told",
    [{}, [], "no", None, {"choices": None}, {"choices": []}, {"choices": [None]}, {"choices": {"a": 1}}, {"choices": [[]]}],
)  # fmt: skip
def test_an_answer_without_a_choice_is_refused_in_words(told: Any) -> None:
    with pytest.raises(ServerUnusable, match="does not answer a simple request"):
        answer(told)


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
def test_logprobs_that_are_none_are_not_told(logprobs: Any) -> None:
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
def test_a_server_that_does_not_count_tells_no_prompt_ids(usage: Any) -> None:
    assert answer({**choice(), "usage": usage}).prompt_ids is None


def test_another_count_than_was_sent_is_other_ids() -> None:
    as_sent, longer, longest = (answer({**choice(), "usage": {"prompt_tokens": count}}) for count in (3, 4, 5))
    assert as_sent.prompt_ids == (1, 2, 3)
    assert compare_answers([as_sent], [as_sent]).same_prompt_ids is True
    assert compare_answers([as_sent], [longer]).same_prompt_ids is False
    assert compare_answers([longer], [longest]).same_prompt_ids is False
    assert compare_answers([longer], [longer]).same_prompt_ids is None  # as many, and nobody knows which


def test_tokens_of_a_text_are_the_servers_own() -> None:
    told = {**choice(), "tokens": [5, 6, 7]}
    assert answer(told, "a text").prompt_ids == (5, 6, 7)
    assert answer({**told, "tokens": [5, 6]}, "a text").prompt_ids is None
    assert answer({**told, "tokens": ["a", "b", "c"]}, "a text").prompt_ids is None


def facts_from(**ours: Any) -> Any:
    with saying({"id": "m", "enginebay": {"engine": "fake", **ours}}) as target:
        return fetch_server_facts(target)


@pytest.mark.parametrize("settings", [None, [], "x", {"a": 1}, {"a": None}, {"a": {}}])
def test_settings_in_another_form_are_left_out(settings: Any) -> None:
    found = facts_from(settings=settings, warnings="odd")
    assert found.ours and (found.asked, found.effective, list(found.warnings)) == ({}, {}, [])


def test_numbers_in_another_form_are_left_out() -> None:
    found = facts_from(context_length="8k", memory_bytes=True, load_s=[1])
    assert (found.context_length, found.memory_bytes, found.load_s) == (None, None, None)
    found = facts_from(context_length=8192, memory_bytes=1 << 30, load_s=2)
    assert (found.context_length, found.memory_bytes, found.load_s) == (8192, 1 << 30, 2.0)


@pytest.mark.parametrize("rows", [None, {"a": 1}, [None], [{"id": None}], [{"id": 7}], [{"id": ["m"]}], [{}]])
def test_a_list_of_models_without_names_is_none(rows: Any) -> None:
    with saying({"data": rows}) as target, pytest.raises(ServerUnusable, match="does not list its models"):
        find_only_model(target)


def test_the_only_model_is_found_and_several_are_named() -> None:
    with saying({"data": [{"id": "a"}, {"id": 7}]}) as target:
        assert find_only_model(target) == "a"
    with saying({"data": [{"id": "a"}, {"id": "b"}]}) as target, pytest.raises(ServerUnusable, match="a, b"):
        find_only_model(target)


def test_a_model_that_the_server_does_not_list_is_refused_and_those_there_are_named() -> None:
    listed = {"data": [{"id": "a"}, {"id": "b"}]}
    with serve_pages({"/v1/models": listed}) as url:
        assert fetch_checked_facts(TargetServer(url, "a")).model_card == {}
        with pytest.raises(UsageError, match=r"has no model 'm'\nname one of: a, b"):
            fetch_checked_facts(TargetServer(url, "m"))
    with serve_pages({"/v1/models": listed, "/v1/models/m": {"id": "m"}}) as url:  # it knows more than it lists
        assert fetch_checked_facts(TargetServer(url, "m")).model_card == {"id": "m"}


@pytest.mark.parametrize("pages", [{}, {"/v1/models": {"data": []}}, {"/v1/models": "none"}])
def test_a_server_without_a_list_is_let_through(pages: dict[str, Any]) -> None:
    with serve_pages(pages) as url:
        assert fetch_checked_facts(TargetServer(url, "m")).kind == ""


def test_what_is_nested_without_end_is_text() -> None:
    deep = b"[" * 200_000
    with saying(deep) as target:
        assert request_json(target, "/v1/models") == (200, deep.decode())
