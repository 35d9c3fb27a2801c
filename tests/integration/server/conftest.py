"""One server per engine, shared by all tests that ask it, since a load can take most of a minute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.contract.engine_profiles import PROFILES
from tests.contract.lora_adapters import make_adapter
from tests.integration.server.abused_server import battered as battered
from tests.integration.server.bay_process import BayProcess, run_server

ENGINES = ("fake", "llamacpp", "transformers", "vllm")
EMBEDDERS = {"fake": "toy", "llamacpp": "smollm2", "transformers": "minilm", "vllm": "minilm"}


@dataclass
class ServedEngine:
    """A server with one model for text, called `text`, its adapter `tiny`, and one for embeddings, called `vectors`."""

    engine: str
    server: BayProcess
    long: str  # a prompt whose answer goes on for at least 64 tokens
    certain: str  # one whose answer is beyond doubt, however the engine computes it


@pytest.fixture(scope="session", params=ENGINES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    profile = PROFILES[request.param]
    embedder = EMBEDDERS[profile.kind]
    adapter = make_adapter(profile.kind, tmp_path_factory.mktemp("adapter"))
    config: dict[str, object] = {
        "models": {
            "text": {
                "source": profile.model,
                "engine": profile.kind,
                "loras": {"tiny": adapter},
                profile.kind: _nest_settings(profile.settings),
            },
            "vectors": {
                "source": embedder,
                "engine": profile.kind,
                "task": "embed",
                profile.kind: _nest_settings(
                    {key: value for key, value in profile.settings.items() if key in ("dtype", "cpu_kvcache_space_gib")}
                ),
            },
        }
    }
    if profile.kind == "fake":
        for model in config["models"].values():  # type: ignore[attr-defined]
            del model["source"]
    with run_server(config=config) as server:
        yield ServedEngine(profile.kind, server, profile.long, profile.certain)


def _nest_settings(settings: object) -> dict[str, object]:
    assert isinstance(settings, dict)
    found: dict[str, object] = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})  # type: ignore[assignment]
        place[name] = value
    return found
