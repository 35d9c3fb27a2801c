from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.bundle.bundle_manifest import BundleManifest
from enginebay.bundle.standalone import is_inside
from enginebay.bundle.verification import compute_fingerprint, find_problems, read_bundle_manifest
from enginebay.errors import EnginebayError
from tests.unit.bundle.small_bundle import (
    flip_byte,
    make_small_bundle,
    make_stored_model,
    make_tiny_wheel,
    rewrite_manifest,
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    make_small_bundle(
        tmp_path / "bundle",
        [make_tiny_wheel(tmp_path, "one")],
        make_stored_model(tmp_path),
        engine={"provided": ("x",)},
    )
    return tmp_path / "bundle"


def test_a_manifest_survives_its_file(bundle: Path) -> None:
    manifest = read_bundle_manifest(bundle)
    assert BundleManifest.from_json(manifest.to_json()) == manifest
    assert manifest.engines[0].sees_host
    assert manifest.models[0].name == "tiny"


def test_a_complete_bundle_has_no_problems(bundle: Path) -> None:
    assert find_problems(bundle, read_bundle_manifest(bundle)) == []


def test_each_missing_cut_and_damaged_part_is_named(bundle: Path) -> None:
    (bundle / "bundle.tar.001").unlink()
    flip_byte(bundle / "bundle.tar.002")
    (bundle / "bundle.tar.003").write_bytes((bundle / "bundle.tar.003").read_bytes()[:-1])
    flip_byte(bundle / "install.py")
    assert find_problems(bundle, read_bundle_manifest(bundle)) == [
        "bundle.tar.001 is missing",
        "bundle.tar.003 has 999 bytes instead of 1000",
        "bundle.tar.002 is corrupt: its sha256 does not match",
        "install.py is corrupt: its sha256 does not match",
    ]


def test_the_fingerprint_changes_with_the_manifest(bundle: Path) -> None:
    before = compute_fingerprint(read_bundle_manifest(bundle))
    rewrite_manifest(bundle, created="another day")
    assert compute_fingerprint(read_bundle_manifest(bundle)) != before


def test_a_folder_without_a_bundle_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(EnginebayError, match="no bundle in"):
        read_bundle_manifest(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 1, "parts": 3}'])
def test_a_broken_manifest_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "bundle.json").write_text(content)
    with pytest.raises(EnginebayError) as caught:
        read_bundle_manifest(tmp_path)
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"target": {"platform": "linux", "arch": "x86_64"}}, "lacks python"),
        ({"bay": {"packages": []}}, "lacks version"),
        ({"bay": {"version": "1", "packages": ["wheels/none.whl"]}}, "lacks wheels/none.whl"),
        ({"bay": None}, "is incomplete"),
    ],
)
def test_a_manifest_that_lacks_something_is_refused(bundle: Path, changes: dict[str, object], lacks: str) -> None:
    rewrite_manifest(bundle, **changes)
    with pytest.raises(EnginebayError, match=lacks):
        read_bundle_manifest(bundle)


def test_a_newer_manifest_is_refused(bundle: Path) -> None:
    rewrite_manifest(bundle, schema_version=2)
    with pytest.raises(EnginebayError, match="newer Enginebay"):
        read_bundle_manifest(bundle)


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "~/home", "a\\b", "", ".", "a\0b"])
def test_paths_that_leave_their_folder_are_refused(bundle: Path, path: str) -> None:
    assert not is_inside(path)
    manifest = read_bundle_manifest(bundle).to_json()
    manifest["packages"][0]["file"]["path"] = path
    rewrite_manifest(bundle, packages=manifest["packages"])
    with pytest.raises(EnginebayError, match="outside the bundle"):
        read_bundle_manifest(bundle)


def test_a_part_in_another_folder_is_refused(bundle: Path) -> None:
    parts = read_bundle_manifest(bundle).to_json()["parts"]
    rewrite_manifest(bundle, parts=[{**parts[0], "file": "below/bundle.tar"}])
    with pytest.raises(EnginebayError, match="outside the bundle"):
        read_bundle_manifest(bundle)


@pytest.mark.parametrize("value", [None, "12", 1.5, -1, True, [], {}])
@pytest.mark.parametrize("field", ["offset", "size"])
def test_a_file_with_another_offset_or_size_than_a_number_is_refused(bundle: Path, field: str, value: object) -> None:
    manifest = read_bundle_manifest(bundle).to_json()
    for kind, record in (("packages", manifest["packages"][0]["file"]), ("models", manifest["models"][0]["files"][0])):
        changed = {**record, field: value}
        holder = {**manifest[kind][0], **({"file": changed} if kind == "packages" else {"files": [changed]})}
        rewrite_manifest(bundle, **{kind: [holder]})
        with pytest.raises(EnginebayError, match="is corrupt: invalid entries for") as caught:
            read_bundle_manifest(bundle)
        assert record["path"] in caught.value.message
        rewrite_manifest(bundle, **{kind: manifest[kind]})


@pytest.mark.parametrize(
    "changes",
    [
        {"target": {"platform": "linux", "arch": "x86_64", "python": "3.12", "glibc": None}},
        {"parts": [{"file": "bundle.tar.001", "size": None, "sha256": "0"}]},
        {"parts": [{"file": "bundle.tar.001", "size": 1, "sha256": None}]},
        {"models": [{"manifest": None, "files": []}]},
        {"engines": [{"packages": ["wheels/none.whl"]}]},
    ],
)
def test_other_wrong_types_are_one_line(bundle: Path, changes: dict[str, object]) -> None:
    rewrite_manifest(bundle, **changes)
    with pytest.raises(EnginebayError) as caught:
        read_bundle_manifest(bundle)
    assert "\n" not in caught.value.message
