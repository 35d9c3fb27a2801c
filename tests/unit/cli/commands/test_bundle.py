"""`bay bundle`: output, exit codes, one clear line per error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginebay.cli.main import main
from tests.unit.bundle.small_bundle import flip_byte, make_small_bundle, make_stored_model, make_tiny_wheel


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    engine = {
        "provided": ("torch",),
        "expects": {"torch==2.11.0": ("vllm",)},
        "left_out": {"flashinfer": "not needed"},
    }
    make_small_bundle(tmp_path / "bundle", [make_tiny_wheel(tmp_path, "library")], make_stored_model(tmp_path), engine)
    return tmp_path / "bundle"


def bay(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["bundle", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_verify_says_what_is_wrong_and_fails(capsys: pytest.CaptureFixture[str], bundle: Path) -> None:
    code, _, err = bay(capsys, "verify", "bundle")
    assert code == 0 and "verified" in err
    flip_byte(bundle / "bundle.tar.002")
    code, out, err = bay(capsys, "verify", "bundle", "--json")
    assert code == 1
    assert json.loads(out)["problems"] == ["bundle.tar.002 is corrupt: its sha256 does not match"]
    assert err.startswith("bay: the bundle is incomplete: bundle.tar.002")


def test_one_part_is_not_spoken_of_as_many(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make_small_bundle(tmp_path / "b", store=make_stored_model(tmp_path), split=None)
    assert bay(capsys, "verify", "b")[2].splitlines()[-1].startswith("1 part verified; fingerprint")


def test_create_with_force_writes_over_a_bundle(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "again").mkdir()
    made = make_small_bundle(
        tmp_path / "other", [make_tiny_wheel(tmp_path, "library")], make_stored_model(tmp_path / "again")
    )
    orders = []
    monkeypatch.setattr(
        "enginebay.bundle.creation.create_bundle.create_bundle", lambda order, *_: orders.append(order) or made
    )
    code, _, err = bay(capsys, "create", "-o", "bundle", "-m", "tiny", "--force")
    assert code == 0 and [order.out for order in orders] == [bundle]
    assert f"{len(made.parts)} parts, 1 package, 1 model\n" in err


def test_show_lists_contents_and_exclusions(capsys: pytest.CaptureFixture[str], bundle: Path) -> None:
    code, out, _ = bay(capsys, "show", "bundle")
    assert code == 0
    for said in ("fake 9.9", "tiny", "library", "torch==2.11.0", "left out: not needed"):
        assert said in out
    shown = json.loads(bay(capsys, "show", "bundle", "--json")[1])
    assert shown["schema_version"] == 1
    assert [one["name"] for one in shown["packages"]] == ["library"]
    assert len(shown["packages"][0]["file"]["sha256"]) == len(shown["fingerprint"]) == 64


def test_install_puts_models_into_the_store(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make_small_bundle(tmp_path / "b", store=make_stored_model(tmp_path))
    code, _, err = bay(capsys, "install", "b")
    assert code == 0 and "added model tiny" in err
    assert "tiny is already installed" in bay(capsys, "install", "b")[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("verify", "nowhere"), "no bundle in"),
        (("install", "bundle", "--into", "there"), "unknown target: --into there"),
        (("install", "bundle", "--into", "current", "--python", "python3"), "--into current installs into the Python"),
        (("create", "-o", "bundle", "-m", "m"), "bundle already holds a bundle"),
        (("create", "-o", "x"), "nothing to pack"),
        (("create", "-o", "x", "-m", "m", "--trim", "sm90"), "--trim needs an engine"),
        (("create", "-o", "x", "-e", "vllm", "--trim", "sm42"), "no trim profile sm42"),
        (
            ("create", "-o", "x", "-e", "llamacpp", "-e", "vllm", "--trim", "sm42"),
            "no trim profile sm42 for llamacpp or vllm",
        ),
        (("create", "-o", "x", "-e", "vllm"), "for CPU and CUDA"),
        (("create", "-o", "x", "-e", "vlm"), "did you mean vllm"),
        (("create", "-o", "x", "-e", "vllm", "--accelerator", "tpu"), "--accelerator tpu"),
        (("create", "-o", "x", "-e", "llamacpp", "--split", "1"), "not a valid part size"),
        (("create", "-o", "x", "-e", "llamacpp", "--python", "3"), "--python 3 is not supported"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], bundle: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = bay(capsys, *arguments)
    assert code in (1, 2)
    assert said in err.splitlines()[0]
    assert len(err.splitlines()) == 2
    assert not Path("x").exists()
