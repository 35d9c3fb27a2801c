"""Which keys are sent to which server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enginebay.cli.lab.lab_credentials import build_admin_headers, build_inference_headers, is_loopback_url
from enginebay.cli.main import main
from enginebay.errors import UsageError
from enginebay.lab.loadgen import calibration
from enginebay.lab.study import run_study
from enginebay.lab.study.remote_meter import METERS_PATH, _explain_refusal
from enginebay.lab.study.run_point import StudyContext

KEYS = {"ENGINEBAY_ADMIN_KEY": "usual", "GPU_HOST_KEY": "named", "EMPTY": ""}
FAR, NEAR = "http://gpu-host:8000", "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8000", True),
        ("https://127.0.0.53", True),
        ("http://localhost:8000/v1", True),
        ("http://LOCALHOST", True),
        ("http://[::1]:8000", True),
        ("http://192.168.1.5:8000", False),
        ("http://[2001:db8::1]", False),
        ("http://gpu-host", False),
        ("http://localhost.example.org", False),
        ("http://127.0.0.1.example.org", False),
        ("http://127.0.0.1@example.org", False),
        ("http://0.0.0.0", False),
        ("http://[bad", False),
        ("", False),
    ],
)
def test_loopback_urls(url: str, here: bool) -> None:
    assert is_loopback_url(url) is here


def test_the_usual_admin_key_stays_on_this_host() -> None:
    assert build_admin_headers([NEAR, NEAR], None, KEYS) == {"Authorization": "Bearer usual"}
    assert build_admin_headers([FAR], None, KEYS) == {}
    assert build_admin_headers([NEAR, FAR], None, KEYS) == {}


def test_a_key_named_for_a_server_goes_there() -> None:
    assert build_admin_headers([FAR], "GPU_HOST_KEY", KEYS) == {"Authorization": "Bearer named"}
    assert build_admin_headers([FAR], "ENGINEBAY_ADMIN_KEY", KEYS) == {"Authorization": "Bearer usual"}
    for missing in ("EMPTY", "NOWHERE"):
        with pytest.raises(UsageError, match=f"{missing} is not set"):
            build_admin_headers([FAR], missing, KEYS)


def test_servers_that_the_lab_starts_need_none() -> None:
    assert build_admin_headers([None, None], None, KEYS) == {}
    assert build_admin_headers([None], "NOWHERE", KEYS) == {}
    assert build_admin_headers([NEAR], None, {}) == {}


def test_the_key_for_text_is_the_first_that_is_set() -> None:
    assert build_inference_headers([NEAR], {"OPENAI_API_KEY": "o", "ENGINEBAY_API_KEY": "e"}) == {
        "Authorization": "Bearer e"
    }
    assert build_inference_headers([NEAR], {"OPENAI_API_KEY": "o", "ENGINEBAY_API_KEY": ""}) == {
        "Authorization": "Bearer o"
    }
    assert build_inference_headers([NEAR], {}) == {}


@pytest.mark.parametrize(
    ("urls", "sent"),
    [
        ([FAR], False),
        ([NEAR, FAR], False),
        ([NEAR], True),
        (["https://api.example.org/v1", NEAR], True),
        (["HTTPS://api.example.org"], True),
        (["http://https.example.org"], False),
    ],
)
def test_openai_key_is_only_sent_over_loopback_or_tls(urls: list[str], sent: bool) -> None:
    assert build_inference_headers(urls, {"OPENAI_API_KEY": "o"}) == ({"Authorization": "Bearer o"} if sent else {})
    assert build_inference_headers(urls, {"ENGINEBAY_API_KEY": "e"}) == {"Authorization": "Bearer e"}


def test_a_refusal_says_what_to_pass() -> None:
    assert "--admin-key-env" in _explain_refusal(403) and METERS_PATH in _explain_refusal(403)


@pytest.fixture()
def benches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StudyContext]:
    """Record the context of a study without measuring."""
    found: list[StudyContext] = []

    def carry_out(bench: StudyContext, study: Any, *_: Any) -> run_study.StudyOutcome:
        found.append(bench)
        return run_study.StudyOutcome(study.id, [], {})

    monkeypatch.setattr(run_study, "run_study", carry_out)
    monkeypatch.setattr(calibration, "calibrate", lambda: calibration.ClientCeiling(1.0, 1.0, 1))
    monkeypatch.setattr("enginebay.cli.lab.results.show_study_results", lambda *_: None)
    monkeypatch.setattr("enginebay.cli.lab.study_planning._detect_engine", lambda target: "")  # there is nobody to ask
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    for name in ("ENGINEBAY_API_KEY", "OPENAI_API_KEY", "ENGINEBAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name in ("ENGINEBAY_ADMIN_KEY", "GPU_HOST_KEY"):
        monkeypatch.setenv(name, KEYS[name])
    return found


def experiment(*arguments: str) -> int:
    return main(["experiment", *arguments])


def of_url(url: str, *more: str) -> int:
    return experiment("--url", url, "--model", "m", "--tokenizer", "bytes", *more)


@pytest.mark.parametrize(
    ("url", "more", "key"),
    [
        (NEAR, [], "usual"),
        (FAR, [], None),
        (FAR, ["--admin-key-env", "GPU_HOST_KEY"], "named"),
        (NEAR, ["--admin-key-env", "GPU_HOST_KEY"], "named"),
    ],
)
def test_the_command_sends_the_key_where_it_belongs(
    benches: list[StudyContext], url: str, more: list[str], key: str | None
) -> None:
    assert of_url(url, *more) == 0
    assert benches[0].admin_headers == ({} if key is None else {"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize(("url", "sent"), [(FAR, False), ("https://gpu-host", True)])
def test_the_command_does_not_send_another_programs_key_in_the_clear(
    benches: list[StudyContext], monkeypatch: pytest.MonkeyPatch, url: str, sent: bool
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "o")
    assert of_url(url) == 0
    assert benches[0].headers == ({"Authorization": "Bearer o"} if sent else {})


@pytest.mark.parametrize("url", ["http://me:secret@gpu-host:8000", "https://secret@gpu-host", "http://@gpu-host"])
def test_a_url_with_a_password_is_rejected_and_not_stored(
    benches: list[StudyContext], tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert of_url(url) == 2
    said = capsys.readouterr().err
    assert "must not contain a user name or password" in said and "secret" not in said
    assert not benches and not (tmp_path / "home" / "runs" / "studies").exists()


def test_a_study_that_goes_on_keeps_to_it(benches: list[StudyContext]) -> None:
    assert of_url(FAR) == 0
    assert experiment("--resume") == 0
    assert experiment("--resume", "--admin-key-env", "GPU_HOST_KEY") == 0
    assert [bench.admin_headers for bench in benches] == [{}, {}, {"Authorization": "Bearer named"}]


def test_an_unset_or_unneeded_variable_is_reported(
    benches: list[StudyContext], capsys: pytest.CaptureFixture[str]
) -> None:
    assert of_url(FAR, "--admin-key-env", "NOWHERE") == 2
    assert "the variable NOWHERE is not set" in capsys.readouterr().err
    assert experiment("--engine", "fake", "--admin-key-env", "GPU_HOST_KEY") == 2
    assert "--admin-key-env needs a running server" in capsys.readouterr().err
    assert not benches
