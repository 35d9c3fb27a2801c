"""How much of a file's input a prefix cache could reuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from enginebay.errors import InvalidRequest
from enginebay.lab.workload.workload_builder import build_workload
from enginebay.lab.workload.workload_spec import JsonlSpec, SyntheticSpec
from tests.unit.lab.workload.small_tokenizers import make_byte_level

STORY = "it was a dark and stormy night, and the rain fell in torrents "


def shared(folder: Path, *prompts: Any, tokenizer: Any = None, render: Any = None, **spec: Any) -> float | None:
    place = folder / "prompts.jsonl"
    lines = [{"messages" if isinstance(one, list) and isinstance(one[0], dict) else "prompt": one} for one in prompts]
    place.write_text("\n".join(map(json.dumps, lines)))
    count = spec.pop("count", None)
    return build_workload(JsonlSpec(place, **spec), tokenizer, count, 0, render=render).shared


def test_token_ids_with_a_common_prefix(tmp_path: Path) -> None:
    assert shared(tmp_path, [1, 2, 3, 4], [5, 6, 7, 8]) == 0
    assert shared(tmp_path, [1, 2, 3, 4], [1, 2, 7, 8], [9, 9]) == 4 / 10
    assert shared(tmp_path, [1, 2], [3, 4], [1, 2, 5, 6]) == 4 / 8  # wherever in the file they are
    assert shared(tmp_path, [1, 2]) == 0


def test_lines_that_come_again_are_shared(tmp_path: Path) -> None:
    assert shared(tmp_path, [1, 2], [3, 4], repeat=True, count=4) == 1
    assert shared(tmp_path, [1, 2], [3, 4], repeat=True, count=2) == 0


def test_text_is_counted_in_tokens_where_they_are_known(tmp_path: Path) -> None:
    one, other = f"bel {STORY}", f"bel {STORY.upper()}"
    begin = len(make_byte_level().encode("bel "))
    length = sum(len(make_byte_level().encode(text)) for text in (one, other))
    assert shared(tmp_path, one, other, tokenizer=make_byte_level()) == pytest.approx(2 * begin / length, rel=0.1)


def test_by_characters_rather_too_much_is_taken_for_shared(tmp_path: Path) -> None:
    one, other = f"a {STORY * 9}", f"b {STORY * 9}"
    assert 0 < (shared(tmp_path, one, other) or 0) < 0.02
    assert shared(tmp_path, STORY * 9 + one, STORY * 9 + other) == 1.0
    assert shared(tmp_path, "a", "b") == 1.0  # the token that every prompt begins with may be half of it
    assert shared(tmp_path, [1, 2, 3, 4], STORY) == pytest.approx(2 * 4 / (4 + 4 + len(STORY)))


def test_what_a_template_writes_first_is_shared(tmp_path: Path) -> None:
    def render(messages: Any) -> list[int]:
        return [1, 2, 3, 4, *map(ord, messages[0]["content"])]

    chats = [[{"role": "user", "content": text}] for text in ("ab", "cd")]
    assert shared(tmp_path, *chats, render=render) == 4 / 6
    assert shared(tmp_path, *chats) is None

    def refusing(messages: Any) -> list[int]:
        raise InvalidRequest("no images", "")

    assert shared(tmp_path, *chats, render=refusing) is None


def test_synthetic_workloads_do_not_measure_sharing() -> None:
    assert build_workload(SyntheticSpec(8), make_byte_level(), 2, 0).shared is None
