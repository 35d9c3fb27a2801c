"""What an engine can do without on one generation of GPUs. Data, and the pure choice of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from enginebay.errors import UsageError

_BLACKWELL = "kernels for Blackwell, which Hopper cannot run"
_CUTE = "kernels in CuTe DSL: flash-attention 4, DeepSeek V4 and gated delta nets; other models do without"
_MEDIA = "reads images and video; text needs none of it"


@dataclass(frozen=True, slots=True)
class TrimProfile:
    """`files`: patterns in the wheel; `packages`: dependencies; each with the reason. `variables` say so to the engine."""

    name: str
    engine: str
    distribution: str
    files: Mapping[str, str]
    packages: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)


# A vLLM 0.26 without these is known to work on an H200, with torch, triton and transformers of the host.
SM90_VLLM = TrimProfile(
    name="sm90",
    engine="vllm",
    distribution="vllm",
    files={
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": "flash-attention 2: Hopper uses flash-attention 3",
        "vllm/third_party/fmha_sm100/*": _BLACKWELL,
        "vllm/vllm-rs": "vLLM's own server; bay serves",
        "vllm/third_party/deep_gemm/_C.cpython-*": "for another Python",
    },
    packages={
        "nvidia-cutlass-dsl": _CUTE,
        "quack-kernels": _CUTE,
        "tokenspeed-mla": _BLACKWELL,
        "flashinfer-python": "flash-attention 3 and vLLM's own sampler do its work",
        "nvidia-cudnn-frontend": "vLLM itself uses it in benchmarks only",
        "tilelang": "kernels of models with hyper-connections, made on the host",
        "humming-kernels": "one of several sets of kernels for quantised weights, made on the host",
        "fastsafetensors": "another way to load weights, not the default",
        "ninja": "for kernels that are made on the host, which needs the CUDA toolkit",
        "opencv-python-headless": _MEDIA,
        "pynvvideocodec": _MEDIA,
        "torchaudio": "reads sound; text needs none of it",
        "torchcodec": _MEDIA,
    },
    variables={"VLLM_USE_FLASHINFER_SAMPLER": "0"},
)
TRIM_PROFILES = (SM90_VLLM,)


def find_trim(name: str, engines: Sequence[str]) -> TrimProfile:
    """That of the engine which has such a one. Raises `UsageError` with those there are."""
    for one in TRIM_PROFILES:
        if one.name == name and one.engine in engines:
            return one
    known = ", ".join(f"{one.name} for {one.engine}" for one in TRIM_PROFILES)
    raise UsageError(f"there is no trim {name} for {' or '.join(engines)}", f"known: {known}")


def select_trimmed_files(trim: TrimProfile, files: Iterable[str], python: str) -> dict[str, str]:
    """The files of a wheel that are left out, and why. What is made for the target's own Python stays."""
    own = f".cpython-{python.replace('.', '')}-"
    return {
        path: why
        for path in files
        for pattern, why in trim.files.items()
        if fnmatchcase(path, pattern) and own not in path
    }
