from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from enginebay.bundle.creation.archive import BundleArchive, check_part_count, parse_part_size
from enginebay.bundle.standalone import BundleError, SplitArchive, unpack
from enginebay.errors import UsageError
from tests.unit.bundle.small_bundle import flip_byte, ignore_progress

SIZES = {"wheels/a.whl": 700, "wheels/empty.whl": 0, f"models/m/{'long/' * 60}weights": 5000, "wheels/b.whl": 512}


def packed(folder: Path, split: int | None) -> tuple[dict, list]:
    folder.mkdir()
    archive = BundleArchive(folder, split)
    stored = []
    for number, (path, size) in enumerate(SIZES.items()):
        source = folder / f"source-{number}"
        source.write_bytes(bytes((number + index * 7) % 256 for index in range(size)))
        stored.append(archive.add(path, source, ignore_progress))
    parts = archive.close()
    return {"parts": [{"file": one.file, "size": one.size, "sha256": one.sha256} for one in parts]}, stored


@pytest.mark.parametrize("split", [None, 512, 1000, 1024, 100_000])
def test_the_parts_together_are_one_plain_tar(tmp_path: Path, split: int | None) -> None:
    manifest, stored = packed(tmp_path / "out", split)
    whole = b"".join((tmp_path / "out" / part["file"]).read_bytes() for part in manifest["parts"])
    (tmp_path / "whole.tar").write_bytes(whole)
    with tarfile.open(tmp_path / "whole.tar") as tar:
        assert {member.name: member.size for member in tar.getmembers()} == SIZES
        found = {one.name: tar.extractfile(one) for one in tar.getmembers()}
        assert all(hashlib.sha256(found[one.path].read()).hexdigest() == one.sha256 for one in stored)  # type: ignore[union-attr]
    assert all(part["size"] <= (split or 10**9) for part in manifest["parts"])
    assert [part["file"] for part in manifest["parts"]] == sorted(part["file"] for part in manifest["parts"])


@pytest.mark.parametrize("split", [None, 512, 700, 1000])
def test_each_file_comes_out_of_the_parts_as_it_went_in(tmp_path: Path, split: int | None) -> None:
    manifest, stored = packed(tmp_path / "out", split)
    parts = SplitArchive(tmp_path / "out", manifest)
    for number, one in enumerate(stored):
        to = tmp_path / "to" / str(number)
        unpack(
            parts, {"path": one.path, "size": one.size, "sha256": one.sha256, "offset": one.offset}, to, ignore_progress
        )
        assert to.read_bytes() == (tmp_path / "out" / f"source-{number}").read_bytes()


def test_a_corrupt_file_is_not_left_behind_and_its_part_is_named(tmp_path: Path) -> None:
    manifest, stored = packed(tmp_path / "out", 1000)
    one = stored[2]
    number = one.offset // 1000 + 2  # the file's second part
    flip_byte(tmp_path / "out" / f"bundle.tar.{number:03d}")
    with pytest.raises(BundleError, match=rf"bundle\.tar\.{number:03d} is corrupt") as caught:
        unpack(
            SplitArchive(tmp_path / "out", manifest),
            {"path": one.path, "size": one.size, "sha256": one.sha256, "offset": one.offset},
            tmp_path / "weights",
            ignore_progress,
        )
    assert caught.value.message.count("is corrupt") == 1
    assert not (tmp_path / "weights").exists()


def test_an_existing_file_stays(tmp_path: Path) -> None:
    manifest, stored = packed(tmp_path / "out", 1000)
    one = stored[0]
    (tmp_path / "theirs").write_text("theirs")
    file = {"path": one.path, "size": one.size, "sha256": one.sha256, "offset": one.offset}
    with pytest.raises(FileExistsError):
        unpack(SplitArchive(tmp_path / "out", manifest), file, tmp_path / "theirs", ignore_progress)
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_the_same_files_make_the_same_parts(tmp_path: Path) -> None:
    assert packed(tmp_path / "one", 1000)[0] == packed(tmp_path / "two", 1000)[0]


def test_too_many_parts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(1000 * 100))
    archive = BundleArchive(tmp_path, 100)
    with pytest.raises(UsageError, match="999 parts"):
        archive.add("large", tmp_path / "large", ignore_progress)


def test_too_many_parts_are_foreseen_to_the_byte(tmp_path: Path) -> None:
    manifest, _ = packed(tmp_path / "out", None)
    files = [(path, tmp_path / "out" / f"source-{number}") for number, path in enumerate(SIZES)]
    whole = manifest["parts"][0]["size"]
    smallest = -(-whole // 999)  # that makes no more than 999 parts
    check_part_count(files, None)
    check_part_count(files, smallest)
    with pytest.raises(UsageError, match="999 parts"):
        check_part_count(files, smallest - 1)


@pytest.mark.parametrize(("text", "size"), [("60MB", 60_000_000), ("60 mib", 62_914_560), ("1.5G", 1_500_000_000)])
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_part_size(text) == size


@pytest.mark.parametrize("text", ["", "60XB", "-1MB", "1kB", "MB"])
def test_invalid_sizes_are_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        parse_part_size(text)
