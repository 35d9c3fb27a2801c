"""Environments on disk and the plan to build one, without pip."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from enginebay.cli.main import main
from enginebay.contract import EngineSpec, Probe, Recipe
from enginebay.engines import registry
from enginebay.environments import engine_probe as probing
from enginebay.environments import environment_build as builder
from enginebay.environments import environment_lookup as finding
from enginebay.environments import environment_store
from enginebay.environments.dist_requirements import list_requirements
from enginebay.environments.install_recipe import (
    are_satisfied,
    fill_step,
    find_pins,
    is_pin,
    parse_target,
    select_recipe,
)
from enginebay.environments.versions import is_same_version, version_key
from enginebay.errors import EngineFailed, EngineMissing, FetchFailed, UsageError
from enginebay.fleet.diagnostics import FindingState, run_diagnostics
from enginebay.util.atomic_file import write_json

SPEC = replace(registry.get_spec("fake"), kind="other", engine="other_engine.engine:Engine", module="other_engine")
WITH_RECIPES = replace(
    SPEC,
    recipes=(
        Recipe("cpu", "1.0", (("install", "torch==2"), ("--no-deps", "other=={version}"), ("{requires}", "grpcio"))),
        Recipe("cuda", "2.0", (("other=={version}",),)),
    ),
    aliases=("another",),
)


@pytest.fixture(autouse=True)
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    yield tmp_path / "engines"


def build(engines: Path, version: str, kind: str = "other", spec: EngineSpec = SPEC) -> Path:
    """An environment as `install_engine` leaves it, with the current Python."""
    built = engines / environment_store.STORE_FOLDER / f"{kind}-{version}~abc"
    (built / "bin").mkdir(parents=True)
    (built / "bin" / "python").symlink_to(sys.executable)
    write_json(built / "install.json", {"kind": kind, "version": version})
    write_json(built / "spec.json", replace(spec, kind=kind).to_json())
    write_json(built / "probe.json", Probe(f"{version}+cpu").to_json())
    return environment_store.publish(built, environment_store.build_environment_name(kind, version))


def test_versions_sort_as_versions() -> None:
    given = ["0.9", "0.32.0", "0.32.1rc1", "0.32.1", "0.4", "2026.10.1", "2026.9.30"]
    assert sorted(given, key=version_key) == ["0.4", "0.9", "0.32.0", "0.32.1rc1", "0.32.1", "2026.9.30", "2026.10.1"]
    assert is_same_version("0.32", "0.32.0+cpu")
    assert not is_same_version("0.32.1rc1", "0.32.1")


def test_the_newest_version_is_found_and_an_older_one_by_name(engines: Path) -> None:
    build(engines, "0.9")
    build(engines, "0.10")
    assert finding.find_environment("other").version == "0.10"
    assert finding.find_environment("other", "0.9").version == "0.9"
    assert finding.find_environment("other", "0.9.0").python.exists()


def test_a_missing_version_is_named_in_the_error(engines: Path) -> None:
    build(engines, "0.9")
    with pytest.raises(EngineMissing, match=r"other 0\.1 is not installed"):
        finding.find_environment("other", "0.1")


def test_a_missing_engine_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "is_in_current_environment", lambda spec: False)
    with pytest.raises(EngineMissing) as caught:
        finding.find_environment("vllm")
    assert caught.value.message == "the engine vllm is not installed"
    assert caught.value.hint == "install it with: bay engines install vllm"


def test_the_fake_engine_is_always_available() -> None:
    found = finding.find_environment("fake")
    assert (found.source, found.python) == ("current", Path(sys.executable))


def test_a_library_in_this_environment_is_used_before_a_built_one(
    engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(engines, "9.9")
    monkeypatch.setattr(probing, "is_in_current_environment", lambda spec: True)
    monkeypatch.setattr(probing, "probe_current_environment", lambda spec: Probe("1.0"))
    monkeypatch.setattr(probing, "read_current_version", lambda spec: "1.0")
    assert finding.find_environment("other").source == "current"
    assert finding.find_environment("other", "9.9").source == "environment"


def test_a_library_in_this_environment_that_does_not_start_is_ignored(
    engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(spec: EngineSpec) -> Probe:
        raise EngineFailed("no module named torch")

    build(engines, "9.9")
    monkeypatch.setattr(probing, "is_in_current_environment", lambda spec: True)
    monkeypatch.setattr(probing, "probe_current_environment", fails)
    assert finding.find_environment("other").source == "environment"


def test_a_probe_runs_once_for_each_state_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(python: Path, question: dict[str, str], *_: object) -> dict[str, object]:
        asked.append(question["engine"])
        return {"probe": Probe("7").to_json()}

    monkeypatch.setattr(probing, "run_probe", answer)
    spec = registry.get_spec("fake")
    assert probing.probe_current_environment(spec) == probing.probe_current_environment(spec) == Probe("7")
    assert len(asked) == 1
    monkeypatch.setattr(probing, "read_current_version", lambda spec: "another")
    probing.probe_current_environment(spec)
    assert len(asked) == 2


def test_our_own_engine_is_probed_again_when_its_adapter_has_changed(
    engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = registry.get_spec("fake")
    build(engines, "1.0", "fake", fake)
    monkeypatch.setattr(probing, "is_in_current_environment", lambda spec: False)
    monkeypatch.setattr(probing, "run_probe", lambda *_: {"probe": Probe("asked again").to_json()})
    assert finding.find_environment("fake").probe.version == "asked again"
    monkeypatch.setattr(probing, "run_probe", lambda *_: pytest.fail("asked a second time"))
    assert finding.find_environment("fake").probe.version == "asked again"


def test_a_broken_environment_is_not_used_and_says_how_to_repair_it(engines: Path) -> None:
    path = build(engines, "1.0")
    build(engines, "0.5")
    (path / "bin" / "python").unlink()
    assert finding.find_environment("other").version == "0.5"
    assert [(broken.path, broken.reason) for broken in environment_store.list_broken()] == [
        (path, "its Python is missing")
    ]
    with pytest.raises(EngineMissing, match=r"other-1\.0 is broken") as caught:
        finding.find_environment("other", "1.0")
    assert caught.value.hint.endswith("bay engines install other==1.0 --recreate")


def test_a_name_appears_only_when_published(engines: Path) -> None:
    (engines / environment_store.STORE_FOLDER / "other-1.0~half" / "bin").mkdir(parents=True)
    assert environment_store.list_environments() == []
    assert environment_store.list_broken() == []


def test_publishing_again_replaces_the_old_environment(engines: Path) -> None:
    old = build(engines, "1.0").resolve()
    new = engines / environment_store.STORE_FOLDER / "other-1.0~new"
    new.mkdir()
    assert environment_store.publish(new, "other-1.0").resolve() == new
    assert not old.exists()


def test_leftovers_of_dead_builders_are_removed_and_live_builds_stay(engines: Path) -> None:
    published = build(engines, "1.0")
    dead = engines / environment_store.STORE_FOLDER / "other-2.0~dead"
    at_work = engines / environment_store.STORE_FOLDER / "other-3.0~busy"
    mine = engines / environment_store.STORE_FOLDER / "other-4.0~mine"
    for folder in (dead, at_work, mine):
        folder.mkdir()
    with environment_store.claim_name("other-3.0"), environment_store.claim_name("other-4.0"):
        environment_store.remove_abandoned("other-4.0")
    assert not dead.exists()
    assert not mine.exists()
    assert at_work.exists()
    assert published.resolve().exists()


def test_an_installed_version_is_not_rebuilt(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(engines, "1.0", spec=WITH_RECIPES)
    monkeypatch.setattr(builder, "_EnvironmentBuild", lambda *given: pytest.fail("it was built again"))
    order = builder.InstallRequest("other", device="cpu")
    assert builder.install_engine(order, lambda doing, line: None).version == "1.0"


def test_a_build_for_another_device_is_not_reused(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build(engines, "1.0", spec=WITH_RECIPES)
    write_json(path / "install.json", {"kind": "other", "version": "1.0", "device": "cpu"})

    class Built(Exception):
        pass

    def building(*given: object) -> None:
        raise Built

    monkeypatch.setattr(builder, "_EnvironmentBuild", building)
    assert (
        builder.install_engine(builder.InstallRequest("other==1.0", device="cpu"), lambda doing, line: None).device
        == "cpu"
    )
    with pytest.raises(Built):
        builder.install_engine(builder.InstallRequest("other==1.0", device="cuda"), lambda doing, line: None)


def test_one_recipe_for_both_devices_is_one_build(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build(engines, "1.0", spec=replace(WITH_RECIPES, recipes=WITH_RECIPES.recipes[:1]))
    write_json(path / "install.json", {"kind": "other", "version": "1.0", "device": "cpu"})
    monkeypatch.setattr(builder, "_EnvironmentBuild", lambda *given: pytest.fail("it was built again"))
    assert (
        builder.install_engine(builder.InstallRequest("other", device="cuda"), lambda doing, line: None).version
        == "1.0"
    )


@pytest.mark.parametrize(
    ("record", "again"),
    [
        (None, "my-engine==1.0"),
        ({"kind": "my-engine", "version": "1.0"}, "my-engine==1.0"),
        ({"kind": "my-engine", "version": "1.0", "asked": "my-engine"}, "my-engine==1.0"),
        ({"kind": "my-engine", "version": "1.0", "asked": "some-package>=3"}, "some-package>=3"),
    ],
)
def test_doctor_suggests_how_to_rebuild_a_broken_environment(
    engines: Path, record: dict[str, str] | None, again: str
) -> None:
    path = build(engines, "1.0", "my-engine")
    (path / "bin" / "python").unlink()
    if record is None:
        (path / "install.json").unlink()
    else:
        write_json(path / "install.json", record)
    cures = [one.cure for one in run_diagnostics() if one.what == "environment my-engine-1.0"]
    assert cures == [f"bay engines install {again} --recreate"]


def test_doctor_names_corrupt_models(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")
    found = [one for one in run_diagnostics() if one.what == "model mine"]
    assert [one.state for one in found] == [FindingState.BROKEN]
    assert "bay models remove mine" in found[0].cure


def test_every_version_is_listed(engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(engines, "0.9")
    build(engines, "0.10")
    assert main(["engines", "list", "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["kind"] == "other"]
    assert [(row["version"], row["where"]) for row in rows] == [
        ("0.10", str(engines / "other-0.10")),
        ("0.9", str(engines / "other-0.9")),
    ]


def test_an_interrupted_probe_is_not_remembered_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = registry.get_spec("fake")

    def interrupted(*given: object, **named: object) -> None:
        raise FetchFailed("interrupted")

    with monkeypatch.context() as patched:
        patched.setattr(probing, "child_process", interrupted)
        with pytest.raises(FetchFailed):
            probing.probe_current_environment(spec)
    assert probing.probe_current_environment(spec).version


def test_a_missing_python_is_named() -> None:
    with pytest.raises(EngineFailed) as caught:
        probing.run_probe(Path("/no/such/python"), {"engine": "fake"})
    assert "/no/such/python cannot be run" in caught.value.hint


def test_a_claim_is_held_against_others(engines: Path) -> None:
    path = engines / environment_store.LOCKS_FOLDER / "other-1.0.lock"
    with environment_store.claim_name("other-1.0"), path.open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_removing_takes_the_name_and_the_files(engines: Path) -> None:
    path = build(engines, "1.0")
    real = path.resolve()
    assert finding.find_removable("other") == [path]
    environment_store.remove_environment(path)
    assert not path.is_symlink()
    assert not real.exists()


def test_removing_one_of_several_versions_needs_its_number(engines: Path) -> None:
    older, newer = build(engines, "1.0"), build(engines, "2.0")
    with pytest.raises(UsageError, match="installed 2 times"):
        finding.find_removable("other")
    assert finding.find_removable("other==1.0") == [older]
    assert finding.find_removable("other", every=True) == [newer, older]


def test_removing_a_missing_version_is_an_error(engines: Path) -> None:
    build(engines, "1.0")
    with pytest.raises(EngineMissing, match=r"other 3\.0 is not installed"):
        finding.find_removable("other==3.0")


@pytest.mark.parametrize("version", ["../up", "", "a/b", ".hidden"])
def test_a_version_cannot_leave_the_directory(version: str) -> None:
    with pytest.raises(UsageError):
        environment_store.build_environment_name("other", version)


def test_install_targets() -> None:
    specs = {"other": WITH_RECIPES}
    assert parse_target("other", specs).spec is WITH_RECIPES
    assert parse_target("another==3.1", specs).version == "3.1"
    assert parse_target("./other", specs).package == "./other"
    assert parse_target("engine.whl", specs).package == "engine.whl"
    assert parse_target("far-away>=2", specs).package == "far-away>=2"
    assert parse_target("othe", specs, is_package=True).package == "othe"


def test_a_typo_does_not_install_an_unrelated_package() -> None:
    with pytest.raises(UsageError, match="did you mean other"):
        parse_target("othr", {"other": WITH_RECIPES})
    with pytest.raises(UsageError, match="unknown engine 'stranger'"):
        parse_target("stranger", {"other": WITH_RECIPES})


def test_the_recipe_follows_the_host() -> None:
    assert select_recipe(WITH_RECIPES, "cpu").version == "1.0"
    assert select_recipe(WITH_RECIPES, "cuda").version == "2.0"
    cpu_only = replace(WITH_RECIPES, recipes=WITH_RECIPES.recipes[:1])
    assert select_recipe(cpu_only, "cuda").version == "1.0"
    with pytest.raises(EngineMissing):
        select_recipe(replace(WITH_RECIPES, recipes=WITH_RECIPES.recipes[1:]), "cpu")
    with pytest.raises(UsageError):
        select_recipe(SPEC, "cpu")


def test_steps_are_filled_in() -> None:
    first, second, third = WITH_RECIPES.recipes[0].steps
    assert fill_step(first, "9") == ["torch==2"]
    assert fill_step(second, "9") == ["--no-deps", "other==9"]
    assert fill_step(third, "9", ["a>1", "b"]) == ["a>1", "b", "grpcio"]


@pytest.mark.parametrize("kind", ["transformers", "vllm"])
def test_the_versions_that_were_tested_together_are_exact(kind: str) -> None:
    recipe = select_recipe(registry.get_spec(kind), "cpu")
    option, path = find_pins(recipe)
    lines = [line for line in Path(path).read_text().splitlines() if not line.startswith("#")]
    assert option == "-c" and len(lines) > 40 and all(map(is_pin, lines))
    names = {line.partition("==")[0].lower() for line in lines}
    assert not names & {"torch", "pip"}, "the recipe names torch, and pip is the user's own"


def test_other_recipes_have_no_such_list() -> None:
    assert find_pins(Recipe("any", "1", ())) == []
    assert find_pins(Recipe("any", "1", (), pins="not_installed_here.at_all:versions.txt")) == []


@pytest.mark.parametrize(("requested", "fails", "expected"), [
    ("1.0", False, [True]), ("1.0", True, [True, False]), ("1.1", False, [False]),
])  # fmt: skip
def test_tested_versions_are_tried_first_and_only_with_the_version_they_belong_to(
    monkeypatch: pytest.MonkeyPatch, requested: str, fails: bool, expected: list[bool]
) -> None:
    used = []

    def install(self: object, doing: str, arguments: list[str]) -> None:
        used.append("-c" in arguments)
        if fails and "-c" in arguments:
            raise FetchFailed("ERROR: No matching distribution found for numpy==9")

    monkeypatch.setattr(builder._EnvironmentBuild, "_pip_install", install)
    recipe = Recipe("any", "1.0", (("other=={version}",),), pins="enginebay.engines.vllm:tested_versions_cpu.txt")
    build = object.__new__(builder._EnvironmentBuild)
    build.request = builder.InstallRequest("other", "cpu")
    build._follow_recipe(replace(SPEC, recipes=(recipe,)), requested)
    assert used == expected


def test_grpc_is_only_added_where_it_is_missing_or_old() -> None:
    needs = ("grpcio>=1.62.3", "grpcio-health-checking>=1.62")
    assert are_satisfied(needs, ["grpcio==1.85.1", "grpcio_health_checking==1.70.0"])
    assert not are_satisfied(needs, ["grpcio==1.60", "grpcio-health-checking==1.70.0"])
    assert not are_satisfied(needs, ["grpcio==1.85.1", "grpcio-health-checking @ file:///x"])


def test_requirements_of_an_installed_distribution_without_the_dropped() -> None:
    pytest.importorskip("pip._vendor.packaging.requirements")
    found = list_requirements(["not-there", "typer"], ["rich"])
    names = [text.split(">")[0].split("<")[0].split("=")[0].strip() for text in found]
    assert "shellingham" in names
    assert "rich" not in names
    assert not any(";" in text for text in found)
