"""HTML built from pieces: whatever is not markup already is escaped."""

from __future__ import annotations

from html import escape

VOID = frozenset({"br", "hr", "input", "meta"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def h(tag: str, *children: Html | str | int | float | None, **attributes: str | int | bool | None) -> Html:
    """An element. `class_` and `for_` lose their underscore, `aria_label` becomes `aria-label`; None leaves out."""
    shown = "".join(_render_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Html(f"<{tag}{shown}>")
    return Html(f"<{tag}{shown}>{join_html(*children)}</{tag}>")


def join_html(*children: Html | str | int | float | None) -> Html:
    """Pieces one after the other."""
    return Html("".join(_render_child(one) for one in children if one is not None))


def _render_child(child: Html | str | int | float) -> str:
    return child if isinstance(child, Html) else escape(str(child))


def _render_attribute(name: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    spelled = name.rstrip("_").replace("_", "-")
    return f" {spelled}" if value is True else f' {spelled}="{escape(str(value))}"'


def render_section(anchor: str, title: str, *children: Html | str | None) -> Html:
    """A part of the page that the navigation can point at."""
    return h("section", h("h2", title, id=f"{anchor}-title"), *children, id=anchor, aria_labelledby=f"{anchor}-title")


def render_table(head: list[Html | str], rows: list[list[Html | str | None]], caption: str, **attributes: str) -> Html:
    """A table that scrolls sideways on its own where the page is narrow; a row's first cell is its header."""
    top = h("thead", h("tr", *(h("th", one, scope="col") for one in head)))
    body = h("tbody", *(_render_row(row) for row in rows))
    inner = h("table", h("caption", caption), top, body, **attributes)
    return h("div", inner, class_="wide", tabindex=0, role="region", aria_label=caption)


def _render_row(cells: list[Html | str | None]) -> Html:
    return h("tr", h("th", cells[0], scope="row"), *(h("td", "–" if one is None else one) for one in cells[1:]))


def render_badge(status: str) -> Html:
    """A verdict in a word, a sign and a colour: never by colour alone."""
    sign = {"valid": "✓", "informative": "◐"}.get(status, "✕")
    known = status if status in ("valid", "informative") else "invalid"
    return h("span", h("span", sign, aria_hidden="true"), f" {status}", class_=f"badge {known}")


def render_swatch(series: int) -> Html:
    """The colour that an engine has everywhere on the page."""
    return h("span", class_=f"swatch c{series % 8}", aria_hidden="true")


def render_details(summary: Html | str, *children: Html | str | None, opened: bool = False) -> Html:
    return h("details", h("summary", summary), *children, open=opened)
