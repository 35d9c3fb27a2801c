"""Bundles that are made in a moment: tiny wheels, a tiny model, no index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from enginebay.bundle import standalone, wheels
from enginebay.bundle.archive import Archive
from enginebay.bundle.manifest import Bay, Engine, Manifest, Model, Package, Part
from enginebay.bundle.standalone import MANIFEST, facts_of_this_python
from enginebay.fleet.models import Store
from tests.unit.fleet.models.tiny_models import write_gguf


def nothing(*_: object) -> None: ...


def tiny_wheel(
    into: Path, name: str, version: str = "1.0", requires: Sequence[str] = (), tag: str = "py3-none-any", **files: str
) -> Path:
    """A wheel with one module, and whatever files are given."""
    into.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    wishes = "".join(f"Requires-Dist: {one}\n" for one in requires)
    content = {
        f"{name}.py": f"VERSION = {version!r}\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wishes}".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        **{path.replace("__", "/"): text.encode() for path, text in files.items()},
    }
    made = into / f"{name}-{version}-{tag}.whl"
    wheels.make(made, info, content)
    return made


def stored_model(folder: Path, name: str = "tiny") -> Store:
    """A store with one model in it."""
    store = Store(folder / "store")
    store.pull(str(write_gguf(folder / f"{name}.gguf")), name)
    return store


def small_bundle(
    out: Path,
    made: Sequence[Path] = (),
    store: Store | None = None,
    engine: Mapping[str, Any] | None = None,
    target: Mapping[str, str] | None = None,
    split: int | None = 1000,
) -> Manifest:
    """A bundle of these wheels and the store's models, in parts of a kilobyte."""
    out.mkdir(parents=True, exist_ok=True)
    archive = Archive(out, split)
    packages = []
    for wheel in made:
        name, version = wheels.name_and_version(wheel)
        packages.append(Package(name, version, archive.add(f"wheels/{wheel.name}", wheel, nothing)))
    models = []
    for model in store.models() if store else ():
        manifest = store.manifest(model.name) if store else None
        assert manifest is not None
        files = [
            archive.add(f"models/{model.name}/{one.path}", model.folder / one.path, nothing) for one in manifest.files
        ]
        models.append(Model(asdict(manifest), tuple(files)))
    bootstrap = out / "install.py"
    bootstrap.write_bytes(Path(standalone.__file__).read_bytes())
    paths = tuple(one.file.path for one in packages)
    engines = (Engine(**{**_FAKE, "packages": paths, **engine}),) if engine is not None else ()
    content = Manifest(
        created="2026-11-15T12:00:00+00:00",
        target={**facts_of_this_python(), "glibc": "", **(target or {})},
        bay=Bay("0.1.0", (), ()),
        engines=engines,
        packages=tuple(packages),
        models=tuple(models),
        parts=archive.close(),
        bootstrap=Part("install.py", bootstrap.stat().st_size, hashlib.sha256(bootstrap.read_bytes()).hexdigest()),
    )
    (out / MANIFEST).write_text(json.dumps(content.to_json()), encoding="utf-8")
    return content


_FAKE: dict[str, Any] = {
    "kind": "fake",
    "version": "9.9",
    "device": "cpu",
    "distributions": (),
    "needs": (),
    "expects": {},
    "left_out": {},
    "variables": {},
}


def rewrite(folder: Path, **changes: Any) -> None:
    """Change what the manifest says."""
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flip(path: Path, at: int = 100) -> None:
    """Damage one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
