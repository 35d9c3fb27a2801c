"""Writes the Prometheus text format 0.0.4 for /metrics and parses it for `bay top`. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]  # sorted (name, value) pairs
Samples = dict[str, dict[Labels, float]]

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?\s*')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_NAME = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")


def render_metrics(snapshot: Mapping[str, Any]) -> bytes:
    """Render a snapshot of `ServerMetrics`, with families and children sorted by name."""
    lines: list[str] = []
    for name in sorted(snapshot):
        family = snapshot[name]
        lines.append(f"# HELP {name} {_escape_help(family['help'])}")
        lines.append(f"# TYPE {name} {family['kind']}")
        for values, data in sorted(family["children"], key=lambda child: list(child[0])):
            labels = [
                f'{label}="{_escape_label(value)}"' for label, value in zip(family["labels"], values, strict=True)
            ]
            if family["kind"] == "histogram":
                lines += _format_histogram(name, labels, family["bounds"], *data)
            else:
                lines.append(f"{name}{_format_labels(labels)} {_format_sample(data)}")
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def _format_histogram(
    name: str, labels: Sequence[str], bounds: Sequence[float], counts: Sequence[int], total: float
) -> Iterator[str]:
    seen = 0
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        seen += count
        bounded = [*labels, f'le="{_format_sample(bound)}"']
        yield f"{name}_bucket{_format_labels(bounded)} {seen}"
    yield f"{name}_sum{_format_labels(labels)} {_format_sample(total)}"
    yield f"{name}_count{_format_labels(labels)} {seen}"


def _format_labels(labels: Sequence[str]) -> str:
    return "{" + ",".join(labels) + "}" if labels else ""


def _format_sample(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def parse_metrics(text: str) -> Samples:
    """Return samples by name and labels. Raise ValueError if the text is not in this format."""
    samples: Samples = {}
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            name, labels, value = _parse_sample(stripped)
            samples.setdefault(name, {})[labels] = value
    return samples


def _parse_sample(line: str) -> tuple[str, Labels, float]:
    name = _NAME.match(line)
    if name is None:
        raise ValueError(f"not a metric: {line[:80]!r}")
    at = name.end()
    labels: list[tuple[str, str]] = []
    if line[at : at + 1] == "{":
        at += 1
        while match := _LABEL.match(line, at):
            labels.append((match[1], _unescape(match[2])))
            at = match.end()
        if line[at : at + 1] != "}":
            raise ValueError(f"unclosed labels: {line[:80]!r}")
        at += 1
    number = line[at:].split()  # a timestamp may follow the value
    if not number:
        raise ValueError(f"no value: {line[:80]!r}")
    return name[1], tuple(sorted(labels)), float(number[0])


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], value)


def sum_samples(samples: Samples, name: str, **labels: str) -> float | None:
    """Return the sum of a metric over all children with these labels, or None without any."""
    values = [value for own, value in samples.get(name, {}).items() if _has_labels(own, labels)]
    return sum(values) if values else None


def sum_buckets(samples: Samples, name: str, **labels: str) -> dict[float, float]:
    """Return a histogram's cumulative counts by upper bound, summed over all children with these labels."""
    counts: dict[float, float] = {}
    for own, value in samples.get(f"{name}_bucket", {}).items():
        if _has_labels(own, labels):
            bound = float(dict(own)["le"])
            counts[bound] = counts.get(bound, 0.0) + value
    return counts


def _has_labels(own: Iterable[tuple[str, str]], required: Mapping[str, str]) -> bool:
    return required.items() <= dict(own).items()


def estimate_quantile(share: float, cumulative: Mapping[float, float]) -> float | None:
    """Return the quantile at `share`, interpolated inside its bucket.

    None without observations; infinity if it lies above the highest bound.
    """
    bounds = sorted(cumulative)
    if not bounds or cumulative[bounds[-1]] <= 0:
        return None
    rank = share * cumulative[bounds[-1]]
    below, seen = 0.0, 0.0
    for bound in bounds:
        if cumulative[bound] >= rank and cumulative[bound] > seen:
            if math.isinf(bound):
                return math.inf
            return below + (bound - below) * (rank - seen) / (cumulative[bound] - seen)
        below, seen = bound, cumulative[bound]
    return math.inf
