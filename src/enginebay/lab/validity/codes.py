"""Validity rules in words. `docs/validity.md` contains them as a table; a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from enginebay.lab.measures.distribution import count_needed
from enginebay.lab.validity import limits

Concern = Literal["latency", "throughput", "energy", "comparison"]
ALL_CONCERNS: tuple[Concern, ...] = ("latency", "throughput", "energy", "comparison")


@dataclass(frozen=True, slots=True)
class ReasonRule:
    """One rule: the measure, its thresholds, the numbers it concerns, and why."""

    looks_at: str
    informative: str  # "-": never
    invalid: str
    concerns: tuple[Concern, ...]
    why: str


def _format_percent(share: float) -> str:
    return f"{share * 100:g}%"


def _format_limits(pair: tuple[float, float], unit: str = "") -> tuple[str, str]:
    """Format the two limits of a share."""
    low, high = (f"> {_format_percent(limit)}{unit}" if limit else "any" for limit in pair)
    return low, high


def _describe_lag(tier: int) -> str:
    ms, ttft, window = limits.SEND_LAG_S[tier], limits.SEND_LAG_OF_TTFT[tier], limits.OFFLINE_LAG_OF_WINDOW[tier]
    return f"> {ms * 1000:g} ms and > {_format_percent(ttft)} of the median TTFT (offline: {_format_percent(window)} of the window)"


def _describe_short_window(tier: int) -> str:
    gpu, cpu, edges = limits.GPU_WINDOW_S[tier], limits.CPU_WINDOW_S[tier], limits.ENERGY_EDGES[tier]
    return f"GPU < {gpu:g} s, CPU < {cpu:g} s, or > {_format_percent(edges)}"


def _describe_busy(tier: int) -> str:
    cores, gpu, requests = limits.OTHERS_BUSY[tier], limits.IDLE_GPU_BUSY[tier], limits.OTHERS_IN_FLIGHT[tier]
    return f"> {_format_percent(cores)} of cores, > {_format_percent(gpu)} of a GPU or > {_format_percent(requests)} of requests"


_NEEDED_ANSWERS = ", ".join(f"p{percent} {count_needed(percent)}" for percent in (90, 95, 99))

REASON_RULES: Mapping[str, ReasonRule] = {
    "no_requests": ReasonRule("answers", "-", "none", ALL_CONCERNS, "nothing was measured"),
    "errors": ReasonRule(
        "share of failed requests",
        *_format_limits(limits.ERROR_SHARE),
        ALL_CONCERNS,
        "failures end early and are excluded from latencies: above 1% they can make up the whole p99",
    ),
    "impossible_records": ReasonRule(
        "records with inconsistent times or counts", "-", "any", ALL_CONCERNS, "the client or a clock is broken"
    ),
    "send_lag": ReasonRule(
        "p99 of actual minus intended send time; the maximum below 100 requests",
        _describe_lag(0),
        _describe_lag(1),
        ("latency", "throughput", "comparison"),
        "a client that sends late skips the slow moments (coordinated omission: Tene)",
    ),
    "delivered_rate": ReasonRule(
        "sent rate against scheduled rate",
        *_format_limits(limits.RATE_SHORTFALL, " short"),
        ALL_CONCERNS,
        "an open loop that slows down with the server is a closed loop (Schroeder et al., NSDI 2006)",
    ),
    "drawn_rate": ReasonRule(
        f"rate of the random schedule against the requested rate, from {limits.DRAWN_RATE_MIN} requests",
        f"> {_format_percent(limits.DRAWN_RATE)} apart",
        "-",
        ("latency", "comparison"),
        "the run does not have the load that its name says",
    ),
    "delivered_concurrency": ReasonRule(
        "closed loop: mean requests in flight over the window against the requested concurrency",
        *_format_limits(limits.CONCURRENCY_OFF, " off"),
        ALL_CONCERNS,
        "ramp-up and drain weigh too much, or the client cannot keep up",
    ),
    "client_saturated": ReasonRule(
        "requests/s and events/s against the client's ceiling; core share of its busiest process",
        f"> {_format_percent(limits.CEILING_SHARE[0])} of the ceiling or > {_format_percent(limits.CLIENT_CORE_SHARE[0])} of the core",
        f"> {_format_percent(limits.CEILING_SHARE[1])} of the ceiling or > {_format_percent(limits.CLIENT_CORE_SHARE[1])} of the core",
        ("latency", "throughput", "comparison"),
        "near its ceiling a client measures itself; its accuracy is verified up to half of it",
    ),
    "littles_law": ReasonRule(
        "published requests/s × mean end-to-end time against the mean in flight that a bay server counts",
        f"the server counts > {_format_percent(limits.LITTLES_LAW[0])} more, or > {_format_percent(limits.OUTSIDE_SERVER)} less",
        f"it counts > {_format_percent(limits.LITTLES_LAW[1])} more",
        ALL_CONCERNS,
        "they are equal (Little 1961), except for the time requests spend on the network",
    ),
    "backlog_grows": ReasonRule(
        "open loop: growth of requests in flight over the second half, relative to its arrivals",
        f"> {_format_percent(limits.BACKLOG_GROWTH)} and beyond {limits.BACKLOG_SIGMAS:g} standard deviations",
        "-",
        ("latency", "comparison"),
        "above capacity, latency grows with the length of the run; throughput is then a valid ceiling",
    ),
    "unstable_warmup": ReasonRule(
        f"MSER-5 cut of the series (White 1997), from {limits.WARMUP_MIN_VALUES} requests",
        f"values before the cut shift the mean by > {_format_percent(limits.WARMUP_BIAS)}; or as invalid, but an open loop that slows down",
        f"no cut in the first half, and the halves' means > {_format_percent(limits.WARMUP_HALVES)} apart",
        ALL_CONCERNS,
        "the first requests include compilation, cold caches and rising clocks, not the steady state",
    ),
    "too_few_for_percentile": ReasonRule(
        f"answers against ln(0.025) / ln(p): {_NEEDED_ANSWERS}",
        "-",
        "fewer, and an objective depends on the percentile",
        ("latency",),
        "with fewer, the 95% interval of the percentile has no upper end in the sample (order statistics), so the percentile is omitted",
    ),
    "too_few_cycles": ReasonRule(
        "planned cycles of the study",
        f"< {limits.MIN_CYCLES}",
        "-",
        ("comparison",),
        "the interval of two runs is ±12.7 standard errors, of three ±4.3",
    ),
    "output_lengths_off": ReasonRule(
        "output tokens against the requested exact number",
        f"> {_format_percent(limits.OUTPUT_LENGTH[0])} of the responses differ",
        f"total tokens > {_format_percent(limits.OUTPUT_LENGTH[1])} off",
        ALL_CONCERNS,
        "different lengths are different work (MLPerf Inference, LLM tasks: 90 to 110% of the reference)",
    ),
    "input_lengths_off": ReasonRule(
        "share of requests for which the server counts fewer input tokens than were sent",
        *_format_limits(limits.SHORTER_PROMPTS),
        ALL_CONCERNS,
        "a server that silently truncates prompts does less work",
    ),
    "unasked_cache_hits": ReasonRule(
        "share of input tokens from the server's cache if the workload shares no prefix; for a file, beyond what its lines share",
        *_format_limits(limits.CACHED_SHARE),
        ALL_CONCERNS,
        "prompts of the warm-up, an earlier cycle or an earlier study were still cached: prefill is not measured",
    ),
    "stream_bunched": ReasonRule(
        "output tokens per event",
        f"> {limits.TOKENS_PER_EVENT:g}",
        "-",
        ("latency",),
        "gaps between events are not gaps between tokens",
    ),
    "parity_broken": ReasonRule(
        "against the study's first point with the same prompts (`bay choose`: its first engine): prompt ids, log probabilities (if reported, else greedy agreement), lengths",
        f"> {limits.LOGPROB_DISTANCE[0]:g} nats, < {_format_percent(1 - limits.DIVERGENCE[0])} of tokens agree, "
        f"or lengths > {_format_percent(limits.PARITY_LENGTH)} off",
        f"different prompt ids, > {limits.LOGPROB_DISTANCE[1]:g} nats, or < {_format_percent(round(1 - limits.DIVERGENCE[1], 6))} of tokens agree",
        ("comparison",),
        "precision explains a small distance; a large one means a different model",
    ),
    "engine_warned": ReasonRule(
        "warnings of the engine about its settings at load time",
        "any",
        "one names a setting that the study varies",
        ALL_CONCERNS,
        "an engine that cannot apply a setting runs something else under its name",
    ),
    "machine_busy": ReasonRule(
        "share of all cores used by other processes; of a GPU while idle; of requests in flight on a bay server that are not the client's",
        _describe_busy(0),
        _describe_busy(1),
        ALL_CONCERNS,
        "others take resources from the engine, and their joules count as its own",
    ),
    "thermal_drift": ReasonRule(
        "device temperature, last against first quarter of the window",
        f"> {limits.TEMPERATURE_DRIFT_C:g} °C apart",
        f"> {limits.TEMPERATURE_DRIFT_C:g} °C warmer, and the clock > {_format_percent(limits.CLOCK_DRIFT)} lower",
        ALL_CONCERNS,
        "leakage grows with temperature and boost clocks fall: the device changes during the run",
    ),
    "throttled": ReasonRule(
        "share of samples with a device throttled by heat, hardware or the power supply",
        *_format_limits(limits.THROTTLED_SHARE),
        ALL_CONCERNS,
        "the cooling was measured, not the engine; a power cap is a device setting and does not count",
    ),
    "energy_window_short": ReasonRule(
        "length of the energy window; share of energy that may fall outside its edges",
        _describe_short_window(0),
        _describe_short_window(1),
        ("energy",),
        "GPU power is averaged over up to a second (Yang et al., SC24), so the edges include time outside the window",
    ),
    "energy_sources_apart": ReasonRule(
        "energy counter against sampled power",
        *_format_limits(limits.ENERGY_APART, " apart"),
        ("energy",),
        "one of them is wrong, and it is unknown which",
    ),
    "energy_counter": ReasonRule(
        "faults of the energy counter and of sampled power in the window",
        "sampled power has gaps or ends early, or no source is usable",
        "the counter went back, jumped, stalled or ends early, and sampled power is used instead",
        ("energy",),
        "the counter is the reference: sampled power alone cannot be cross-checked",
    ),
    "energy_baseline": ReasonRule(
        "the idle power that is subtracted",
        "it changed while being measured",
        "it exceeds the total energy",
        ("energy",),
        "active energy is a difference and has the error of both terms",
    ),
}


def codes_about(concern: Concern) -> frozenset[str]:
    """Return the codes that concern these numbers."""
    return frozenset(code for code, rule in REASON_RULES.items() if concern in rule.concerns)


def render_markdown_table() -> str:
    """Render the table of `docs/validity.md`."""
    rows = [
        f"| `{name}` | {rule.looks_at} | {rule.informative} | {rule.invalid} | "
        f"{'all' if rule.concerns == ALL_CONCERNS else ', '.join(rule.concerns)} | {rule.why} |"
        for name, rule in REASON_RULES.items()
    ]
    head = ("| code | looks at | informative | invalid | concerns | why |", "| --- | --- | --- | --- | --- | --- |")
    return "\n".join((*head, *rows))
