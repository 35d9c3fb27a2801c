"""Engine discovery, unknown names and faulty third-party packages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from enginebay.contract import EngineSpec, Probe, Runtime, Setting, Support, honours, parameters, refuses
from enginebay.engines import registry
from enginebay.engines.effective_spec import apply_probe
from enginebay.errors import UnknownEngine


def make_spec(kind: str = "other", **changes: object) -> EngineSpec:
    fields = {
        "kind": kind,
        "summary": "an engine for a test",
        "engine": f"{kind}.engine:Engine",
        "module": kind,
        "distributions": (kind,),
        "formats": ("gguf",),
        "runtime": Runtime(),
        "request": {name: honours() for name in parameters()},
        **changes,
    }
    return EngineSpec(**fields)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    registry._discover.cache_clear()
    yield
    registry._discover.cache_clear()


def test_all_built_in_engines_are_there_and_declare_every_request_parameter() -> None:
    assert list(registry.load_specs())[:4] == ["llamacpp", "transformers", "vllm", "fake"]
    for spec in registry.load_built_in_specs():
        assert set(spec.request) == set(parameters()), spec.kind


def test_specs_survive_the_way_through_json() -> None:
    for spec in registry.load_built_in_specs():
        assert EngineSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_an_alias_means_the_engine() -> None:
    assert registry.get_spec("pytorch").kind == "transformers"


def test_an_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(UnknownEngine) as caught:
        registry.get_spec("vlm")
    assert "'vlm'" in caught.value.message
    assert "vllm" in caught.value.hint


def test_specs_stored_beside_environments_are_known(tmp_path: Path) -> None:
    folder = tmp_path / "engines" / "other-1.0"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(make_spec().to_json()))
    assert registry.get_spec("other").summary == "an engine for a test"


def test_a_damaged_stored_spec_stops_no_other_engine(tmp_path: Path) -> None:
    folder = tmp_path / "engines" / "other-1.0"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{")
    assert "other" not in registry.load_specs()
    assert "vllm" in registry.load_specs()


def _with_entry_point(monkeypatch: pytest.MonkeyPatch, name: str, spec: object) -> None:
    module = SimpleNamespace(SPEC=spec)
    real = registry.import_module
    monkeypatch.setattr(registry, "import_module", lambda path: module if path == "theirs.spec" else real(path))
    point = EntryPoint(name, "theirs.spec:SPEC", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])


def test_an_entry_point_of_another_package_registers_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_entry_point(monkeypatch, "theirs", make_spec("theirs"))
    assert registry.get_spec("theirs").kind == "theirs"
    assert registry.list_faulty_entry_points() == {}


def test_an_entry_point_that_is_not_a_spec_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_entry_point(monkeypatch, "theirs", "not a spec")
    assert "theirs" not in registry.load_specs()
    assert "not an EngineSpec" in registry.list_faulty_entry_points()["theirs"]


def test_a_third_party_cannot_replace_a_built_in_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_entry_point(monkeypatch, "vllm", make_spec("vllm"))
    assert registry.get_spec("vllm").summary != "an engine for a test"
    assert "already registered" in registry.list_faulty_entry_points()["vllm"]


def test_a_setting_the_installed_version_does_not_have_is_refused() -> None:
    settings = {
        "kept": Setting("int", "", native="kept"),
        "gone": Setting("int", "", native="gone_in_library"),
        "ours": Setting("int", ""),
    }
    effective = apply_probe(make_spec(settings=settings), Probe("2.0", settings=("kept",)))
    assert effective.settings["kept"].capability.support is Support.HONOURS
    assert effective.settings["ours"].capability.support is Support.HONOURS
    assert effective.settings["gone"].capability == refuses("not in other 2.0")


def test_a_request_parameter_the_probe_refuses_is_refused() -> None:
    effective = apply_probe(make_spec(), Probe("2.0", refused={"min_p": "not before 3.0"}))
    assert effective.request["min_p"] == refuses("not before 3.0")
    assert effective.request["top_p"].support is Support.HONOURS


def test_without_a_probe_the_declaration_stands() -> None:
    spec = make_spec(settings={"one": Setting("int", "", native="one")})
    assert apply_probe(spec, None) is spec
    assert apply_probe(spec, Probe("1.0", settings=None)).settings == spec.settings
