"""The rules in words. `docs/validity.md` has them as a table, and a test compares the two."""

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
    """One rule: what is looked at, from where on it counts, which numbers it concerns, and why."""

    looks_at: str
    informative: str  # "-": never
    invalid: str
    concerns: tuple[Concern, ...]
    why: str


def _format_percent(share: float) -> str:
    return f"{share * 100:g}%"


def _format_limits(pair: tuple[float, float], unit: str = "") -> tuple[str, str]:
    """The two limits of a share in words."""
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
        "share of requests that failed",
        *_format_limits(limits.ERROR_SHARE),
        ALL_CONCERNS,
        "failures end early and latencies leave them out: beyond 1% they can be the whole p99",
    ),
    "impossible_records": ReasonRule(
        "records whose times or counts contradict themselves",
        "-",
        "any",
        ALL_CONCERNS,
        "the client or a clock is broken",
    ),
    "send_lag": ReasonRule(
        "p99 of actual minus intended send time; the maximum below 100 requests",
        _describe_lag(0),
        _describe_lag(1),
        ("latency", "throughput", "comparison"),
        "a client that sends late leaves out the slow moments (coordinated omission: Tene)",
    ),
    "delivered_rate": ReasonRule(
        "rate sent against the rate of the schedule",
        *_format_limits(limits.RATE_SHORTFALL, " short"),
        ALL_CONCERNS,
        "an open loop that slows down with the server is a closed one (Schroeder et al., NSDI 2006)",
    ),
    "drawn_rate": ReasonRule(
        f"rate of the drawn schedule against the rate asked for, from {limits.DRAWN_RATE_MIN} requests on",
        f"> {_format_percent(limits.DRAWN_RATE)} apart",
        "-",
        ("latency", "comparison"),
        "the run has another load than its name says",
    ),
    "delivered_concurrency": ReasonRule(
        "closed loop: mean in flight over the window against the concurrency asked for",
        *_format_limits(limits.CONCURRENCY_OFF, " off"),
        ALL_CONCERNS,
        "ramp-up and drain are measured along, or the client cannot keep up",
    ),
    "client_saturated": ReasonRule(
        "requests/s and events/s against the client's ceiling; share of a core that its busiest process used",
        f"> {_format_percent(limits.CEILING_SHARE[0])} of the ceiling or > {_format_percent(limits.CLIENT_CORE_SHARE[0])} of the core",
        f"> {_format_percent(limits.CEILING_SHARE[1])} of the ceiling or > {_format_percent(limits.CLIENT_CORE_SHARE[1])} of the core",
        ("latency", "throughput", "comparison"),
        "near its ceiling a client measures itself; its accuracy is proven up to half of it",
    ),
    "littles_law": ReasonRule(
        "requests/s × mean end-to-end time, as published, against the mean in flight that a bay server counts",
        f"the server counts > {_format_percent(limits.LITTLES_LAW[0])} more, or > {_format_percent(limits.OUTSIDE_SERVER)} less",
        f"it counts > {_format_percent(limits.LITTLES_LAW[1])} more",
        ALL_CONCERNS,
        "they are equal (Little 1961), but for what requests take on their way to the server and back",
    ),
    "backlog_grows": ReasonRule(
        "open loop: growth of requests in flight over the second half, as a share of its arrivals",
        f"> {_format_percent(limits.BACKLOG_GROWTH)} and beyond {limits.BACKLOG_SIGMAS:g} standard deviations",
        "-",
        ("latency", "comparison"),
        "above capacity latency grows for as long as one waits; throughput is then a fair ceiling",
    ),
    "unstable_warmup": ReasonRule(
        f"the series' cut by MSER-5 (White 1997), from {limits.WARMUP_MIN_VALUES} requests on",
        f"what is before the cut moves the mean by > {_format_percent(limits.WARMUP_BIAS)}; or as invalid, but an open loop that grows slower",
        f"no cut in the first half, and the halves' means > {_format_percent(limits.WARMUP_HALVES)} apart",
        ALL_CONCERNS,
        "compilation, caches and clocks of the first requests are not the steady state",
    ),
    "too_few_for_percentile": ReasonRule(
        f"answers against ln(0.025) / ln(p): {_NEEDED_ANSWERS}",
        "-",
        "fewer, and an objective is decided by the percentile",
        ("latency",),
        "with fewer, the 95% interval of the percentile has no upper end in the sample (order statistics), and it is not printed",
    ),
    "too_few_cycles": ReasonRule(
        "cycles that the study was planned with",
        f"< {limits.MIN_CYCLES}",
        "-",
        ("comparison",),
        "two runs have an interval of 12.7 standard errors, three of 4.3",
    ),
    "output_lengths_off": ReasonRule(
        "output tokens against those asked for exactly",
        f"> {_format_percent(limits.OUTPUT_LENGTH[0])} of the answers differ",
        f"all tokens together > {_format_percent(limits.OUTPUT_LENGTH[1])} off",
        ALL_CONCERNS,
        "other lengths are other work (MLPerf Inference, LLM tasks: 90 to 110% of the reference)",
    ),
    "input_lengths_off": ReasonRule(
        "share of requests in which the server counts fewer input tokens than were sent",
        *_format_limits(limits.SHORTER_PROMPTS),
        ALL_CONCERNS,
        "a server that cuts prompts in silence does less work",
    ),
    "unasked_cache_hits": ReasonRule(
        "share of input tokens from the server's cache where the workload shares no prefix; of a file, beyond what its lines share",
        *_format_limits(limits.CACHED_SHARE),
        ALL_CONCERNS,
        "prompts of the warm-up, an earlier cycle or an earlier study were remembered: the prefill is not measured",
    ),
    "stream_bunched": ReasonRule(
        "output tokens in an event",
        f"> {limits.TOKENS_PER_EVENT:g}",
        "-",
        ("latency",),
        "gaps between events are not gaps between tokens",
    ),
    "parity_broken": ReasonRule(
        "against the study's first point with the same prompts (`bay choose`: its first engine): prompt ids, log probabilities (where they are told, else greedy agreement), lengths",
        f"> {limits.LOGPROB_DISTANCE[0]:g} nats, < {_format_percent(1 - limits.DIVERGENCE[0])} of tokens agree, "
        f"or lengths > {_format_percent(limits.PARITY_LENGTH)} off",
        f"other prompt ids, > {limits.LOGPROB_DISTANCE[1]:g} nats, or < {_format_percent(round(1 - limits.DIVERGENCE[1], 6))} of tokens agree",
        ("comparison",),
        "precision explains a little distance, not another model",
    ),
    "engine_warned": ReasonRule(
        "what the engine says against its settings when it loads",
        "anything",
        "it names a setting that the study varies",
        ALL_CONCERNS,
        "an engine that cannot do what it is told does something else, under the name of what was asked for",
    ),
    "machine_busy": ReasonRule(
        "share of all cores used by others; of a GPU while nothing was asked; of the requests that a bay server counts in flight",
        _describe_busy(0),
        _describe_busy(1),
        ALL_CONCERNS,
        "what others take is not there for the engine, and their joules are counted as its own",
    ),
    "thermal_drift": ReasonRule(
        "temperature of a device, last against first quarter",
        f"> {limits.TEMPERATURE_DRIFT_C:g} °C apart",
        f"> {limits.TEMPERATURE_DRIFT_C:g} °C warmer, and the clock > {_format_percent(limits.CLOCK_DRIFT)} lower",
        ALL_CONCERNS,
        "leakage grows with temperature and boost clocks fall: it is not the same device any more",
    ),
    "throttled": ReasonRule(
        "share of samples in which a device was slowed down by heat, hardware or the power supply",
        *_format_limits(limits.THROTTLED_SHARE),
        ALL_CONCERNS,
        "the room was measured; a power cap is how the device is set, and no reason",
    ),
    "energy_window_short": ReasonRule(
        "length of the energy's window; share of its energy that may belong to the other side of its ends",
        _describe_short_window(0),
        _describe_short_window(1),
        ("energy",),
        "GPU power is a mean over up to a second (Yang et al., SC24), so the edges are not the window's own",
    ),
    "energy_sources_apart": ReasonRule(
        "energy counter against sampled power",
        *_format_limits(limits.ENERGY_APART, " apart"),
        ("energy",),
        "one of them is wrong, and nobody knows which",
    ),
    "energy_counter": ReasonRule(
        "breaks of the energy counter and of sampled power in the window",
        "sampled power has gaps or ends early, or no source is left",
        "the counter went back, jumped, stood still or ends early, and the joules are of sampled power",
        ("energy",),
        "the counter is the measure: sampled power alone has nothing to be checked against",
    ),
    "energy_baseline": ReasonRule(
        "the idle power that is taken off",
        "it changed while it was measured",
        "it is more than the whole energy",
        ("energy",),
        "active energy is a difference, and has the error of both",
    ),
}


def codes_about(concern: Concern) -> frozenset[str]:
    """The codes that concern these numbers: `verdict.status_within(codes_about("energy"))`."""
    return frozenset(code for code, rule in REASON_RULES.items() if concern in rule.concerns)


def render_markdown_table() -> str:
    """The table of the documentation."""
    rows = [
        f"| `{name}` | {code.looks_at} | {code.informative} | {code.invalid} | "
        f"{'all' if code.concerns == ALL_CONCERNS else ', '.join(code.concerns)} | {code.why} |"
        for name, code in REASON_RULES.items()
    ]
    head = ("| code | looks at | informative | invalid | concerns | why |", "| --- | --- | --- | --- | --- | --- |")
    return "\n".join((*head, *rows))
