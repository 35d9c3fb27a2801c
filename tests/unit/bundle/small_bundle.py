"""Small bundles for tests: tiny wheels, a tiny model, no index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from enginebay.bundle import standalone
from enginebay.bundle.bundle_manifest import (
    ArchivePart,
    BundledBay,
    BundledEngine,
    BundledModel,
    BundledPackage,
    BundleManifest,
)
from enginebay.bundle.creation import wheels
from enginebay.bundle.creation.archive import BundleArchive
from enginebay.bundle.standalone import MANIFEST_FILE, describe_this_python
from enginebay.models import ModelStore
from tests.unit.models.tiny_models import write_gguf


def ignore_progress(*_: object) -> None: ...


def make_tiny_wheel(
    into: Path, name: str, version: str = "1.0", requires: Sequence[str] = (), tag: str = "py3-none-any", **files: str
) -> Path:
    """A wheel with one module and the given files."""
    into.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    requirements = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    content = {
        f"{name}.py": f"VERSION = {version!r}\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements}".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        **{path.replace("__", "/"): text.encode() for path, text in files.items()},
    }
    made = into / f"{name}-{version}-{tag}.whl"
    wheels.write_wheel(made, info, content)
    return made


def make_stored_model(folder: Path, name: str = "tiny") -> ModelStore:
    """A store with one model in it."""
    store = ModelStore(folder / "store")
    store.pull(str(write_gguf(folder / f"{name}.gguf")), name)
    return store


def make_small_bundle(
    out: Path,
    made: Sequence[Path] = (),
    store: ModelStore | None = None,
    engine: Mapping[str, Any] | None = None,
    target: Mapping[str, str] | None = None,
    split: int | None = 1000,
) -> BundleManifest:
    """A bundle of these wheels and the store's models, in parts of a kilobyte."""
    out.mkdir(parents=True, exist_ok=True)
    archive = BundleArchive(out, split)
    packages = []
    for wheel in made:
        name, version = wheels.read_name_and_version(wheel)
        packages.append(BundledPackage(name, version, archive.add(f"wheels/{wheel.name}", wheel, ignore_progress)))
    models = []
    for model in store.list_models() if store else ():
        manifest = store.read_manifest(model.name) if store else None
        assert manifest is not None
        files = [
            archive.add(f"models/{model.name}/{one.path}", model.folder / one.path, ignore_progress)
            for one in manifest.files
        ]
        models.append(BundledModel(asdict(manifest), tuple(files)))
    bootstrap = out / "install.py"
    bootstrap.write_bytes(Path(standalone.__file__).read_bytes())
    paths = tuple(one.file.path for one in packages)
    engines = (BundledEngine(**{**_FAKE, "packages": paths, **engine}),) if engine is not None else ()
    content = BundleManifest(
        created="2026-11-15T12:00:00+00:00",
        target={**describe_this_python(), "glibc": "", **(target or {})},
        bay=BundledBay("0.1.0", (), ()),
        engines=engines,
        packages=tuple(packages),
        models=tuple(models),
        parts=archive.close(),
        bootstrap=ArchivePart(
            "install.py", bootstrap.stat().st_size, hashlib.sha256(bootstrap.read_bytes()).hexdigest()
        ),
    )
    (out / MANIFEST_FILE).write_text(json.dumps(content.to_json()), encoding="utf-8")
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


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    """Change fields of the manifest."""
    path = folder / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flip_byte(path: Path, at: int = 100) -> None:
    """Damage one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
