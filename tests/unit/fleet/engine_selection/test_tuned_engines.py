"""Results of `bay choose`: saved, found again, and ignored with a reason if they do not apply."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from enginebay.contract import Probe
from enginebay.engines.registry import load_built_in_specs
from enginebay.fleet.engine_selection.selection_rules import (
    MeasuredPreference,
    ModelFacts,
    list_candidates,
    select_engine,
)
from enginebay.fleet.engine_selection.tuned_engines import (
    EngineMeasurement,
    TunedEngine,
    find,
    fingerprint_host,
    fingerprint_model,
    forget,
    format_summary,
    save,
)
from enginebay.models.model_manifest import StoredModel
from enginebay.util.hardware import Gpu, HostFacts

SPECS = {spec.kind: spec for spec in load_built_in_specs()}

HOST = HostFacts(
    "Linux", "x86_64", "Xeon", (), 8, 8, 64 << 30, 1, (Gpu(0, "H200", 140 << 30),), "1", "/h", 1, "3.12", True
)
GGUF = ModelFacts("gguf", "LlamaForCausalLM", "small")
VLLM = Probe("0.32", devices=("cuda",), architectures=("LlamaForCausalLM",))
INSTALLED = {"llamacpp": Probe("1.0"), "vllm": VLLM}


@pytest.fixture()
def stored(tmp_path: Path) -> StoredModel:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return StoredModel("small", "gguf", path, "LlamaForCausalLM", 2048, 7, 1, "Q4", "file:model", tmp_path / "made")


@pytest.fixture()
def choice(stored: StoredModel) -> TunedEngine:
    measured = (
        EngineMeasurement("llamacpp", "1.0", 3.1, confirmed=True, sure=True),
        EngineMeasurement("vllm", "0.32", 1.2, j_per_output_token=0.4, energy_of="gpu"),
    )
    return TunedEngine(
        "small", fingerprint_model(stored), stored.source, fingerprint_host(HOST), "llamacpp", {"ttft_p95": 0.8}, measured,
        "2026-11-15T12:00:00+00:00",
    )  # fmt: skip


def test_a_saved_result_is_found(choice: TunedEngine, stored: StoredModel, tmp_path: Path) -> None:
    path = save(choice, tmp_path / "choices")
    assert path.name.startswith("small-")
    assert find(stored, HOST, tmp_path / "choices").tuned == choice
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # nothing half-written is left


def test_the_newest_measurement_replaces_the_previous_one(
    choice: TunedEngine, stored: StoredModel, tmp_path: Path
) -> None:
    folder = tmp_path / "choices"
    first = save(choice, folder)
    later = replace(choice, engine="vllm", created="2026-11-16T12:00:00+00:00")
    assert save(later, folder) == first
    assert find(stored, HOST, folder).tuned == later


def test_it_is_found_under_another_name_of_the_same_files(
    choice: TunedEngine, stored: StoredModel, tmp_path: Path
) -> None:
    save(choice, tmp_path / "choices")
    assert find(replace(stored, name="mine"), HOST, tmp_path / "choices").tuned == choice


def test_without_results_nothing_is_ignored(stored: StoredModel, tmp_path: Path) -> None:
    lookup = find(stored, HOST, tmp_path / "nowhere")
    assert lookup.tuned is None and not lookup.ignored


@pytest.mark.parametrize(
    ("host", "difference"),
    [
        (replace(HOST, gpus=()), "gpus H200 140 GiB, here none"),
        (replace(HOST, cpu="EPYC"), "cpu Xeon, here EPYC"),
        (replace(HOST, memory_bytes=32 << 30), "memory_gib 64, here 32"),
        (replace(HOST, usable_cores=4), "cores 8, here 4"),
    ],
)
def test_a_result_of_another_host_is_ignored(
    choice: TunedEngine, stored: StoredModel, tmp_path: Path, host: HostFacts, difference: str
) -> None:
    save(choice, tmp_path / "choices")
    lookup = find(stored, host, tmp_path / "choices")
    assert lookup.tuned is None
    assert lookup.ignored == (f"ignored the measurement of 2026-11-15: it is from another host ({difference})",)


def test_memory_that_differs_by_a_kernel_is_the_same_host(
    choice: TunedEngine, stored: StoredModel, tmp_path: Path
) -> None:
    save(choice, tmp_path / "choices")
    host = replace(HOST, memory_bytes=HOST.memory_bytes - (20 << 20), driver="2", available_bytes=9)
    assert find(stored, host, tmp_path / "choices").tuned is not None


def test_a_result_for_changed_files_is_ignored(choice: TunedEngine, stored: StoredModel, tmp_path: Path) -> None:
    save(choice, tmp_path / "choices")
    stored.path.write_bytes(b"other weights")
    lookup = find(replace(stored, size_bytes=13), HOST, tmp_path / "choices")
    assert lookup.tuned is None
    assert lookup.ignored == ("ignored the measurement of 2026-11-15: the model's files have changed",)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": 1}', "\xff", '{"schema_version": 1}'])
def test_a_damaged_file_is_named_and_stops_nothing(
    choice: TunedEngine, stored: StoredModel, tmp_path: Path, content: str
) -> None:
    path = save(choice, tmp_path / "choices")
    path.write_text(content, encoding="latin-1")
    lookup = find(stored, HOST, tmp_path / "choices")
    assert lookup.tuned is None and str(path) in lookup.ignored[0]


@pytest.mark.parametrize("changes", [{"schema_version": 2}, {"measured": []}, {"engine": "transformers"}])
def test_invalid_content_is_ignored(
    choice: TunedEngine, stored: StoredModel, tmp_path: Path, changes: dict[str, object]
) -> None:
    path = save(choice, tmp_path / "choices")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    lookup = find(stored, HOST, tmp_path / "choices")
    assert lookup.tuned is None and len(lookup.ignored) == 1


def test_results_of_other_models_are_skipped(choice: TunedEngine, stored: StoredModel, tmp_path: Path) -> None:
    save(replace(choice, model="big", model_files="0" * 64), tmp_path / "choices")
    lookup = find(stored, HOST, tmp_path / "choices")
    assert lookup.tuned is None and not lookup.ignored


def test_a_result_can_be_deleted(choice: TunedEngine, stored: StoredModel, tmp_path: Path) -> None:
    folder = tmp_path / "choices"
    save(choice, folder)
    assert not forget(stored, replace(HOST, cpu="EPYC"), folder)
    assert forget(stored, HOST, folder) and find(stored, HOST, folder).tuned is None
    assert not forget(stored, HOST, folder)


def test_summary(choice: TunedEngine) -> None:
    assert format_summary(choice) == "measured on 2026-11-15: 3.1 requests/s within ttft_p95=0.8, next vllm 1.2"
    alone = replace(choice, measured=choice.measured[:1])
    assert format_summary(alone) == "measured on 2026-11-15: 3.1 requests/s within ttft_p95=0.8"
    missed = replace(choice, measured=(choice.measured[0], EngineMeasurement("vllm", "0.32")))
    assert format_summary(missed).endswith("next vllm none")
    frugal = replace(choice, engine="vllm", decided_by="energy")
    assert "0.4 J per output token" in format_summary(frugal)
    assert "invalid" in format_summary(replace(choice, status="invalid"))


MEASURED = MeasuredPreference("llamacpp", "1.0", "measured on 2026-11-15: 3.1 requests/s", "2026-11-15")


def test_a_measurement_overrides_the_rules() -> None:
    assert select_engine(GGUF, HOST, SPECS, INSTALLED).kind == "vllm"
    decision = select_engine(GGUF, HOST, SPECS, INSTALLED, measured=MEASURED)
    assert decision.kind == "llamacpp" and decision.installed and not decision.dense
    assert decision.reasons[-1] == "llamacpp: measured on 2026-11-15: 3.1 requests/s"


def test_a_requested_engine_overrides_a_measurement() -> None:
    assert select_engine(GGUF, HOST, SPECS, INSTALLED, "vllm", measured=MEASURED).kind == "vllm"
    assert select_engine(GGUF, HOST, SPECS, INSTALLED, "auto", measured=MEASURED).kind == "llamacpp"


@pytest.mark.parametrize(
    ("installed", "measured", "reason"),
    [
        ({"vllm": VLLM}, MEASURED, "llamacpp: not installed"),
        ({**INSTALLED, "llamacpp": Probe("1.1")}, MEASURED, "it measured llamacpp 1.0, but 1.1 is installed"),
        ({**INSTALLED, "fake": Probe("1")}, replace(MEASURED, kind="fake", version="1"), "fake does not read gguf"),
    ],
)
def test_an_outdated_measurement_is_ignored_with_its_reason(
    installed: dict[str, Probe], measured: MeasuredPreference, reason: str
) -> None:
    decision = select_engine(GGUF, HOST, SPECS, installed, measured=measured)
    assert decision.kind == "vllm"
    assert f"ignored the measurement of 2026-11-15: {reason}" in decision.reasons


def test_a_measured_engine_gets_dense_weights_where_it_needs_them() -> None:
    measured = MeasuredPreference("vllm", "0.32", "measured", "2026-11-15")
    assert select_engine(GGUF, HOST, SPECS, INSTALLED, measured=measured).dense


def test_notes_are_among_the_reasons() -> None:
    assert "not used" in select_engine(GGUF, HOST, SPECS, INSTALLED, notes=("not used",)).reasons


def test_the_engines_to_compare_are_those_that_can_run_it_here() -> None:
    kinds, objections = list_candidates(GGUF, HOST, SPECS, INSTALLED)
    assert kinds == ["vllm", "llamacpp"]
    assert objections == {"transformers": "not installed"}
    specs = {**SPECS, "third": replace(SPECS["fake"], kind="third", formats=("gguf",))}
    kinds, _ = list_candidates(GGUF, HOST, specs, {**INSTALLED, "third": Probe("1"), "fake": Probe("1")})
    assert kinds == ["vllm", "llamacpp", "third"]
