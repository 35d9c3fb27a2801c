"""The rules in words. `docs/validity.md` has them as a table, and a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from enginebay.lab.measures.distribution import needed
from enginebay.lab.validity import limits

Concern = Literal["latency", "throughput", "energy", "comparison"]
ALL: tuple[Concern, ...] = ("latency", "throughput", "energy", "comparison")


@dataclass(frozen=True, slots=True)
class Code:
    """One rule: what is looked at, from where on it counts, which numbers it concerns, and why."""

    looks_at: str
    informative: str  # "-": never
    invalid: str
    concerns: tuple[Concern, ...]
    why: str


def _percent(share: float) -> str:
    return f"{share * 100:g}%"


def _over(pair: tuple[float, float], unit: str = "") -> tuple[str, str]:
    """The two limits of a share in words."""
    low, high = (f"> {_percent(limit)}{unit}" if limit else "any" for limit in pair)
    return low, high


def _lag(tier: int) -> str:
    ms, ttft, window = limits.SEND_LAG_S[tier], limits.SEND_LAG_OF_TTFT[tier], limits.OFFLINE_LAG_OF_WINDOW[tier]
    return f"> {ms * 1000:g} ms and > {_percent(ttft)} of the median TTFT (offline: {_percent(window)} of the window)"


def _short(tier: int) -> str:
    gpu, cpu, edges = limits.GPU_WINDOW_S[tier], limits.CPU_WINDOW_S[tier], limits.ENERGY_EDGES[tier]
    return f"GPU < {gpu:g} s, CPU < {cpu:g} s, or > {_percent(edges)}"


def _busy(tier: int) -> str:
    cores, gpu, requests = limits.OTHERS_BUSY[tier], limits.IDLE_GPU_BUSY[tier], limits.OTHERS_IN_FLIGHT[tier]
    return f"> {_percent(cores)} of cores, > {_percent(gpu)} of a GPU or > {_percent(requests)} of requests"


_NEEDED = ", ".join(f"p{percent} {needed(percent)}" for percent in (90, 95, 99))

CODES: Mapping[str, Code] = {
    "no_requests": Code("answers", "-", "none", ALL, "nothing was measured"),
    "errors": Code(
        "share of requests that failed",
        *_over(limits.ERROR_SHARE),
        ALL,
        "failures end early and latencies leave them out: beyond 1% they can be the whole p99",
    ),
    "impossible_records": Code(
        "records whose times or counts contradict themselves", "-", "any", ALL, "the client or a clock is broken"
    ),
    "send_lag": Code(
        "p99 of actual minus intended send time; the maximum below 100 requests",
        _lag(0),
        _lag(1),
        ("latency", "throughput", "comparison"),
        "a client that sends late leaves out the slow moments (coordinated omission: Tene)",
    ),
    "delivered_rate": Code(
        "rate sent against the rate of the schedule",
        *_over(limits.RATE_SHORTFALL, " short"),
        ALL,
        "an open loop that slows down with the server is a closed one (Schroeder et al., NSDI 2006)",
    ),
    "drawn_rate": Code(
        f"rate of the drawn schedule against the rate asked for, from {limits.DRAWN_RATE_MIN} requests on",
        f"> {_percent(limits.DRAWN_RATE)} apart",
        "-",
        ("latency", "comparison"),
        "the run has another load than its name says",
    ),
    "delivered_concurrency": Code(
        "closed loop: mean in flight over the window against the concurrency asked for",
        *_over(limits.CONCURRENCY_OFF, " off"),
        ALL,
        "ramp-up and drain are measured along, or the client cannot keep up",
    ),
    "client_saturated": Code(
        "requests/s and events/s against the client's ceiling; share of a core that its busiest process used",
        f"> {_percent(limits.CEILING_SHARE[0])} of the ceiling or > {_percent(limits.CLIENT_CORE_SHARE[0])} of the core",
        f"> {_percent(limits.CEILING_SHARE[1])} of the ceiling or > {_percent(limits.CLIENT_CORE_SHARE[1])} of the core",
        ("latency", "throughput", "comparison"),
        "near its ceiling a client measures itself; its accuracy is proven up to half of it",
    ),
    "littles_law": Code(
        "requests/s × mean end-to-end time, as published, against the mean in flight that a bay server counts",
        f"the server counts > {_percent(limits.LITTLES_LAW[0])} more, or > {_percent(limits.OUTSIDE_SERVER)} less",
        f"it counts > {_percent(limits.LITTLES_LAW[1])} more",
        ALL,
        "they are equal (Little 1961), but for what requests take on their way to the server and back",
    ),
    "backlog_grows": Code(
        "open loop: growth of requests in flight over the second half, as a share of its arrivals",
        f"> {_percent(limits.BACKLOG_GROWTH)} and beyond {limits.BACKLOG_SIGMAS:g} standard deviations",
        "-",
        ("latency", "comparison"),
        "above capacity latency grows for as long as one waits; throughput is then a fair ceiling",
    ),
    "unstable_warmup": Code(
        f"the series' cut by MSER-5 (White 1997), from {limits.WARMUP_MIN_VALUES} requests on",
        f"what is before the cut moves the mean by > {_percent(limits.WARMUP_BIAS)}; or as invalid, but an open loop that grows slower",
        f"no cut in the first half, and the halves' means > {_percent(limits.WARMUP_HALVES)} apart",
        ALL,
        "compilation, caches and clocks of the first requests are not the steady state",
    ),
    "too_few_for_percentile": Code(
        f"answers against ln(0.025) / ln(p): {_NEEDED}",
        "-",
        "fewer, and an objective is decided by the percentile",
        ("latency",),
        "with fewer, the 95% interval of the percentile has no upper end in the sample (order statistics), and it is not printed",
    ),
    "too_few_cycles": Code(
        "cycles that the study was planned with",
        f"< {limits.MIN_CYCLES}",
        "-",
        ("comparison",),
        "two runs have an interval of 12.7 standard errors, three of 4.3",
    ),
    "output_lengths_off": Code(
        "output tokens against those asked for exactly",
        f"> {_percent(limits.OUTPUT_LENGTH[0])} of the answers differ",
        f"all tokens together > {_percent(limits.OUTPUT_LENGTH[1])} off",
        ALL,
        "other lengths are other work (MLPerf Inference, LLM tasks: 90 to 110% of the reference)",
    ),
    "input_lengths_off": Code(
        "share of requests in which the server counts fewer input tokens than were sent",
        *_over(limits.SHORTER_PROMPTS),
        ALL,
        "a server that cuts prompts in silence does less work",
    ),
    "unasked_cache_hits": Code(
        "share of input tokens from the server's cache where the workload shares no prefix; of a file, beyond what its lines share",
        *_over(limits.CACHED_SHARE),
        ALL,
        "prompts of the warm-up, an earlier cycle or an earlier study were remembered: the prefill is not measured",
    ),
    "stream_bunched": Code(
        "output tokens in an event",
        f"> {limits.TOKENS_PER_EVENT:g}",
        "-",
        ("latency",),
        "gaps between events are not gaps between tokens",
    ),
    "parity_broken": Code(
        "against the study's first point with the same prompts (`bay choose`: its first engine): prompt ids, log probabilities (where they are told, else greedy agreement), lengths",
        f"> {limits.LOGPROB_DISTANCE[0]:g} nats, < {_percent(1 - limits.DIVERGENCE[0])} of tokens agree, "
        f"or lengths > {_percent(limits.PARITY_LENGTH)} off",
        f"other prompt ids, > {limits.LOGPROB_DISTANCE[1]:g} nats, or < {_percent(round(1 - limits.DIVERGENCE[1], 6))} of tokens agree",
        ("comparison",),
        "precision explains a little distance, not another model",
    ),
    "engine_warned": Code(
        "what the engine says against its settings when it loads",
        "anything",
        "it names a setting that the study varies",
        ALL,
        "an engine that cannot do what it is told does something else, under the name of what was asked for",
    ),
    "machine_busy": Code(
        "share of all cores used by others; of a GPU while nothing was asked; of the requests that a bay server counts in flight",
        _busy(0),
        _busy(1),
        ALL,
        "what others take is not there for the engine, and their joules are counted as its own",
    ),
    "thermal_drift": Code(
        "temperature of a device, last against first quarter",
        f"> {limits.TEMPERATURE_DRIFT_C:g} °C apart",
        f"> {limits.TEMPERATURE_DRIFT_C:g} °C warmer, and the clock > {_percent(limits.CLOCK_DRIFT)} lower",
        ALL,
        "leakage grows with temperature and boost clocks fall: it is not the same device any more",
    ),
    "throttled": Code(
        "share of samples in which a device was slowed down by heat, hardware or the power supply",
        *_over(limits.THROTTLED_SHARE),
        ALL,
        "the room was measured; a power cap is how the device is set, and no reason",
    ),
    "energy_window_short": Code(
        "length of the energy's window; share of its energy that may belong to the other side of its ends",
        _short(0),
        _short(1),
        ("energy",),
        "GPU power is a mean over up to a second (Yang et al., SC24), so the edges are not the window's own",
    ),
    "energy_sources_apart": Code(
        "energy counter against sampled power",
        *_over(limits.ENERGY_APART, " apart"),
        ("energy",),
        "one of them is wrong, and nobody knows which",
    ),
    "energy_counter": Code(
        "breaks of the energy counter and of sampled power in the window",
        "sampled power has gaps or ends early, or no source is left",
        "the counter went back, jumped, stood still or ends early, and the joules are of sampled power",
        ("energy",),
        "the counter is the measure: sampled power alone has nothing to be checked against",
    ),
    "energy_baseline": Code(
        "the idle power that is taken off",
        "it changed while it was measured",
        "it is more than the whole energy",
        ("energy",),
        "active energy is a difference, and has the error of both",
    ),
}


def codes_about(concern: Concern) -> frozenset[str]:
    """The codes that concern these numbers: `verdict.status_within(codes_about("energy"))`."""
    return frozenset(code for code, rule in CODES.items() if concern in rule.concerns)


def markdown_table() -> str:
    """The table of the documentation."""
    rows = [
        f"| `{name}` | {code.looks_at} | {code.informative} | {code.invalid} | "
        f"{'all' if code.concerns == ALL else ', '.join(code.concerns)} | {code.why} |"
        for name, code in CODES.items()
    ]
    head = ("| code | looks at | informative | invalid | concerns | why |", "| --- | --- | --- | --- | --- | --- |")
    return "\n".join((*head, *rows))
