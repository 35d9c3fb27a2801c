"""The engine contract: frozen data and interfaces, with no third-party imports.

Engines written for earlier versions may import the names in `DEPRECATED_NAMES`; they are aliases.
"""

from typing import Any

from enginebay.contract.engine_interface import Engine, HasMeter, Sink, SupportsLora, SupportsSleep, SupportsStats
from enginebay.contract.engine_messages import (
    Delta,
    Done,
    Embedding,
    Energy,
    Facts,
    FinishReason,
    GenerateRequest,
    Load,
    Stats,
    Timing,
    TokenLogprobs,
    Usage,
)
from enginebay.contract.engine_spec import (
    Capability,
    CudaOwner,
    EngineSpec,
    GpuSettings,
    Isolation,
    LaunchMode,
    Patch,
    Preference,
    Preset,
    Probe,
    Recipe,
    Retired,
    Runtime,
    Setting,
    Support,
    TrimProfile,
    honours,
    refuses,
    translates,
)
from enginebay.contract.memory_facts import MemoryEstimate, MemoryFacts, estimate_generic_memory
from enginebay.contract.sampling_parameters import (
    NEUTRAL,
    RANGES,
    Guided,
    Sampling,
    collect_requested_parameters,
    parameters,
)
from enginebay.contract.sampling_parser import parse_sampling

DEPRECATED_NAMES = {
    "Sleeps": "SupportsSleep",
    "TakesAdapters": "SupportsLora",
    "TellsStats": "SupportsStats",
    "read_sampling": "parse_sampling",
    "requested": "collect_requested_parameters",
}


def __getattr__(name: str) -> Any:
    if name in DEPRECATED_NAMES:
        return globals()[DEPRECATED_NAMES[name]]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DEPRECATED_NAMES",
    "NEUTRAL",
    "RANGES",
    "Capability",
    "CudaOwner",
    "Delta",
    "Done",
    "Embedding",
    "Energy",
    "Engine",
    "EngineSpec",
    "Facts",
    "FinishReason",
    "GenerateRequest",
    "GpuSettings",
    "Guided",
    "HasMeter",
    "Isolation",
    "LaunchMode",
    "Load",
    "MemoryEstimate",
    "MemoryFacts",
    "Patch",
    "Preference",
    "Preset",
    "Probe",
    "Recipe",
    "Retired",
    "Runtime",
    "Sampling",
    "Setting",
    "Sink",
    "Stats",
    "Support",
    "SupportsLora",
    "SupportsSleep",
    "SupportsStats",
    "Timing",
    "TokenLogprobs",
    "TrimProfile",
    "Usage",
    "collect_requested_parameters",
    "estimate_generic_memory",
    "honours",
    "parameters",
    "parse_sampling",
    "refuses",
    "translates",
]
