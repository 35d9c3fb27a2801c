"""What the manifest says of an engine, and what is known before an older bundle is touched. No index."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.bundle import create as creating
from enginebay.bundle.create import Order, create
from enginebay.bundle.gather import Edge
from enginebay.bundle.manifest import Engine, Package, Stored
from enginebay.bundle.target import target
from enginebay.bundle.wanted import Wanted
from enginebay.engines import registry
from enginebay.errors import UsageError
from tests.unit.bundle.small_bundle import nothing


def described(order: Order, one: Wanted, *edges: Edge) -> Engine:
    """The engine's wheel is its only one."""
    kind = one.spec.kind
    made = creating._Set((Path(f"{kind}.whl"),), edges, {})
    return creating._engine(order, one, made, (Package(kind, "1.0", Stored(f"wheels/{kind}.whl", 1, "", 0)),))


def engine(kind: str, *requirements: str) -> Wanted:
    return Wanted(registry.spec(kind), "1.0", "cuda", (f"{kind}==1.0", *requirements))


def test_each_engine_counts_on_what_it_needs_itself(tmp_path: Path) -> None:
    order = Order(tmp_path, target(None, "linux", None, None), provided=("numba", "torch==2.11.0", "triton"))
    vllm = described(order, engine("vllm", "numba>=0.6"), Edge("vllm", "1.0", "torch>=2", followed=False))
    assert vllm.provided == ("numba", "torch") and vllm.sees_host
    assert vllm.expects == {"numba>=0.6": ("vllm",), "torch==2.11.0": ("as asked",), "torch>=2": ("vllm",)}
    other = described(order, engine("llamacpp"), Edge("llamacpp", "1.0", "numpy", followed=True))
    assert (other.provided, other.expects, other.sees_host) == ((), {}, False)


def test_an_older_bundle_stays_when_the_new_one_would_have_too_many_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "bay.whl"
    wheel.write_bytes(bytes(5000))
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(creating, "_bay_set", lambda *_: creating._Set((wheel,), (), {}))
    out = tmp_path / "out"
    out.mkdir()
    for name in ("bundle.json", "bundle.tar.001"):
        (out / name).write_text("of an older one")
    with pytest.raises(UsageError, match="more than 999 parts"):
        create(Order(out, target(None, "linux", None, None), split=6), nothing, nothing)
    assert sorted(path.name for path in out.iterdir()) == ["bundle.json", "bundle.tar.001"]
    assert (out / "bundle.tar.001").read_text() == "of an older one"
