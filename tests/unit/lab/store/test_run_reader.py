"""A folder that does not match its manifest is reported, with what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enginebay.lab.store.canonical_json import hash_value
from enginebay.lab.store.run_errors import CorruptRun
from enginebay.lab.store.run_manifest import MANIFEST_NAME, SELF_HASH_KEY
from enginebay.lab.store.run_reader import list_runs, load_run
from tests.unit.lab.store.run_files import write_run


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None], sign: bool = True) -> None:
    path = folder / MANIFEST_NAME
    content = json.loads(path.read_bytes())
    change(content)
    if sign:
        content.pop(SELF_HASH_KEY)
        content[SELF_HASH_KEY] = hash_value(content)
    path.chmod(0o644)
    path.write_text(json.dumps(content))


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    overwrite(path, bytes(content))


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no manifest": (lambda run: (run / MANIFEST_NAME).unlink(), "it has no manifest.json"),
    "cut manifest": (
        lambda run: overwrite(run / MANIFEST_NAME, (run / MANIFEST_NAME).read_bytes()[:100]),
        "cannot be read",
    ),
    "empty manifest": (lambda run: overwrite(run / MANIFEST_NAME, b""), "cannot be read"),
    "binary manifest": (lambda run: overwrite(run / MANIFEST_NAME, b"\xff\xfe\x00"), "cannot be read"),
    "manifest is a list": (lambda run: overwrite(run / MANIFEST_NAME, b"[]"), "is not an object"),
    "newer schema": (lambda run: rewrite(run, lambda m: m.update(schema_version=99)), "schema version 99"),
    "no schema": (lambda run: rewrite(run, lambda m: m.pop("schema_version")), "schema version None"),
    "a better number": (
        lambda run: rewrite(run, lambda m: m["measures"].update(output_tokens_per_s=99.0), sign=False),
        "was changed after the run",
    ),
    "a better verdict": (
        lambda run: rewrite(run, lambda m: m["verdict"].update(status="informative"), sign=False),
        "was changed after the run",
    ),
    "no section": (lambda run: rewrite(run, lambda m: m.pop("engine")), "has no engine"),
    "wrong kind": (lambda run: rewrite(run, lambda m: m.update(measures=[])), "measures in manifest.json"),
    "cycle in words": (lambda run: rewrite(run, lambda m: m.update(study={"cycle": "one"})), "study.cycle"),
    "no verdict": (lambda run: rewrite(run, lambda m: m.update(verdict={})), "it has no verdict"),
    "other id": (lambda run: rewrite(run, lambda m: m.update(id="x")), "the id in manifest.json is x"),
    "file outside": (lambda run: rewrite(run, lambda m: m["files"].update({"../x": {}})), "invalid file: ../x"),
    "unnamed requests": (lambda run: rewrite(run, lambda m: m["files"].pop("requests.parquet")), "does not name"),
    "missing tokens": (lambda run: (run / "tokens.parquet").unlink(), "tokens.parquet is missing"),
    "a bit of the requests": (lambda run: flip(run / "requests.parquet"), "requests.parquet was changed"),
    "a bit of the power": (lambda run: flip(run / "power.parquet"), "power.parquet was changed"),
    "cut tokens": (lambda run: overwrite(run / "tokens.parquet", b"PAR1"), "tokens.parquet was changed"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_reported_and_the_run_skipped(tmp_path: Path, damage: str) -> None:
    good = write_run(tmp_path, "20261115-000000-good")
    bad = write_run(tmp_path, "20261115-000001-bad")
    harm, wrong = DAMAGE[damage]
    harm(bad.path)
    with pytest.raises(CorruptRun) as raised:
        load_run(bad.path)
    assert wrong in raised.value.message and str(bad.path) in raised.value.message
    assert raised.value.hint and "\n" not in raised.value.message
    runs, problems = list_runs(tmp_path)
    assert [run.id for run in runs] == [good.id]
    assert [problem.folder for problem in problems] == [bad.path]


def test_a_copy_does_not_count_as_a_second_run(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    shutil.copytree(run.path, tmp_path / "copy")
    runs, problems = list_runs(tmp_path)
    assert [one.id for one in runs] == [run.id]
    assert [one.folder.name for one in problems] == ["copy"]


def test_other_files_and_folders_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / ".trash").mkdir()
    (tmp_path / "report.html").write_text("x")
    assert list_runs(tmp_path) == ([], [])
    assert list_runs(tmp_path / "none") == ([], [])


def test_runs_are_listed_by_time_and_not_by_name(tmp_path: Path) -> None:
    ids = [write_run(tmp_path, name).id for name in ("b", "c", "a")]
    assert [run.id for run in list_runs(tmp_path)[0]] == ids


def test_the_engine_of_a_server_that_is_not_ours_is_its_address(tmp_path: Path) -> None:
    run = write_run(tmp_path, engine="", server={"url": "http://there:8000", "ours": False})
    assert run.engine == "http://there:8000"
