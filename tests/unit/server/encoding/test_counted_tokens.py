"""Tokens count in the metrics as they leave, and add up to the usage."""

from __future__ import annotations

from typing import Any

from enginebay.contract import Delta, FinishReason, GenerateRequest, Sampling
from enginebay.contract.engine_messages import Done, Timing, Usage
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.choices_json_writer import ChoicesJsonWriter
from tests.unit.server.encoding.test_response_writer import Connection, Worker, make_encoder, make_session, start_stream


def counted(writer: Any) -> tuple[float, float, float]:
    session = writer.session
    return session.prompt_tokens.value, session.cached_tokens.value, session.completion_tokens.value


async def test_tokens_count_at_each_flush_and_add_up_to_the_usage() -> None:
    writer, _, _ = start_stream()
    writer.on_token("a", 1)
    assert counted(writer) == (0, 0, 0)
    writer.on_flush()
    assert counted(writer) == (1, 0, 1)  # the prompt counts with the first token
    writer.on_token("b", 1)
    writer.on_token("c", 1)
    writer.on_flush()
    assert counted(writer) == (1, 0, 3)
    writer.on_delta(Delta("", (), 0, (), FinishReason.STOP))
    writer.on_done(Done(Usage(1, 5, 1), Timing(0.1, 0.2)))  # the engine also counts what it held back
    writer.counted_tokens.count_usage(writer.session, writer.usage)
    writer.counted_tokens.count_usage(writer.session, writer.usage)
    assert counted(writer) == (1, 1, 5)


async def test_tokens_of_all_choices_and_prompts_count_while_a_json_response_is_generated() -> None:
    worker, choices = Worker(), [ChoiceState(index) for index in range(4)]
    writer = ChoicesJsonWriter(Connection(), make_session(), choices, make_encoder(4).encode_body)  # type: ignore[arg-type]
    requests = [GenerateRequest(token_ids=(1, 2, 3), sampling=Sampling(n=2))] * 2
    writer.submit(worker, requests)  # type: ignore[arg-type]
    for listener in worker.listeners.values():
        listener.on_token("a", 1)
        listener.on_delta(Delta("b", (2,), 1))
        listener.on_flush()
    assert counted(writer) == (6, 0, 4)


async def test_a_retry_counts_only_what_exceeds_the_attempt_before() -> None:
    first, _, _ = start_stream()
    for text in "abcde":
        first.on_token(text, 1)
    first.on_flush()
    second, _, _ = start_stream()
    second.session, second.counted_tokens = first.session, first.counted_tokens
    for text in "abc":
        second.on_token(text, 1)
    second.on_flush()
    assert counted(second) == (1, 0, 5)
    for text in "defg":
        second.on_token(text, 1)
    second.on_flush()
    assert counted(second) == (1, 0, 7)


async def test_text_without_token_ids_counts_by_its_pieces_until_the_usage_arrives() -> None:
    writer, _, _ = start_stream()
    for piece in range(4):
        writer.on_delta(Delta("some words", (), 0))
        writer.on_flush()
        assert counted(writer)[2] == piece  # the last piece may only close a tag
    writer.on_delta(Delta("", (), 0, (), FinishReason.STOP))
    writer.on_done(Done(Usage(9, 8, 0), Timing(0.1, 0.2)))
    writer.counted_tokens.count_usage(writer.session, writer.usage)
    assert counted(writer) == (9, 0, 8)
