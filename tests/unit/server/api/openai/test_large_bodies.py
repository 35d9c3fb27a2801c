"""What a large body holds is read beside the event loop, what a small one holds at once."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import InvalidRequest
from enginebay.server.api.openai import completions, embeddings
from tests.unit.server.requests.test_retry_policy import call_of


class Context:
    """Finds a model that knows few tokens."""

    def __init__(self) -> None:
        prompts = SimpleNamespace(vocabulary_size=10)
        client = SimpleNamespace(prompts=prompts)
        self.served = SimpleNamespace(limits=ServerLimits(), client=client, does=lambda _: True)

    async def model(self, *_: Any, **__: Any) -> tuple[Any, None]:
        return self.served, None


@pytest.mark.parametrize("size", [10, 50_000])
@pytest.mark.parametrize(
    ("endpoint", "module", "field"),
    [(completions.create_completion, completions, "prompt"), (embeddings.create_embeddings, embeddings, "input")],
)
async def test_where_token_ids_are_read(
    endpoint: Any, module: Any, field: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    reads = module.read_prompts

    def read(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return reads(*args)

    monkeypatch.setattr(module, "read_prompts", read)
    call = call_of()
    call.exchange.body = json.dumps({"model": "m", field: [1] * size + [99]}).encode()
    with pytest.raises(InvalidRequest, match="outside of 0 to 9"):
        await endpoint(Context(), call)
    assert (threads[0] != threading.get_ident()) is (size > 1000)
