"""One server per engine, shared by all tests that ask it, since a load can take most of a minute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.contract.adapters import adapter_for
from tests.contract.profiles import PROFILES
from tests.integration.server.battered import battered as battered
from tests.integration.server.serving import Server, serving

ENGINES = ("fake", "llamacpp", "transformers", "vllm")
EMBEDDERS = {"fake": "toy", "llamacpp": "smollm2", "transformers": "minilm", "vllm": "minilm"}


@dataclass
class Served:
    """A server with one model for text, called `text`, its adapter `tiny`, and one for embeddings, called `vectors`."""

    engine: str
    server: Server
    long: str  # a prompt whose answer goes on for at least 64 tokens
    certain: str  # one whose answer is beyond doubt, however the engine computes it


@pytest.fixture(scope="session", params=ENGINES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    profile = PROFILES[request.param]
    embedder = EMBEDDERS[profile.kind]
    adapter = adapter_for(profile.kind, tmp_path_factory.mktemp("adapter"))
    config: dict[str, object] = {
        "models": {
            "text": {
                "source": profile.model,
                "engine": profile.kind,
                "loras": {"tiny": adapter},
                profile.kind: _nested(profile.settings),
            },
            "vectors": {
                "source": embedder,
                "engine": profile.kind,
                "task": "embed",
                profile.kind: _nested(
                    {key: value for key, value in profile.settings.items() if key in ("dtype", "cpu_kvcache_space_gib")}
                ),
            },
        }
    }
    if profile.kind == "fake":
        for model in config["models"].values():  # type: ignore[attr-defined]
            del model["source"]
    with serving(config=config) as server:
        yield Served(profile.kind, server, profile.long, profile.certain)


def _nested(settings: object) -> dict[str, object]:
    assert isinstance(settings, dict)
    found: dict[str, object] = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})  # type: ignore[assignment]
        place[name] = value
    return found
