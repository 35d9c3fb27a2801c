from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from enginebay.errors import UsageError
from enginebay.lab.report.page_data import embed_json
from enginebay.lab.report.report_page import render_report, write_report
from tests.unit.lab.report.report_runs import make_parity_answers, make_run, make_study

EVIL = "</script><script>alert(1)</script>\"'<img src=x onerror=alert(1)>&\u2028"
INVALID = {
    "status": "invalid",
    "reasons": [
        {"code": "send_lag", "severity": "invalid", "message": "p99 was 12 ms", "figure": 0.012, "limit": 0.005}
    ],
}


class Page(HTMLParser):
    """The elements of a page, the text of each section, and the embedded data."""

    VOID = ("meta", "br", "hr", "input", "img", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.section = ""
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        if tag in ("script", "style"):
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "section":
            self.section = ""

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.scripts[-1] += data
        self.texts[self.section] = self.texts.get(self.section, "") + data

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[1])


@pytest.fixture(scope="module")
def study_page() -> Page:
    return Page(render_report(make_study(cycles=3, answered=make_parity_answers())))


def test_every_element_is_closed_and_every_id_is_unique(study_page: Page) -> None:
    assert study_page.open == []
    ids = [attrs["id"] for _, attrs in study_page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_the_page_fetches_nothing(study_page: Page) -> None:
    assert not [tag for tag, _ in study_page.tags if tag in ("link", "img", "iframe", "object")]
    assert not [attrs for _, attrs in study_page.tags if "src" in attrs or "style" in attrs]
    assert all(str(attrs["href"]).startswith("#") for tag, attrs in study_page.tags if tag == "a")


def test_the_policy_allows_only_the_page_style_and_script(study_page: Page) -> None:
    policy = next(str(attrs["content"]) for _, attrs in study_page.tags if attrs.get("http-equiv"))
    style, _, script = study_page.scripts
    for kind, text in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_verdicts_come_first_and_the_navigation_leads_to_every_part(study_page: Page) -> None:
    parts = [attrs["id"] for tag, attrs in study_page.tags if tag == "section"]
    assert parts[:2] == ["verdicts", "results"]
    links = [str(attrs["href"])[1:] for tag, attrs in study_page.tags if tag == "a" and attrs.get("class") != "skip"]
    assert links == parts


def test_every_reference_to_an_id_has_one(study_page: Page) -> None:
    ids = {attrs["id"] for _, attrs in study_page.tags if "id" in attrs}
    named = {attrs[name] for _, attrs in study_page.tags for name in ("aria-labelledby", "data-copy") if name in attrs}
    assert named <= ids
    used = set(re.findall(r'byId\("([\w-]+)"\)', study_page.scripts[2]))
    assert used <= ids


def test_valid_points_and_runs_are_reported_as_valid(study_page: Page) -> None:
    text = study_page.texts["verdicts"]
    assert "All 6 points are valid: their numbers may be published as they are." in text
    assert "18 runs: 18 valid." in text
    assert "No check found a problem" in study_page.texts["reasons"]


def test_the_faster_engine_is_named_with_an_interval(study_page: Page) -> None:
    text = study_page.texts["comparison"]
    assert re.search(r"vllm / llamacppPoisson, 6/s3\d\.\d+\u202f×\[\d\.\d+, \d\.\d+\]vllm better", text)


def test_parity_is_next_to_speed(study_page: Page) -> None:
    assert "same prompt token idsyes" in study_page.texts["parity"]
    assert "first divergence at token, mediannone" in study_page.texts["parity"]


def test_missing_measures_have_a_reason(study_page: Page) -> None:
    assert "cpu_energy_jallthe RAPL files are readable by root only" in study_page.texts["absent"]


def test_an_invalid_run_is_marked_above_in_the_table_and_in_the_plots() -> None:
    page = Page(render_report([make_run(verdict=INVALID)]))
    assert "must not be published" in page.texts["verdicts"]
    assert "Why: send_lag in 1 run." in page.texts["verdicts"]
    assert "p99 was 12 ms" in page.texts["reasons"]
    struck = [attrs for tag, attrs in page.tags if tag == "s" and attrs.get("title") == "from an invalid run"]
    assert len(struck) > 20  # at a glance, in the results and among all measures
    assert page.data["points"][0]["status"] == page.data["runs"][0]["status"] == "invalid"


def test_changed_settings_show_both_values() -> None:
    run = make_run(
        engine="vllm", config={"vllm": {"dtype": "bfloat16"}, "num_cycles": 3}, effective={"dtype": "float32"}
    )
    text = Page(render_report([run])).texts["settings"]
    assert "dtypefloat32 bfloat16" in text
    assert "num_cycles" not in text


def test_text_from_runs_is_escaped() -> None:
    reason = {"code": EVIL, "severity": "invalid", "message": EVIL, "figure": None, "limit": None}
    run = make_run(
        engine=EVIL,
        verdict={"status": "invalid", "reasons": [reason], "unchecked": [EVIL]},
        config={EVIL: EVIL},
        effective={EVIL: [EVIL]},
        workload={"kind": EVIL},
        absent={EVIL: EVIL},
    )
    page = Page(render_report([run], title=EVIL))
    assert page.open == []
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not [tag for tag, attrs in page.tags if tag == "img" or "onerror" in attrs]
    assert page.data["series"] == [EVIL]


def test_numbers_that_json_does_not_know_become_gaps() -> None:
    assert json.loads(embed_json({"x": [float("nan"), float("inf"), 1.5]})) == {"x": [None, None, 1.5]}


def test_a_run_of_failures_only_still_gives_a_page() -> None:
    page = Page(render_report([make_run(requests=4, errors=4, watts=None, verdict=INVALID)]))
    assert page.data["latencies"] == []
    assert page.data["energies"] == []


def test_no_runs_no_report() -> None:
    with pytest.raises(UsageError, match="at least one run"):
        render_report([])


def test_the_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_report([make_run()], tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_report([make_run(requests=5)], path)
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]


def test_a_long_run_stays_small() -> None:
    text = render_report([make_run(requests=4000, rate=50.0)])
    assert len(text) < 250_000
