"""GPUs that a test declares in place of the driver's: `ENGINEBAY_FAKE_GPUS=8x80GiB`.

8x80GiB                       eight of 80 GiB
2x80GiB,24GiB                 two of 80 GiB and one of 24 GiB
4x80GiB; links 0-1 2-3        with fast links between GPUs 0 and 1, and 2 and 3
4x80GiB; lost 2               GPU 2 does not respond
/path/to/file                 one of these in a file, which may change while the server runs
"""

from __future__ import annotations

import re
from pathlib import Path

from enginebay.errors import ConfigError
from enginebay.util.gpus.gpu_discovery import Gpu, GpuHost
from enginebay.util.number_format import parse_size

VARIABLE = "ENGINEBAY_FAKE_GPUS"
_GROUP = re.compile(r"(?:(\d+)x)?(\S+)")
_MAX_GPUS = 1024


def read_declared_gpus(text: str) -> GpuHost:
    """Parse a declaration, or the file it names. Raises `ConfigError`."""
    if text.startswith("/"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{VARIABLE}: {error}") from None
    sizes, *options = (part.strip() for part in text.split(";"))
    gpus = [Gpu(index, "declared GPU", size, f"GPU-{index:08x}") for index, size in enumerate(_parse_sizes(sizes))]
    links: list[tuple[int, int]] = []
    lost: set[int] = set()
    for option in options:
        name, *values = option.split()
        if name == "links" and all(re.fullmatch(r"\d+-\d+", value) for value in values):
            pairs = (sorted(map(int, value.split("-"))) for value in values)
            links += [(one, other) for one, other in pairs]
        elif name == "lost" and all(value.isdigit() for value in values):
            lost.update(map(int, values))
        else:
            raise _build_error(option)
    problems = tuple(f"GPU {index} cannot be used: declared as lost" for index in sorted(lost))
    return GpuHost(tuple(gpu for gpu in gpus if gpu.index not in lost), "declared", tuple(links), problems)


def _parse_sizes(text: str) -> list[int]:
    sizes: list[int] = []
    for group in text.split(","):
        match = _GROUP.fullmatch(group.strip())
        size = parse_size(match[2]) if match is not None else None
        if match is None or size is None or len(sizes) + int(match[1] or 1) > _MAX_GPUS:
            raise _build_error(group)
        sizes += [size] * int(match[1] or 1)
    return sizes


def _build_error(part: str) -> ConfigError:
    return ConfigError(f"{VARIABLE}: expected a declaration such as 8x80GiB, got {part.strip()!r}")
