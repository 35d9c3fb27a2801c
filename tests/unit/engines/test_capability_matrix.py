"""The capability table matches the specs, and the documentation page is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.cli.main import main
from enginebay.contract import EngineSpec, Retired, Runtime, Setting, honours, parameters, refuses, translates
from enginebay.engines import capability_matrix
from enginebay.engines.registry import load_built_in_specs

PAGE = Path(__file__).parents[3] / "docs" / "engines.md"

ONE = EngineSpec(
    kind="one",
    summary="the first",
    engine="one:One",
    module="",
    distributions=(),
    formats=("gguf",),
    runtime=Runtime(),
    request={"top_k": translates("-1 is off"), "min_p": refuses("top_p"), "seed": honours()},
    settings={
        "depth": Setting("int", "How deep", minimum=1, maximum=9),
        "mode": Setting("str", "a|b", choices=("a", "b")),
    },
    retired={"swap_space": Retired("0.12", "cpu_offload_gb")},
)


def test_each_cell_says_what_the_engine_does() -> None:
    cells = {row.name: row.cells for row in capability_matrix.build_request_rows([ONE])}
    assert cells["top_k"] == ("translates: -1 is off",)
    assert cells["min_p"] == ("refuses: top_p",)
    assert cells["seed"] == ("honours",)
    assert cells["logprobs"] == (capability_matrix.ABSENT,)


def test_every_request_parameter_has_a_row() -> None:
    assert [row.name for row in capability_matrix.build_request_rows([ONE])] == list(parameters())


def test_load_parameters_include_the_retired_ones() -> None:
    cells = {row.name: row.cells for row in capability_matrix.build_load_rows([ONE])}
    assert cells == {
        "depth": ("honours",),
        "mode": ("honours",),
        "swap_space": ("retired in 0.12: cpu_offload_gb",),
    }


def test_bars_in_a_text_do_not_break_the_page() -> None:
    page = capability_matrix.render_markdown([ONE])
    assert "a\\|b" in page
    assert "| `depth` | int | 1 to 9 |" in page


def test_no_built_in_engine_leaves_a_request_parameter_open() -> None:
    for row in capability_matrix.build_request_rows(load_built_in_specs()):
        assert capability_matrix.ABSENT not in row.cells, row.name


def test_the_command_prints_the_same_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "matrix", "--markdown"]) == 0
    assert capsys.readouterr().out == PAGE.read_text()


def test_the_documentation_page_is_up_to_date() -> None:
    assert PAGE.read_text() == capability_matrix.render_markdown(load_built_in_specs()), (
        "run: python -m enginebay.engines.capability_matrix --write docs/engines.md"
    )
