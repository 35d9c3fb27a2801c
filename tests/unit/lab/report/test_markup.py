from __future__ import annotations

from enginebay.lab.report.markup import Html, h, join_html, render_table


def test_text_is_escaped_and_markup_is_not() -> None:
    assert h("p", "a < b & c", h("b", '"x"')) == "<p>a &lt; b &amp; c<b>&quot;x&quot;</b></p>"


def test_attributes_are_escaped_and_named_as_html_does() -> None:
    made = h("a", "x", class_="k", aria_label='say "hi"', hidden=True, title=None, open=False)
    assert made == '<a class="k" aria-label="say &quot;hi&quot;" hidden>x</a>'


def test_a_missing_cell_is_a_dash() -> None:
    assert "<td>–</td>" in render_table(["a", "b"], [["x", None]], "caption")


def test_joined_pieces_are_markup() -> None:
    assert isinstance(join_html("<", h("br")), Html)
    assert join_html("<", h("br")) == "&lt;<br>"
