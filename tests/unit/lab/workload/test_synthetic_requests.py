from __future__ import annotations

from itertools import combinations

import pytest

from enginebay.errors import ConfigError
from enginebay.lab.workload.prompt_writer import find_words
from enginebay.lab.workload.workload_builder import hash_requests
from enginebay.lab.workload.workload_spec import SyntheticSpec
from tests.unit.lab.workload.small_tokenizers import make_byte_level
from tests.unit.lab.workload.workload_requests import make_requests

SPEC = SyntheticSpec(12, 5, requests=40)


def build(spec=SPEC, count=None, seed=1, **more):
    return make_requests(spec, make_byte_level(), count, seed, **more)


def test_lengths_are_as_requested():
    requests = build()
    assert len(requests) == 40
    assert {(len(one.prompt), one.input_tokens, one.output_tokens) for one in requests} == {(12, 12, 5)}


def test_the_count_given_overrules_the_workload():
    assert len(build(count=7)) == 7


def test_the_same_seeds_give_the_same_and_each_seed_counts():
    other = SyntheticSpec(12, 5, requests=40, seed=1)
    hashes = {hash_requests(build()), hash_requests(build(seed=2)), hash_requests(build(other))}
    assert len(hashes) == 3
    assert hash_requests(build()) in hashes


def test_all_requests_differ_from_the_first_word_on():
    """A prefix cache must not hit."""
    assert len({one.prompt[0] for one in build(count=200)}) == 200


def test_more_requests_than_words_differ_all_the_same():
    count = 2 * len(find_words(make_byte_level())) + 1
    assert len({one.prompt for one in build(SyntheticSpec(2), count)}) == count


def test_too_many_for_so_short_prompts_is_refused():
    with pytest.raises(ConfigError, match="different prompts of 1 tokens"):
        build(SyntheticSpec(1), len(find_words(make_byte_level())) + 1)


def test_a_shared_prefix_is_shared_and_nothing_more():
    prompts = [one.prompt for one in build(SyntheticSpec(12, shared_prefix_tokens=8), 50)]
    assert len({prompt[:8] for prompt in prompts}) == 1
    assert len({prompt[8] for prompt in prompts}) == 50


def test_groups_of_prefixes_are_all_used():
    prompts = [one.prompt for one in build(SyntheticSpec(12, shared_prefix_tokens=8, prefix_groups=3), 60)]
    prefixes = {prompt[:8] for prompt in prompts}
    assert len(prefixes) == 3
    assert all(a[0] != b[0] or a[1] != b[1] for a, b in combinations(prefixes, 2))


def test_an_answer_may_end_when_it_will():
    assert {one.output_tokens for one in build(SyntheticSpec(12), 3)} == {None}


def test_text_and_ids_are_the_same_prompts():
    tokenizer = make_byte_level()
    ids = [one.prompt for one in build()]
    texts = [one.prompt for one in build(SyntheticSpec(12, 5, requests=40, send="text"))]
    assert [tuple(tokenizer.encode(text, add_special=False)) for text in texts] == ids


def test_a_chat_without_its_template_has_no_known_length():
    (request,) = build(SyntheticSpec(12, send="chat"), 1)
    assert request.input_tokens is None
    assert request.prompt[0]["role"] == "user"


@pytest.mark.parametrize(("context", "fits"), [(17, True), (16, False)])
def test_prompt_and_answer_must_fit_the_context(context, fits):
    if fits:
        assert len(build(context_length=context)) == 40
        return
    with pytest.raises(ConfigError, match="12 input plus 5 output tokens exceed"):
        build(context_length=context)


@pytest.mark.parametrize("count", [0, -1])
def test_no_requests_at_all_is_refused(count):
    with pytest.raises(ConfigError, match="at least 1"):
        build(count=count)


def test_without_an_end_or_a_tokenizer_it_is_refused():
    with pytest.raises(ConfigError, match="needs a number of requests"):
        build(SyntheticSpec(12))
    with pytest.raises(ConfigError, match="need the model's tokenizer"):
        make_requests(SPEC, None, 1, 1)


def test_an_impossible_length_is_refused_however_it_comes():
    with pytest.raises(ConfigError, match="at least 1"):
        SyntheticSpec(0)
