"""HTML construction; everything that is not markup is escaped."""

from __future__ import annotations

from html import escape

VOID = frozenset({"br", "hr", "input", "meta"})


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


def h(tag: str, *children: Html | str | int | float | None, **attributes: str | int | bool | None) -> Html:
    """Return an element. `class_` and `for_` lose their underscore, `aria_label` becomes `aria-label`; None omits the attribute."""
    rendered = "".join(_render_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Html(f"<{tag}{rendered}>")
    return Html(f"<{tag}{rendered}>{join_html(*children)}</{tag}>")


def join_html(*children: Html | str | int | float | None) -> Html:
    """Concatenate pieces."""
    return Html("".join(c if isinstance(c, Html) else escape(str(c)) for c in children if c is not None))


def _render_attribute(name: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    spelled = name.rstrip("_").replace("_", "-")
    return f" {spelled}" if value is True else f' {spelled}="{escape(str(value))}"'


def render_section(anchor: str, title: str, *children: Html | str | None) -> Html:
    """Render a section that the navigation can link to."""
    return h("section", h("h2", title, id=f"{anchor}-title"), *children, id=anchor, aria_labelledby=f"{anchor}-title")


def render_table(head: list[Html | str], rows: list[list[Html | str | None]], caption: str, **attributes: str) -> Html:
    """Render a table that scrolls sideways on narrow screens; the first cell of a row is its header."""
    top = h("thead", h("tr", *(h("th", cell, scope="col") for cell in head)))
    body = h("tbody", *(_render_row(row) for row in rows))
    inner = h("table", h("caption", caption), top, body, **attributes)
    return h("div", inner, class_="wide", tabindex=0, role="region", aria_label=caption)


def _render_row(cells: list[Html | str | None]) -> Html:
    return h("tr", h("th", cells[0], scope="row"), *(h("td", "–" if cell is None else cell) for cell in cells[1:]))


def render_badge(status: str) -> Html:
    """Render a verdict as word, sign and colour: never by colour alone."""
    sign = {"valid": "✓", "informative": "◐"}.get(status, "✕")
    known = status if status in ("valid", "informative") else "invalid"
    return h("span", h("span", sign, aria_hidden="true"), f" {status}", class_=f"badge {known}")


def render_swatch(series: int) -> Html:
    """Render the colour of a series."""
    return h("span", class_=f"swatch c{series % 8}", aria_hidden="true")


def render_details(summary: Html | str, *children: Html | str | None, opened: bool = False) -> Html:
    return h("details", h("summary", summary), *children, open=opened)
