from __future__ import annotations

import pytest

from enginebay.engines.llamacpp.stops import StopStrings


def _fed(stops: tuple[str, ...], *pieces: str) -> tuple[list[str], str | None]:
    finder = StopStrings(stops)
    sent: list[str] = []
    for piece in pieces:
        sent.append(finder.feed(piece))
        if finder.matched:
            return sent, finder.matched
    return [*sent, finder.rest()], None


def test_without_stops_text_goes_straight_through() -> None:
    assert _fed((), "a", "b") == (["a", "b", ""], None)


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_stop_string_is_found_wherever_it_is_cut(cut: int) -> None:
    text = "xSTOPy"
    assert "".join(_fed(("STOP",), text[:cut], text[cut:])[0]) == "x"


def test_nothing_of_a_possible_beginning_is_sent_early() -> None:
    assert _fed(("end.",), "the e", "n", "dless") == (["the ", "", "endless", ""], None)


def test_what_was_held_comes_at_the_end() -> None:
    assert _fed(("END",), "the EN") == (["the ", "EN"], None)


def test_the_first_in_the_text_wins_and_the_longer_of_two_at_one_place() -> None:
    assert _fed(("b", "a"), "xab") == (["x"], "a")
    assert _fed(("ab", "abc"), "xabcd") == (["x"], "abc")


def test_text_passes_while_the_search_is_off() -> None:
    finder = StopStrings(("a",))
    assert finder.feed("aaa", searching=False) == "aaa" and finder.matched is None
