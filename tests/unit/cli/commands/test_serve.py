"""`bay serve`: command line to configuration, up to listening."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.cli.commands import serve
from enginebay.cli.main import main
from enginebay.config.resolved_config import Config


class Reached(Exception):
    """Raised in place of listening."""


@pytest.fixture(autouse=True)
def _hangups_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture()
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The configuration that `bay serve` would serve with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ENGINEBAY_CONFIG", raising=False)
    found: list[Config] = []

    def keyring(config: Config) -> None:
        found.append(config)
        raise Reached

    monkeypatch.setattr(serve, "_load_keyring", keyring)

    def run(*arguments: str) -> Config:
        with pytest.raises(Reached):
            main(["serve", *arguments])
        return found[-1]

    return run


def test_a_preset_lies_below_the_file_the_environment_and_flags(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = ("--preset", "llamacpp-throughput")
    config = served(*preset)
    assert config.engine == "llamacpp"
    assert config.settings_for("llamacpp") == {"max_batch": 128, "batch_size": 512, "prompt_cache": True}
    Path("enginebay.yaml").write_text("llamacpp: {max_batch: 16, batch_size: 64}\nserver: {port: 1}\n")
    assert served(*preset).settings_for("llamacpp") == {"max_batch": 16, "batch_size": 64, "prompt_cache": True}
    monkeypatch.setenv("ENGINEBAY__LLAMACPP__MAX_BATCH", "8")
    config = served(*preset, "--port", "2")
    assert config.settings_for("llamacpp") == {"max_batch": 8, "batch_size": 64, "prompt_cache": True}
    assert config.server.port == 2
    assert served().engine == "auto"


def test_a_preset_that_does_not_exist_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--preset", "llamacp-throughput"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("bay: unknown preset 'llamacp-throughput'\n") and "llamacpp-throughput?" in err
    assert "Traceback" not in err


def asked(preset: str | None, engine: str | None = None, strict: bool = False) -> serve.ServeOptions:
    return serve.ServeOptions(None, preset, {}, ["toy"], engine, {}, strict)


@pytest.mark.parametrize(
    ("preset", "kinds", "said"),
    [
        (None, ["fake"], None),
        ("vllm-throughput", ["vllm"], None),
        ("vllm-throughput", ["fake", "vllm"], None),
        ("vllm-throughput", ["fake", "llamacpp"], "applies to vllm only, and models run on fake, llamacpp"),
    ],
)
def test_an_unused_preset_is_reported(preset: str | None, kinds: list[str], said: str | None) -> None:
    class Variant:
        def __init__(self, kind: str) -> None:
            self.kind = kind

    class Wanted:
        config = Config()
        variants = tuple(Variant(kind) for kind in kinds)

    found = serve._find_unused_preset(asked(preset), Wanted())  # type: ignore[arg-type]
    assert found == ([] if said is None else [f"preset {preset} {said}"])


def test_a_preset_without_effect_is_an_error_when_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ENGINEBAY_CONFIG", raising=False)
    given = ["serve", "toy", "--engine", "fake", "--preset", "vllm-throughput", "--port", "0", "--strict"]
    assert main(given) == 2
    assert "preset vllm-throughput applies to vllm only, and models run on fake" in capsys.readouterr().err
