"""Models in Anthropic's form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from anthropic.types import ModelInfo

from enginebay.errors import InvalidRequest, UnknownModel
from enginebay.server.api.anthropic.anthropic_models import build_anthropic_model, list_anthropic_models
from enginebay.server.sessions.model_catalog import ModelCatalog


def make_catalog(*names: str, context_length: int | None = None) -> ModelCatalog:
    facts = None if context_length is None else SimpleNamespace(context_length=context_length)
    entries = [
        SimpleNamespace(name=name, created=1_700_000_000, primary=SimpleNamespace(facts=facts), route=SimpleNamespace(loras=()))
        for name in names
    ]  # fmt: skip
    return ModelCatalog(cast("Any", entries))


def list_names(**query: str) -> tuple[list[str], bool]:
    found = list_anthropic_models(make_catalog("a", "b", "c", "d"), query)
    assert (found.first_id, found.last_id) == (found.data[0].id, found.data[-1].id) if found.data else (None, None)
    return [model.id for model in found.data], found.has_more


def test_a_model() -> None:
    found = msgspec.to_builtins(build_anthropic_model(make_catalog("a", context_length=4096), "a"))
    assert ModelInfo.model_validate(found).created_at.year == 2023
    assert (found["id"], found["type"], found["max_input_tokens"]) == ("a", "model", 4096)
    assert build_anthropic_model(make_catalog("a"), "a").max_input_tokens is None
    with pytest.raises(UnknownModel, match="unknown model 'z'"):
        build_anthropic_model(make_catalog("a"), "z")


def test_pages() -> None:
    assert list_names() == (["a", "b", "c", "d"], False)
    assert list_names(limit="2") == (["a", "b"], True)
    assert list_names(limit="2", after_id="b") == (["c", "d"], False)
    assert list_names(limit="1", before_id="c") == (["b"], True)
    assert list_names(after_id="d") == ([], False)


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"limit": "²"}, {"after_id": "z"}, {"before_id": ""}]
)
def test_wrong_pages(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        list_names(**query)
    assert raised.value.param == next(iter(query))
