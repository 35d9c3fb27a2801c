"""The report in a real browser: wide and narrow screens, light and dark themes, and print."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.lab.report.report_page import write_report
from enginebay.lab.store.run_reader import Run
from tests.unit.lab.report.report_runs import make_parity_answers, make_run, make_study

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ,  # on CI its absence is a failure
    reason="no browser: `make chromium` installs it on Debian; elsewhere put `chromium` on the PATH",
)
INVALID = {
    "status": "invalid",
    "reasons": [
        {"code": "send_lag", "severity": "invalid", "message": "p99 was 12 ms", "figure": 0.012, "limit": 0.005}
    ],
}
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
PLOTS = ("distribution-plot", "tradeoff-plot", "energy-plot", "timeline-plot")

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


def study() -> list[Run]:
    """Three engines at two loads; at the heavier one, one of them is invalid."""
    runs: list[Run] = [*make_study(cycles=3, answered=make_parity_answers())]
    for run in runs:
        if run.engine == "transformers" and run.manifest["profile"]["rate"] == 6.0:
            run.manifest["verdict"] = INVALID
    return runs


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(study(), tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture()
def opened(browser: Any, report: Path) -> Iterator[Open]:
    """Open a report; afterwards assert that it logged no errors and requested only its own file."""
    seen: list[tuple[str, list[str], list[str]]] = []
    contexts = []

    def open_page(path: Path = report, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        context.set_default_timeout(120_000)
        page = context.new_page()
        trouble: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        seen.append((path.as_uri(), trouble, requests))
        return page

    yield open_page
    for context in contexts:
        context.close()
    for address, trouble, requests in seen:
        assert trouble == []
        assert requests == [address]


def charts(page: Any, plot: str) -> list[Any]:
    found = page.locator(f"#{plot} svg[role=application]").all()
    assert found, f"{plot} draws nothing"
    return found


# Scrolling hides a tooltip; the scroll event arrives with the next frame.
SCROLLED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def into_view(chart: Any) -> dict[str, float]:
    chart.evaluate("node => node.scrollIntoView({ block: 'center' })")
    chart.page.evaluate(SCROLLED)
    box: dict[str, float] = chart.bounding_box()
    return box


def test_verdict_and_answers_are_on_the_first_screen(opened: Open) -> None:
    page = opened()
    for text in ("5 of 6 points are valid", "1 of 6 points is invalid", "vllm is highest", "llamacpp is lowest"):
        box = page.get_by_text(text).first.bounding_box()
        assert box["y"] + box["height"] < 800, text
    assert page.locator(".panel").count() == 4


def test_an_invalid_number_is_struck_through(opened: Open) -> None:
    row = opened().locator("#results-table tr", has_text="invalid")
    assert row.locator("s").count() >= 5
    assert "line-through" in row.locator("s").first.evaluate("node => getComputedStyle(node).textDecorationLine")


@pytest.mark.parametrize("width", [1280, 400])
def test_hovering_a_plot_shows_the_value(opened: Open, width: int) -> None:
    page = opened(width=width)
    for chart in (chart for plot in PLOTS for chart in charts(page, plot)):
        box = into_view(chart)
        mark = chart.locator("path.mark").first
        spot = (
            mark.bounding_box()
            if mark.count()
            else {"x": box["x"] + box["width"] * 0.6, "y": box["y"] + box["height"] * 0.5}
        )
        page.mouse.move(spot["x"] + 3, spot["y"] + 3)
        tip = page.locator("#tip")
        assert tip.is_visible()
        assert any(sign.isdigit() for sign in tip.locator(".value").first.inner_text())
        shown = tip.bounding_box()
        assert shown["x"] >= 0 and shown["x"] + shown["width"] <= width and shown["y"] + shown["height"] <= 800
        page.mouse.move(1, 1)
        assert tip.is_hidden()


def test_the_keyboard_reads_a_plot_aloud(opened: Open) -> None:
    page = opened()
    for chart in (chart for plot in PLOTS for chart in charts(page, plot)):
        chart.focus()
        page.evaluate(SCROLLED)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.locator("#tip").is_visible()
        assert any(sign.isdigit() for sign in page.locator("#spoken").inner_text())
        page.keyboard.press("Escape")
        assert page.locator("#tip").is_hidden()


def test_every_axis_has_a_title_and_numbers(opened: Open) -> None:
    page = opened()
    titles = {
        plot: [text for chart in charts(page, plot) for text in chart.locator("text.title").all_text_contents()]
        for plot in PLOTS
    }
    assert titles["distribution-plot"] == ["Share at or below (%)", "Time to first token (ms)"]
    assert titles["tradeoff-plot"] == ["TTFT p95 (s)", "Output tokens/s"]
    assert titles["energy-plot"] == ["Energy per output token (J)", "Load: requests/s offered"]
    assert titles["timeline-plot"] == ["Output tokens/s", "Requests in flight", "Power (W)", "Requests", "Time (s)"]
    for plot in PLOTS:
        assert all(chart.locator("text:not(.title)").count() >= 2 for chart in charts(page, plot))


def test_every_control_can_be_used(opened: Open) -> None:
    page = opened()
    for select in page.locator(".controls select").all():
        for value in select.locator("option").evaluate_all("all => all.map((one) => one.value)"):
            select.select_option(value)
    for button in page.locator(".legend button").all():
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        button.click()


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_does_not_scroll_sideways_and_tables_do_so_in_their_box(opened: Open, width: int) -> None:
    page = opened(width=width)
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.locator(".wide, .panel, .banner, figure").evaluate_all(BOXES)
    assert boxes and all(box["left"] >= 0 and box["right"] <= width for box in boxes)
    if width == 1280:
        assert page.locator(".wide:has(#results-table)").evaluate("node => node.scrollWidth <= node.clientWidth")


@pytest.mark.parametrize("width", [1280, 400])
def test_no_text_of_the_panels_overlaps(opened: Open, width: int) -> None:
    page = opened(width=width)
    names, numbers = (page.locator(f".panel li .{part}").evaluate_all(BOXES) for part in ("name", "number"))
    assert len(names) == 12
    for name, number in zip(names, numbers, strict=True):
        assert name["right"] <= number["left"] or name["bottom"] <= number["top"]


BOXES = "all => all.map((one) => one.getBoundingClientRect().toJSON())"
CONTRAST = """(node) => {
  const light = (text) => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map((one) => one / 255);
    const [r, g, b] = parts.map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let under = node;
  while (getComputedStyle(under).backgroundColor === "rgba(0, 0, 0, 0)") under = under.parentElement;
  const [a, b] = [getComputedStyle(node).color, getComputedStyle(under).backgroundColor].map(light);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(opened: Open, scheme: str) -> None:
    page = opened(scheme=scheme)
    for kind in (
        "body p",
        ".note",
        ".badge.valid",
        ".badge.invalid",
        "nav a",
        "summary",
        "small",
        "s",
        "thead th",
        "button",
    ):
        found: float = page.locator(kind).first.evaluate(CONTRAST)
        assert found >= 4.5, f"{kind}: {found:.1f}"


def background(page: Any) -> str:
    found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return found


def test_the_dark_has_another_background_and_the_button_overrules_it(opened: Open) -> None:
    light, dark = background(opened(scheme="light")), background(page := opened(scheme="dark"))
    assert light != dark
    page.get_by_role("button", name="Theme: system").click()
    assert background(page) == light


def test_a_printed_report_is_black_on_white_and_has_no_buttons(opened: Open) -> None:
    page = opened(scheme="dark")
    page.get_by_role("button", name="Theme").click(click_count=2)  # to dark, by choice
    page.emulate_media(media="print")
    assert background(page) == "rgb(255, 255, 255)"
    assert not page.locator("nav, .controls, .theme, .copy").filter(visible=True).count()
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_text_from_runs_is_escaped(opened: Open, tmp_path: Path) -> None:
    reason = {"code": EVIL, "severity": "invalid", "message": EVIL, "figure": None, "limit": None}
    run = make_run(engine=EVIL, verdict={"status": "invalid", "reasons": [reason]}, absent={EVIL: EVIL})
    page = opened(write_report([run], tmp_path / "report.html", title=EVIL))
    page.locator("#tradeoff-plot svg[role=application]").focus()
    page.keyboard.press("ArrowRight")
    assert EVIL in page.locator("#tip").inner_text()
    assert page.locator("img").count() == 0


def test_runs_without_energy_or_answers_are_reported(opened: Open, tmp_path: Path) -> None:
    page = opened(write_report([make_run(requests=4, errors=4, watts=None, verdict=INVALID)], tmp_path / "report.html"))
    assert page.get_by_text("No energy could be read").is_visible()
    assert page.locator(".panel", has_text="Not measured").count() == 3  # but for 0 tokens/s
    assert page.locator("#timeline-plot svg[role=application]").count() == 3
