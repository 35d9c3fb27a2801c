from __future__ import annotations

import json

import pytest

from enginebay.errors import ConfigError
from enginebay.lab.workload.trace_files import TraceRow, read_trace
from enginebay.lab.workload.workload_builder import build_unmeasured_requests, build_workload
from enginebay.lab.workload.workload_spec import TraceSpec
from tests.unit.lab.workload.small_tokenizers import make_byte_level
from tests.unit.lab.workload.workload_requests import make_requests

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,40,44
2023-11-16 18:17:04.0319600,10,1
2023-11-16 18:17:05.9799600,30,0
"""
MOONCAKE = [
    {"timestamp": 27000, "input_length": 20, "output_length": 5, "hash_ids": [46, 47, 48]},
    {"timestamp": 30000, "input_length": 20, "output_length": 5, "hash_ids": [46, 47, 49]},
    {"timestamp": 30500, "input_length": 11, "output_length": 5, "hash_ids": [46]},
    {"timestamp": 31000, "input_length": 11, "output_length": 5, "hash_ids": [46]},
]


@pytest.fixture
def azure(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(AZURE)
    return path


@pytest.fixture
def mooncake(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in MOONCAKE))
    return path


def test_azure_times_count_from_the_first(azure):
    rows = read_trace(azure, "azure")
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(40, 44), (10, 1), (30, 0)]
    assert [row.at_s for row in rows] == pytest.approx([0, 0.052, 2.0], abs=1e-5)


def test_azure_dates_with_a_zone_and_out_of_order(azure):
    azure.write_text(f"{AZURE.splitlines()[0]}\n2024-05-10 00:00:01.5+00:00,3,4\n2024-05-09 19:00:00-05:00,1,2\n")
    assert read_trace(azure, "azure") == [TraceRow(0.0, 1, 2), TraceRow(1.5, 3, 4)]


def test_requests_of_azure_have_its_lengths_and_times(azure):
    made = build_workload(TraceSpec(azure, "azure"), make_byte_level(), None, 1)
    assert [(len(one.prompt), one.input_tokens, one.output_tokens) for one in made.requests] == [
        (40, 40, 44),
        (10, 10, 1),
    ]
    assert made.requests[1].at_s == pytest.approx(0.052, abs=1e-5)
    assert made.notes == ("1 of 3 requests in the trace skipped: empty prompt or empty response",)


def test_mooncake_blocks_with_equal_hashes_are_shared(mooncake):
    first, second, third, fourth = (
        one.prompt for one in make_requests(TraceSpec(mooncake, "mooncake", block_tokens=8), make_byte_level(), None, 1)
    )
    assert [len(one) for one in (first, second, third, fourth)] == [20, 20, 11, 11]
    assert first[:16] == second[:16]
    assert first[16] != second[16] or first[17] != second[17]
    assert first[:8] == third[:8] == fourth[:8]
    assert third[8] != fourth[8]  # beyond the blocks nothing is shared


def test_as_text_a_prompt_of_whole_blocks_still_has_its_length(mooncake):
    spec = TraceSpec(mooncake, "mooncake", block_tokens=8, send="text")
    for one in make_requests(spec, make_byte_level(), None, 1):
        assert len(make_byte_level().encode(one.prompt)) == one.input_tokens


def test_the_same_seed_gives_the_same_prompts(mooncake):
    spec = TraceSpec(mooncake, "mooncake")
    first, again, other = (make_requests(spec, make_byte_level(), None, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_part_of_a_trace(mooncake):
    spec = TraceSpec(mooncake, "mooncake", start_s=3.0)
    assert [one.at_s for one in make_requests(spec, make_byte_level(), 2, 1)] == [3.0, 3.5]
    with pytest.raises(ConfigError, match="has 3 requests to send, but 4 are needed"):
        make_requests(spec, make_byte_level(), 4, 1)


def test_requests_beyond_the_context_are_refused_dropped_or_cut(azure):
    def made(too_long):
        return build_workload(
            TraceSpec(azure, "azure", too_long=too_long), make_byte_level(), None, 1, context_length=50
        )

    with pytest.raises(ConfigError, match="1 of 2 requests in the trace exceed"):
        made("refuse")
    dropped, cut = made("drop"), made("cut")
    assert [one.input_tokens for one in dropped.requests] == [10]
    assert [(one.input_tokens, one.output_tokens) for one in cut.requests] == [(6, 44), (10, 1)]
    assert dropped.notes[-1] == "1 of 2 requests in the trace skipped: longer than the context length of 50"
    assert cut.notes[-1] == "1 of 2 requests in the trace truncated to the context length of 50"


def test_only_what_is_sent_must_fit(azure):
    spec = TraceSpec(azure, "azure")
    azure.write_text(f"{AZURE}2023-11-16 18:17:09,9000,1\n")
    assert len(make_requests(spec, make_byte_level(), 2, 1, context_length=100)) == 2
    with pytest.raises(ConfigError, match="1 of 3 requests in the trace exceed"):
        make_requests(spec, make_byte_level(), 3, 1, context_length=100)


def test_an_answer_longer_than_the_context_is_cut_to_half_of_it(azure):
    spec = TraceSpec(azure, "azure", too_long="cut")
    first, _ = make_requests(spec, make_byte_level(), None, 1, context_length=20)
    assert (first.input_tokens, first.output_tokens) == (10, 10)


@pytest.mark.parametrize(
    ("format", "content", "said"),
    [
        ("azure", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,4", "line 2: not a request"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,4,4", "line 2: not a request"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-4,4", "negative length"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
        ("mooncake", "\n{", "line 2: not a request"),
        ("mooncake", '{"timestamp": 1, "input_length": 3}', "line 1: not a request"),
        ("mooncake", '{"timestamp": NaN, "input_length": 3, "output_length": 3}', "invalid time"),
        ("mooncake", "[]", "line 1: not a request"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path, format, content, said):
    path = tmp_path / "trace"
    path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        read_trace(path, format)


def test_a_short_trace_gives_what_it_has_for_what_is_not_measured(mooncake):
    spec = TraceSpec(mooncake, "mooncake", block_tokens=8)
    others = build_unmeasured_requests(spec, make_byte_level(), 8, 2)
    assert len(others) == len(MOONCAKE)
    assert {one.prompt for one in others}.isdisjoint(
        one.prompt for one in make_requests(spec, make_byte_level(), None, 1)
    )
    with pytest.raises(ConfigError, match="has 0 requests to send"):
        build_unmeasured_requests(TraceSpec(mooncake, "mooncake", start_s=99.0), make_byte_level(), 8, 2)
