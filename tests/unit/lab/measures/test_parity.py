from __future__ import annotations

import json
import math

import pytest

from enginebay.lab.measures.parity import ParityAnswer, compare_answers, diff_settings, find_differing_settings


def answer(
    *ids: int, prompt: tuple[int, ...] | None = (1, 2), logprobs: tuple[float, ...] | None = None
) -> ParityAnswer:
    return ParityAnswer(prompt, ids, logprobs, " ".join(map(str, ids)))


def test_equal_answers_agree_in_everything() -> None:
    found = compare_answers([answer(1, 2, 3)] * 2, [answer(1, 2, 3)] * 2)
    assert (found.answers, found.same_prompt_ids, found.identical_answers, found.greedy_agreement) == (
        2,
        True,
        1.0,
        1.0,
    )
    assert found.first_divergence is None
    assert found.output_length_ratio == 1.0
    assert "first_divergence" not in found.absent


def test_agreement_ends_at_the_first_divergence() -> None:
    found = compare_answers([answer(1, 2, 3, 4), answer(5, 6)], [answer(1, 9, 3, 4), answer(5, 6)])
    assert found.identical_answers == 0.5
    assert found.greedy_agreement == pytest.approx((1 + 2) / 6)
    assert found.first_divergence is not None
    assert (found.first_divergence.count, found.first_divergence.median) == (1, 1.0)


def test_an_engine_that_stops_earlier_parts_there() -> None:
    found = compare_answers([answer(1, 2, 3, 4)], [answer(1, 2)])
    assert found.identical_answers == 0.0
    assert found.greedy_agreement == 0.5
    assert found.first_divergence is not None
    assert found.first_divergence.minimum == 2.0
    assert found.output_length_ratio == 0.5


def test_logprobs_are_compared_until_answers_part() -> None:
    a = answer(1, 2, 3, logprobs=(-0.1, -0.2, -5.0))
    b = answer(1, 2, 4, logprobs=(-0.2, -0.5, -0.1))
    found = compare_answers([a], [b])
    assert found.logprob_distance == pytest.approx((0.1 + 0.3) / 2)
    assert found.logprob_distance_max == pytest.approx(0.3)


def test_a_nan_logprob_is_skipped() -> None:
    a, b = answer(1, 2, logprobs=(-math.inf, -1.0)), answer(1, 2, logprobs=(-math.inf, -1.5))
    assert compare_answers([a], [b]).logprob_distance == pytest.approx(0.5)


def test_answers_that_diverge_at_the_first_token_have_no_logprob_distance() -> None:
    found = compare_answers([answer(1, logprobs=(-1.0,))], [answer(2, logprobs=(-1.0,))])
    assert found.logprob_distance is None
    assert found.absent["logprob_distance"] == "no two answers start with the same token"
    assert found.greedy_agreement == 0.0


def test_another_prompt_breaks_parity() -> None:
    assert compare_answers([answer(1)], [answer(1, prompt=(1, 3))]).same_prompt_ids is False


def test_one_differing_prompt_is_enough() -> None:
    b = [answer(1, prompt=(9,)), answer(1, prompt=None)]
    assert compare_answers([answer(1), answer(1)], b).same_prompt_ids is False


def test_unreported_values_are_absent_with_a_reason() -> None:
    found = compare_answers(
        [ParityAnswer(None, None, None, "yes")] * 2, [answer(1), ParityAnswer(None, None, None, "yes")]
    )
    assert found.same_prompt_ids is None
    assert found.identical_answers == 0.5
    assert found.greedy_agreement is None
    assert set(found.absent) == {
        "same_prompt_ids", "greedy_agreement", "first_divergence", "output_length_ratio", "logprob_distance", "logprob_distance_max"
    }  # fmt: skip


def test_empty_answers_are_the_same() -> None:
    found = compare_answers([answer()], [answer()])
    assert (found.identical_answers, found.greedy_agreement, found.output_length_ratio) == (1.0, 1.0, None)


def test_it_is_plain_data() -> None:
    found = compare_answers([answer(1, 2)], [answer(1, 3)]).to_dict()
    assert json.loads(json.dumps(found)) == found


def test_answers_need_a_partner() -> None:
    with pytest.raises(ValueError, match="not 1 and 2"):
        compare_answers([answer(1)], [answer(1)] * 2)
    with pytest.raises(ValueError, match="at least one"):
        compare_answers([], [])


def test_settings_compare_requested_with_effective() -> None:
    asked = {"batching": {"batch_size": 8}, "fp_precision": "bfloat16", "threads": "auto", "seed": 1, "gpus": [0, 1]}
    effective = {
        "batching.batch_size": 8,
        "fp_precision": "float32",
        "threads": 2,
        "gpus": (0, 1),
        "context_length": 2048,
    }
    rows = {row.name: (row.asked, row.effective, row.state) for row in diff_settings(asked, effective)}
    assert rows == {
        "batching.batch_size": (8, 8, "as_asked"),
        "fp_precision": ("bfloat16", "float32", "changed"),
        "gpus": ([0, 1], (0, 1), "as_asked"),
        "seed": (1, None, "not_reported"),
        "threads": ("auto", 2, "chosen_by_engine"),
        "context_length": (None, 2048, "chosen_by_engine"),
    }


def test_engines_are_set_side_by_side_where_they_ran_differently() -> None:
    found = find_differing_settings(
        {"vllm": {"dtype": "f32", "seqs": 8, "same": [1]}, "llamacpp": {"dtype": "f16", "same": (1,)}}
    )
    assert found == {"dtype": {"vllm": "f32", "llamacpp": "f16"}, "seqs": {"vllm": 8}}
