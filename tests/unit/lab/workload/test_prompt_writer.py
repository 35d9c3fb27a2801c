"""Prompts have exactly the requested length, in every form, with every kind of tokenizer."""

from __future__ import annotations

import pytest

from enginebay.errors import ConfigError
from enginebay.lab.workload.prompt_writer import MAX_PIECES, MIN_WORDS, PromptWriter, find_words
from enginebay.lab.workload.seeded_random import make_generator
from enginebay.text.tokenization.tokenizer import load_tokenizer
from tests.unit.lab.workload.small_tokenizers import KINDS, WORDS, make_byte_level, make_sentencepiece
from tests.unit.text.tiny_gguf import write_tiny_llama


@pytest.fixture(params=list(KINDS))
def tokenizer(request):
    return KINDS[request.param]()


def templated(tokenizer):
    """A template that strips messages, as many do."""
    return lambda messages: tokenizer.encode(f"talk: {messages[0]['content'].strip()}\nreply:", add_special=False)


def test_words_come_back_as_themselves_in_any_order(tokenizer):
    words = find_words(tokenizer)
    assert len(words) >= MIN_WORDS
    row = make_generator(1).permutation(words).tolist()
    assert tokenizer.encode(tokenizer.decode(row), add_special=False) == row


def test_words_are_never_special(tokenizer):
    assert not set(find_words(tokenizer)) & (tokenizer.special_ids | tokenizer.added_ids)


def test_a_vocabulary_of_letters_gives_pieces_that_are_safe_beside_each_other(tmp_path):
    tokenizer = load_tokenizer(write_tiny_llama(tmp_path / "tiny.gguf"))
    pieces = find_words(tokenizer)
    assert 20 < len(pieces) <= MAX_PIECES
    row = [pieces[place] for place in make_generator(2).integers(len(pieces), size=2000)]
    assert tokenizer.encode(tokenizer.decode(row), add_special=False) == row


def test_a_vocabulary_without_any_is_refused():
    class Shouting:
        vocabulary_size = 3
        special_ids = added_ids = frozenset()

        def encode(self, text, add_special=True):
            return [0] * len(text)

        def decode(self, ids, skip_special=True):
            return "ab" * len(list(ids))

    with pytest.raises(ConfigError, match="cannot generate prompts"):
        find_words(Shouting())


@pytest.mark.parametrize("length", [3, 17, 256])
def test_ids_have_the_length_and_so_has_their_text(tokenizer, length):
    prompt = PromptWriter(tokenizer, "ids").write([], length, make_generator(3))
    assert len(prompt) == length
    assert tuple(tokenizer.encode(tokenizer.decode(prompt), add_special=False)) == prompt


@pytest.mark.parametrize("length", [3, 17, 256])
def test_text_counts_what_the_tokenizer_puts_around_it(tokenizer, length):
    prompt = PromptWriter(tokenizer, "text").write([], length, make_generator(3))
    assert len(tokenizer.encode(prompt, add_special=True)) == length


@pytest.mark.parametrize("length", [40, 256])
def test_a_chat_counts_its_template(tokenizer, length):
    render = templated(tokenizer)
    writer = PromptWriter(tokenizer, "chat", render)
    assert len(render(writer.write([], length, make_generator(3)))) == length
    assert writer.counts_whole_prompt


def test_without_a_template_the_message_has_the_length(tokenizer):
    writer = PromptWriter(tokenizer, "chat")
    (message,) = writer.write([], 40, make_generator(3))
    assert len(tokenizer.encode(message["content"], add_special=False)) == 40
    assert not writer.counts_whole_prompt


def test_a_length_below_the_template_is_refused():
    tokenizer = make_byte_level()
    too_short = len(templated(tokenizer)([{"content": WORDS[0]}])) - 1
    with pytest.raises(ConfigError, match=f"cannot write a prompt of {too_short} tokens"):
        PromptWriter(tokenizer, "chat", templated(tokenizer)).write([], too_short, make_generator(3))


def test_a_length_of_the_bos_token_alone_is_refused():
    with pytest.raises(ConfigError, match="cannot write a prompt of 1 tokens"):
        PromptWriter(make_sentencepiece(), "text").write([], 1, make_generator(3))


def test_numbers_differ_in_their_words():
    writer = PromptWriter(make_byte_level(), "ids")
    several = len(writer.words) * 2
    assert writer.count_digits(len(writer.words)) == 1
    assert writer.count_digits(several) == 2
    assert len({tuple(writer.number_to_words(number, 2)) for number in range(several)}) == several
