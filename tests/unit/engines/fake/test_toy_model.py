from __future__ import annotations

import itertools
from collections import Counter

from enginebay.contract import Guided, Sampling
from enginebay.engines.fake.engine import split_script
from enginebay.engines.fake.toy_model import EOS, ToySampler


def _output(count: int = 40, salt: str = "", choice: int = 0, **sampling: object) -> list[int]:
    sampler = ToySampler(b"ab", Sampling(**sampling), choice, salt)  # type: ignore[arg-type]
    return [sampler.sample_next()[0] for _ in range(count)]


def test_greedy_is_the_same_every_time() -> None:
    assert _output(temperature=0) == _output(temperature=0)


def test_seeds_choices_and_adapters_make_a_difference() -> None:
    assert _output(seed=1) == _output(seed=1)
    assert (
        len(
            {
                tuple(output)
                for output in (_output(seed=1), _output(seed=2), _output(seed=1, choice=1), _output(seed=1, salt="x"))
            }
        )
        == 4
    )


def test_ngrams_are_not_repeated() -> None:
    output = _output(temperature=0, no_repeat_ngram_size=2, ignore_eos=True)
    assert max(Counter(itertools.pairwise(output)).values()) == 1


def test_the_end_is_banned_when_asked() -> None:
    biased = {"logit_bias": {EOS: 50.0}, "temperature": 0}
    assert _output(1, **biased) == [EOS]
    assert EOS not in _output(ignore_eos=True, **biased)
    assert EOS not in _output(5, min_tokens=5, **biased)


def test_a_script_gives_characters_whole() -> None:
    pieces = split_script("é🌍")
    assert [text for text, _ in pieces] == ["", "é", "", "", "", "🌍"]
    assert bytes(token for _, ids in pieces for token in ids).decode() == "é🌍"


def test_with_every_token_banned_there_is_still_one() -> None:
    """A sampler that raises would end the step thread, and the model would hang."""
    assert len(_output(60, no_repeat_ngram_size=1, ignore_eos=True)) == 60
    guided = Guided(choice=("aaaa",))
    assert bytes(_output(4, guided=guided, no_repeat_ngram_size=1)) == b"aaaa"
    assert _output(5, guided=guided, min_tokens=9)[4] == EOS


def test_a_temperature_near_zero_is_greedy() -> None:
    assert _output(temperature=5e-324, ignore_eos=True) == _output(temperature=0, ignore_eos=True)
