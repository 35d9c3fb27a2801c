from __future__ import annotations

import json

import pytest

from enginebay.errors import ConfigError, InvalidRequest
from enginebay.lab.workload.workload_builder import build_unmeasured_requests, build_workload
from enginebay.lab.workload.workload_spec import JsonlSpec
from tests.unit.lab.workload.small_tokenizers import WORDS, make_byte_level, make_sentencepiece
from tests.unit.lab.workload.workload_requests import make_requests

LONG = " ".join(WORDS[:30])


@pytest.fixture
def file(tmp_path):
    def write(*lines):
        path = tmp_path / "prompts.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return path

    return write


def chat(*contents):
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def render(messages):
    return make_byte_level().encode("".join(f"|{one['content']}" for one in messages), add_special=False)


def test_text_ids_and_messages(file):
    path = file(
        {"prompt": "lal bel", "output_tokens": 3},
        {"prompt": [4, 5]},
        "",
        {**chat("bel"), "max_tokens": 9, "group": "a"},
    )
    text, ids, messages = make_requests(JsonlSpec(path, output_tokens=7), make_byte_level(), None, 0)
    assert (text.prompt, text.output_tokens) == ("lal bel", 3)
    assert text.input_tokens == len(make_byte_level().encode("lal bel"))
    assert (ids.prompt, ids.input_tokens, ids.output_tokens) == ((4, 5), 2, 7)
    assert messages.prompt == ({"role": "user", "content": "bel"},)
    assert (messages.input_tokens, messages.output_tokens, messages.group) == (None, 9, "a")


def test_no_tokenizer_is_needed_to_send_a_file(file):
    (request,) = make_requests(JsonlSpec(file({"prompt": "hi"})), None, None, 0)
    assert (request.prompt, request.input_tokens) == ("hi", None)


def test_a_chat_is_counted_with_its_template(file):
    (request,) = make_requests(JsonlSpec(file(chat("bel", "lal"))), make_byte_level(), None, 0, render=render)
    assert request.input_tokens == len(render(request.prompt))


def test_a_chat_that_the_template_does_not_know_is_sent_uncounted(file):
    def refusing(messages):
        raise InvalidRequest("no images", "")

    (request,) = make_requests(JsonlSpec(file(chat("bel"))), make_byte_level(), None, 0, render=refusing)
    assert request.input_tokens is None


def test_text_is_cut_to_its_beginning_with_the_first_token_counted(file):
    tokenizer = make_sentencepiece()
    (request,) = make_requests(JsonlSpec(file({"prompt": LONG}), max_input_tokens=6), tokenizer, None, 0)
    assert request.input_tokens == len(tokenizer.encode(request.prompt)) == 6
    assert LONG.startswith(request.prompt)


def test_ids_are_cut_and_short_prompts_are_left_alone(file):
    path = file({"prompt": list(range(9))}, {"prompt": [1]})
    assert [one.prompt for one in make_requests(JsonlSpec(path, max_input_tokens=4), None, None, 0)] == [
        (0, 1, 2, 3),
        (1,),
    ]


def test_half_a_character_is_not_kept(file):
    (request,) = make_requests(JsonlSpec(file({"prompt": "☃☃"}), max_input_tokens=4), make_byte_level(), None, 0)
    assert request.prompt == "☃"


def test_of_a_chat_the_last_text_gives_way(file):
    path = file(chat("bel", LONG))
    (request,) = make_requests(JsonlSpec(path, max_input_tokens=10), make_byte_level(), None, 0, render=render)
    assert request.input_tokens == 10
    assert request.prompt[0]["content"] == "bel"
    assert LONG.startswith(request.prompt[1]["content"])


def test_what_cannot_be_cut_is_refused(file):
    path = file(chat("bel"))
    with pytest.raises(ConfigError, match="needs the model's tokenizer"):
        make_requests(JsonlSpec(path, max_input_tokens=1), make_byte_level(), None, 0)
    with pytest.raises(ConfigError, match="leaves nothing"):
        make_requests(JsonlSpec(path, max_input_tokens=1), make_byte_level(), None, 0, render=render)


def test_more_than_the_file_has_is_refused_unless_it_may_repeat(file):
    path = file({"prompt": "a"}, {"prompt": "b"})
    with pytest.raises(ConfigError, match="has 2 requests to send, but 5 are needed"):
        make_requests(JsonlSpec(path), None, 5, 0)
    assert "".join(one.prompt for one in make_requests(JsonlSpec(path, repeat=True), None, 5, 0)) == "ababa"


def test_shuffling_follows_the_seed_and_loses_nothing(file):
    spec = JsonlSpec(file(*({"prompt": word} for word in WORDS)), shuffle=True)
    first, again, other = ([one.prompt for one in make_requests(spec, None, None, seed)] for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(first) == sorted(other) == sorted(WORDS)


def prompts(requests):
    return "".join(one.prompt for one in requests)


def test_what_is_not_measured_comes_from_the_end_of_the_file(file):
    spec = JsonlSpec(file(*({"prompt": letter} for letter in "abcdefgh")))
    assert prompts(build_workload(spec, None, 3, 0, held_back=5).requests) == "abc"
    assert prompts(build_unmeasured_requests(spec, None, 3, 0)) == "fgh"
    assert prompts(build_unmeasured_requests(spec, None, 2, 7, before=3)) == "de"


def test_a_short_file_gives_what_it_has(file):
    spec = JsonlSpec(file({"prompt": "a"}, {"prompt": "b"}))
    assert prompts(build_workload(spec, None, None, 0, held_back=16).requests) == "ab"
    assert prompts(build_unmeasured_requests(spec, None, 8, 0)) == "ab"
    assert prompts(build_unmeasured_requests(spec, None, 8, 0, before=1)) == "a"
    assert prompts(build_unmeasured_requests(spec, None, 1, 0, before=8)) == "b"


def test_an_unmeasured_last_line_need_not_fit_the_context(file):
    spec = JsonlSpec(file({"prompt": "a"}, {"prompt": [1] * 9}))
    assert prompts(build_workload(spec, None, 1, 0, context_length=8).requests) == "a"
    assert prompts(build_unmeasured_requests(spec, None, 2, 0, context_length=8)) == "a"


def test_what_is_held_back_is_never_shuffled_in_as_far_as_there_is_more(file):
    spec = JsonlSpec(file(*({"prompt": letter} for letter in "abcdef")), shuffle=True)
    assert all(
        set(prompts(build_workload(spec, None, 2, seed, held_back=3).requests)) < set("abc") for seed in range(9)
    )
    assert sorted(prompts(build_workload(spec, None, 5, 1, held_back=3).requests)) == list("abcde")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: needs either"),
        ({"text": "a"}, "line 2: needs either"),
        ({"prompt": "a", **chat("b")}, "line 2: needs either"),
        ({"prompt": ""}, "line 2: the prompt is empty"),
        ({"prompt": []}, "line 2: the prompt is empty"),
        ({"prompt": [1, "a"]}, "wrong kind"),
        ({"prompt": [1, -4]}, "wrong kind"),
        ({"messages": ["hi"]}, "wrong kind"),
        ({"prompt": "a", "max_tokens": 0}, "must be 1 or more"),
    ],
)
def test_bad_lines_are_named(file, line, said):
    with pytest.raises(ConfigError, match=said):
        make_requests(JsonlSpec(file({"prompt": "fine"}, line)), None, None, 0)


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="cannot be read"):
        make_requests(JsonlSpec(path), None, None, 0)
    path.write_text("\n\n")
    with pytest.raises(ConfigError, match="is empty"):
        make_requests(JsonlSpec(path), None, None, 0)
