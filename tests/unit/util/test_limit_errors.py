"""Errors for requests over a limit name the setting that defines it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.constraints.regex_limits import check_regex
from enginebay.constraints.schema_limits import check_schema
from enginebay.errors import EnginebayError, InvalidRequest, Overloaded
from enginebay.server.api.openai.chat_plan import check_message_count
from enginebay.server.api.openai.completions import parse_prompts
from enginebay.server.api.openai.responses_input import to_chat_messages
from enginebay.server.api.openai.sampling_params import read_constraint, read_sampling
from enginebay.server.api.openai.schemas import ChatBody
from enginebay.server.api.openai.tool_use import plan_tools
from enginebay.server.api.request_dialect import encode_http_refusal
from enginebay.server.encoding.error_responses import encode_error
from enginebay.server.requests.run_generation import make_timeout_error
from enginebay.server.sessions.admission_queue import AdmissionQueue
from enginebay.util.limit_errors import make_limit_error
from tests.unit.server.http.memory_client import MemoryClient, build_post, wait

TIGHT = ServerLimits(
    n=2, stop=1, stop_chars=3, logit_bias=1, max_tokens=5, messages=1, tools=0, prompts=1, inputs=1, grammar_bytes=64,
    choices=1, choice_bytes=64, regex_chars=4, regex_states=10, schema_depth=3, schema_nodes=8, schema_bytes=64,
    grammar_depth=1, grammar_rules=1, grammar_symbols=4, grammar_stacks=2,
)  # fmt: skip
SERVED: Any = SimpleNamespace(limits=TIGHT)
HI = {"role": "user", "content": "hi"}


def _body(**fields: Any) -> ChatBody:
    return msgspec.convert({"model": "m", "messages": [HI], **fields}, ChatBody)


def _sampling(max_tokens: int | None = None, **fields: Any) -> Callable[[], object]:
    return lambda: read_sampling(_body(**fields), {}, TIGHT, max_tokens=max_tokens)


def _constraint(**fields: Any) -> Callable[[], object]:
    return lambda: read_constraint(_body(**fields), TIGHT)


def _schema(**schema: Any) -> Callable[[], object]:
    return lambda: check_schema(schema, TIGHT, "guided_json")


def _responses() -> object:
    return to_chat_messages(None, [HI, HI], TIGHT)


OVER: list[tuple[str, Callable[[], object]]] = [
    ("n", _sampling(n=3)),
    ("n", _sampling(best_of=3)),
    ("stop", _sampling(stop=["a", "b"])),
    ("stop", _sampling(stop_token_ids=[1, 2])),
    ("stop_chars", _sampling(stop="long")),
    ("logit_bias", _sampling(logit_bias={"1": 1, "2": 1})),
    ("max_tokens", _sampling(max_tokens=6)),
    ("messages", lambda: check_message_count([HI, HI], TIGHT)),
    ("messages", _responses),
    ("tools", lambda: plan_tools([{}], None, None, TIGHT, SERVED)),
    ("prompts", lambda: parse_prompts(["a", "b"], "prompts", SERVED, "prompt")),
    ("inputs", lambda: parse_prompts(["a", "b"], "inputs", SERVED, "input")),
    ("grammar_bytes", _constraint(guided_grammar="x" * 65)),
    ("grammar_depth", _constraint(guided_grammar='root ::= (("a"))')),
    ("grammar_rules", _constraint(guided_grammar='root ::= "a"\nb ::= "b"')),
    ("grammar_symbols", _constraint(guided_grammar='root ::= "a"{5}')),
    ("grammar_stacks", _constraint(guided_grammar='root ::= "a" root | "b" | "c"')),
    ("choice_bytes", _constraint(guided_choice=["a" * 65])),
    ("choices", _constraint(guided_choice=["a", "b"])),
    ("choices", _schema(enum=[1, 2])),
    ("regex_chars", lambda: check_regex("abcde", TIGHT, "guided_regex")),
    ("regex_states", lambda: check_regex("a{99}", ServerLimits(regex_states=10), "guided_regex")),
    ("regex_states", _schema(maxLength=11)),
    ("regex_states", _schema(allOf=[{"pattern": "a{6}"}, {"pattern": "a{7}"}])),
    ("schema_depth", _schema(items={"items": {"items": {}}})),
    ("schema_nodes", _schema(enum=[1, 2, 3, 4, 5, 6, 7, 8])),
    ("schema_bytes", _schema(title="x" * 64)),
]


@pytest.mark.parametrize(("setting", "request_over_limit"), OVER)
def test_the_setting_is_named(setting: str, request_over_limit: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request_over_limit()
    assert _names(refused.value, setting)


def _names(error: EnginebayError, setting: str) -> bool:
    """Whether the client's message ends with the name of an existing setting."""
    assert setting in ServerLimits.__dataclass_fields__
    return encode_error(error).message.endswith(f"server.limits.{setting}.")


async def test_the_settings_of_the_queue_are_named() -> None:
    for queue, setting in ((0, "queue"), (1, "queue_timeout_s")):
        admission = AdmissionQueue(1, queue, 0.01)
        await admission.enter()
        with pytest.raises(Overloaded) as refused:
            await admission.enter()
        assert _names(refused.value, setting)


def test_the_request_timeout_setting_is_named() -> None:
    error = make_timeout_error(SERVED, "request fewer tokens")
    assert _names(error, "request_timeout_s") and "request fewer tokens; " in error.hint


def test_a_limit_that_does_not_exist_cannot_be_named() -> None:
    with pytest.raises(AttributeError):
        make_limit_error("n is 3", TIGHT, "choises", "n")


# Refusals by the HTTP layer


async def test_limits_on_the_transport_name_their_settings() -> None:
    too_large = MemoryClient().send(build_post(b"x" * 2000))
    unpacked = MemoryClient().send(build_post(gzip.compress(b"x" * 2000), "content-encoding: gzip\r\n"))
    long_head = MemoryClient().send(b"GET / HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 600 + b"\r\n\r\n")
    slow_head, slow_body = MemoryClient().send(b"GET / HT"), MemoryClient().send(build_post(b"12345")[:-1])
    wait(slow_head, 11)
    wait(slow_body, 21)
    assert [client.received.rpartition(b":")[2] for client in (too_large, unpacked, long_head, slow_head, slow_body)] == [
        b"body_bytes", b"body_bytes", b"header_bytes", b"header_timeout_s", b"body_timeout_s"
    ]  # fmt: skip


def test_a_refusal_over_a_limit_names_it() -> None:
    message = json.loads(encode_http_refusal(413, "the body exceeds 9 bytes", "body_bytes"))["error"]["message"]
    assert message == "the body exceeds 9 bytes. The limit is set by server.limits.body_bytes."
