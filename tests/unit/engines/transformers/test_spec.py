"""The light half of the transformers engine."""

from __future__ import annotations

import subprocess
import sys

from enginebay.contract import EngineSpec, Support, parameters
from enginebay.engines.transformers.spec import SPEC

GUIDE = (
    "attn_implementation", "torch_compile", "use_bettertransformer", "use_cache", "low_cpu_mem_usage", "max_memory",
    "assisted_generation.model", "assisted_generation.num_tokens", "num_beams", "early_stopping", "length_penalty",
    "output_scores", "return_dict_in_generate", "extra", "batching.batch_size", "batching.strategy",
    "sharding.strategy", "quantization.load_in_4bit", "quantization.load_in_8bit", "fp_precision",
    "device_map", "torch_dtype",
)  # fmt: skip


def test_every_request_parameter_is_declared() -> None:
    assert tuple(SPEC.request) == parameters()


def test_nothing_is_refused() -> None:
    assert not [name for name, capability in SPEC.request.items() if capability.support is Support.REFUSES]


def test_every_key_of_the_guide_is_known() -> None:
    assert [name for name in GUIDE if name not in SPEC.settings and name not in SPEC.retired] == []


def test_it_survives_json() -> None:
    assert EngineSpec.from_json(SPEC.to_json()) == SPEC


def test_it_is_known_by_its_old_name() -> None:
    assert "pytorch" in SPEC.aliases


def test_the_spec_does_not_import_the_library() -> None:
    code = (
        "import sys, enginebay.engines.transformers.spec;"
        "sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
