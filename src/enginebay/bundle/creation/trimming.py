"""Profiles of what an engine does not need on one GPU generation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from enginebay.errors import UsageError

_BLACKWELL = "kernels for Blackwell, which Hopper cannot run"
_CUTE = "CuTe DSL kernels for flash-attention 4, DeepSeek V4 and gated delta nets; other models do not use them"
_MEDIA = "decodes images and video; not needed for text"


@dataclass(frozen=True, slots=True)
class TrimProfile:
    """What to leave out: `files` (patterns in the wheel) and `packages` (dependencies), each with the reason.

    `variables` configure the engine to work without them.
    """

    name: str
    engine: str
    distribution: str
    files: Mapping[str, str]
    packages: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)


# Tested: vLLM 0.26 works without these on an H200, with the host's torch, triton and transformers.
SM90_VLLM = TrimProfile(
    name="sm90",
    engine="vllm",
    distribution="vllm",
    files={
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": "flash-attention 2: Hopper uses flash-attention 3",
        "vllm/third_party/fmha_sm100/*": _BLACKWELL,
        "vllm/vllm-rs": "vLLM's own server; bay replaces it",
        "vllm/third_party/deep_gemm/_C.cpython-*": "for another Python",
    },
    packages={
        "nvidia-cutlass-dsl": _CUTE,
        "quack-kernels": _CUTE,
        "tokenspeed-mla": _BLACKWELL,
        "flashinfer-python": "replaced by flash-attention 3 and vLLM's own sampler",
        "nvidia-cudnn-frontend": "vLLM uses it only in benchmarks",
        "tilelang": "kernels for models with hyper-connections, compiled on the host",
        "humming-kernels": "one of several kernel sets for quantised weights, compiled on the host",
        "fastsafetensors": "an alternative weight loader, not the default",
        "ninja": "compiles kernels on the host, which needs the CUDA toolkit",
        "opencv-python-headless": _MEDIA,
        "pynvvideocodec": _MEDIA,
        "torchaudio": "decodes audio; not needed for text",
        "torchcodec": _MEDIA,
    },
    variables={"VLLM_USE_FLASHINFER_SAMPLER": "0"},
)
TRIM_PROFILES = (SM90_VLLM,)


def find_trim(name: str, engines: Sequence[str]) -> TrimProfile:
    """Return the trim profile of one of the engines. Raises `UsageError` with the known ones."""
    for profile in TRIM_PROFILES:
        if profile.name == name and profile.engine in engines:
            return profile
    known = ", ".join(f"{profile.name} for {profile.engine}" for profile in TRIM_PROFILES)
    raise UsageError(f"no trim profile {name} for {' or '.join(engines)}", f"available: {known}")


def select_trimmed_files(trim: TrimProfile, files: Iterable[str], python: str) -> dict[str, str]:
    """Return the files to remove from a wheel, with reasons. Files built for the target's Python stay."""
    own = f".cpython-{python.replace('.', '')}-"
    return {
        path: reason
        for path in files
        for pattern, reason in trim.files.items()
        if fnmatchcase(path, pattern) and own not in path
    }
