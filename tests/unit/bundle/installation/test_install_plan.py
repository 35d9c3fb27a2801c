from __future__ import annotations

from enginebay.bundle.bundle_manifest import ArchivedFile, BundledEngine, BundledPackage
from enginebay.bundle.installation.install_plan import accepts, find_conflicts, find_unmet, plan_engine_install


def package(name: str, version: str, *requires: str) -> BundledPackage:
    return BundledPackage(name, version, ArchivedFile(f"wheels/{name}.whl", 1, "", 0), requires)


PACKAGES = [package("vllm", "0.26.0", "numpy", "regex>=2026"), package("numpy", "2.4"), package("regex", "2026.1")]
ENGINE = BundledEngine(
    kind="vllm",
    version="0.26.0",
    device="cuda",
    distributions=("vllm",),
    packages=(),
    needs=("vllm==0.26.0",),
    provided=("torch",),
    expects={"torch==2.11.0": ("vllm",), "torch>=2": ("xgrammar",), "triton": ("xgrammar",)},
)


def test_an_environment_of_its_own_gets_everything() -> None:
    assert plan_engine_install(ENGINE, PACKAGES, {}).install == tuple(PACKAGES)


def test_suitable_host_packages_are_preferred() -> None:
    found = plan_engine_install(ENGINE, PACKAGES, {"numpy": "2.1", "regex": "2025.9", "vllm": "0.26.0"})
    assert found.kept == {"numpy": "2.1"}
    assert [one.name for one in found.install] == [
        "vllm",
        "regex",
    ]  # the engine always; regex since the host's is too old


def test_provided_packages_are_checked() -> None:
    assert find_unmet(ENGINE, {"torch": "2.11.0+cu130", "triton": "3.6"}) == ([], [])
    assert find_unmet(ENGINE, {}) == (["torch", "triton"], [])
    gone, other = find_unmet(ENGINE, {"torch": "2.10.0", "triton": "3.6"})
    assert gone == []
    assert other == ["vllm needs torch==2.11.0, but the host has 2.10.0"]


def test_versions_are_compared_as_pip_does() -> None:
    assert accepts("torch==2.11.0", "2.11.0+cu130")
    assert accepts("x>=1", "2.0rc1")
    assert not accepts("x!=6.30.*,>=5", "6.30.2")
    assert accepts("x>=1", "not a version")


def test_breaking_an_installed_package_is_a_conflict() -> None:
    chosen = plan_engine_install(ENGINE, PACKAGES, {})
    assert find_conflicts(chosen, [("pandas", "numpy>=2"), ("vllm", "numpy<1")]) == []
    assert find_conflicts(chosen, [("pandas", "numpy<2")]) == ["pandas needs numpy<2, but the bundle has 2.4"]
