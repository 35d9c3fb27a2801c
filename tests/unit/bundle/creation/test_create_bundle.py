"""Engines in the manifest, and checks before an older bundle is removed. No index."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.bundle.bundle_manifest import ArchivedFile, BundledEngine, BundledPackage
from enginebay.bundle.creation import create_bundle as creating
from enginebay.bundle.creation.create_bundle import BundleSpec, create_bundle
from enginebay.bundle.creation.download_wheels import DependencyEdge
from enginebay.bundle.creation.engine_requirements import EngineRequirements
from enginebay.bundle.creation.target_platform import parse_target
from enginebay.engines import registry
from enginebay.errors import UsageError
from tests.unit.bundle.small_bundle import ignore_progress


def describe(spec: BundleSpec, requirements: EngineRequirements, *edges: DependencyEdge) -> BundledEngine:
    """The engine's wheel is its only one."""
    kind = requirements.spec.kind
    wheels = creating._WheelSet((Path(f"{kind}.whl"),), edges, {})
    return creating._describe_engine(
        spec, requirements, wheels, (BundledPackage(kind, "1.0", ArchivedFile(f"wheels/{kind}.whl", 1, "", 0)),)
    )


def engine(kind: str, *requirements: str) -> EngineRequirements:
    return EngineRequirements(registry.get_spec(kind), "1.0", "cuda", (f"{kind}==1.0", *requirements))


def test_each_engine_expects_only_what_it_needs(tmp_path: Path) -> None:
    spec = BundleSpec(tmp_path, parse_target(None, "linux", None, None), provided=("numba", "torch==2.11.0", "triton"))
    vllm = describe(spec, engine("vllm", "numba>=0.6"), DependencyEdge("vllm", "1.0", "torch>=2", followed=False))
    assert vllm.provided == ("numba", "torch") and vllm.sees_host
    assert vllm.expects == {"numba>=0.6": ("vllm",), "torch==2.11.0": ("as asked",), "torch>=2": ("vllm",)}
    other = describe(spec, engine("llamacpp"), DependencyEdge("llamacpp", "1.0", "numpy", followed=True))
    assert (other.provided, other.expects, other.sees_host) == ((), {}, False)


def test_an_older_bundle_stays_when_the_new_one_would_have_too_many_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "bay.whl"
    wheel.write_bytes(bytes(5000))
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(creating, "_collect_bay_wheels", lambda *_: creating._WheelSet((wheel,), (), {}))
    out = tmp_path / "out"
    out.mkdir()
    for name in ("bundle.json", "bundle.tar.001"):
        (out / name).write_text("of an older one")
    with pytest.raises(UsageError, match="more than 999 parts"):
        create_bundle(
            BundleSpec(out, parse_target(None, "linux", None, None), split=6), ignore_progress, ignore_progress
        )
    assert sorted(path.name for path in out.iterdir()) == ["bundle.json", "bundle.tar.001"]
    assert (out / "bundle.tar.001").read_text() == "of an older one"
