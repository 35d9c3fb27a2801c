"""Check that responses match the requests, and that there are enough of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from enginebay.lab.measures.distribution import count_needed, is_quotable
from enginebay.lab.measures.parity import Parity
from enginebay.lab.validity import limits
from enginebay.lab.validity.in_flight import filter_answered
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason, grade_figure, pick_gravest
from enginebay.lab.workload.request_records import Record

_STATUS_PREFIX = "× "
_MAX_MESSAGE_CHARS = 120  # of a server's message
_SEED_HINT = "if the server saw these prompts before, send others (--set workload.seed=N) or restart it"
_FILE_HINT = (
    "if the server saw these lines before, run one cycle (--cycles 1), shuffle a file with far more lines than are "
    "sent, restart the server, or let the lab start the engine; if warm-up and parity sent them, add lines to the file"
)


def no_requests(facts: RunFacts) -> Finding:
    """Check that at least one request was answered."""
    if filter_answered(facts.records):
        return FINE
    message = f"none of {len(facts.records)} requests was answered" if facts.records else "no request was sent"
    return Reason("no_requests", "invalid", message, 0.0, 1.0)


def errors(facts: RunFacts) -> Finding:
    """Check that few requests failed. Unsent requests are the client's fault; `delivered_rate` counts them."""
    tried = [record for record in facts.records if record.error != "unsent"]
    if not tried:
        return UNKNOWN
    failed = [record for record in tried if record.error is not None]
    message = f"{len(failed)} of {len(tried)} requests failed ({_summarize_failures(failed)}); latencies exclude them"
    return grade_figure("errors", len(failed) / len(tried), *limits.ERROR_SHARE, message)


def _summarize_failures(failed: Sequence[Record]) -> str:
    """Return failure counts by kind, with the most common message of the most frequent status and of stalls."""
    named = [_classify_failure(record) for record in failed]
    kinds = Counter(named).most_common()
    status = next((name for name, _ in kinds if name.startswith(_STATUS_PREFIX)), None)
    details = {
        wanted: Counter(
            _clean_message(record) for record, name in zip(failed, named, strict=True) if name == wanted
        ).most_common(1)
        for wanted in (status, "stalled")
    }
    messages = {name: f": {common[0][0]}" for name, common in details.items() if common and common[0][0]}
    return ", ".join(f"{count} {name}{messages.get(name, '')}" for name, count in kinds)


def _classify_failure(record: Record) -> str:
    refused = record.error == "status" and record.status is not None
    return f"{_STATUS_PREFIX}{record.status}" if refused else str(record.error)


def _clean_message(record: Record) -> str:
    """Return the server's message as one short printable line, safe for terminals."""
    text = record.detail.removeprefix(f"{record.status}:")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[: _MAX_MESSAGE_CHARS - 1]}…"


def too_few_for_percentile(facts: RunFacts) -> Finding:
    """Check that percentiles with an objective have enough answers; others are omitted from the figures instead.

    Requests count even for token gaps: gaps within one response are not independent.
    """
    count = len(filter_answered(facts.records))
    if not facts.percentiles or not count:
        return UNKNOWN
    return check_answer_count(facts.percentiles, count)


def check_answer_count(percentiles: Sequence[float], count: int) -> Finding:
    """Check that this many answers support a decision by these percentiles."""
    short = sorted(percent for percent in percentiles if not is_quotable(percent, count))
    if not short:
        return FINE
    named = ", ".join(f"p{percent:g}" for percent in short)
    least = count_needed(short[-1])
    message = f"{count} answers are too few to judge {named}: p{short[-1]:g} needs {least}"
    return Reason("too_few_for_percentile", "invalid", message, float(count), float(least))


def too_few_cycles(facts: RunFacts) -> Finding:
    """Check that there are enough cycles for an interval."""
    return UNKNOWN if facts.cycles is None else check_cycle_count(facts.cycles)


def check_cycle_count(cycles: int) -> Finding:
    """Check that a study with this many cycles has an interval."""
    if cycles >= limits.MIN_CYCLES:
        return FINE
    message = f"{cycles} of at least {limits.MIN_CYCLES} cycles: no useful interval, so comparisons are inconclusive"
    return Reason("too_few_cycles", "informative", message, float(cycles), float(limits.MIN_CYCLES))


def output_lengths_off(facts: RunFacts) -> Finding:
    """Check that responses have the requested length: fewer tokens are less work."""
    pairs = [
        (record.output_tokens, wanted)
        for record in filter_answered(facts.records)
        if (wanted := _requested_output_tokens(facts, record.index)) and record.output_tokens is not None
    ]
    if not pairs:
        return UNKNOWN
    wanted_sum = sum(wanted for _, wanted in pairs)
    off = abs(sum(actual for actual, _ in pairs) / wanted_sum - 1)
    wrong = sum(actual != wanted for actual, wanted in pairs)
    message = f"{wrong} of {len(pairs)} responses do not have the requested length, {off:.1%} of all tokens"
    informative, invalid = limits.OUTPUT_LENGTH
    if off > invalid:
        return Reason("output_lengths_off", "invalid", message, off, invalid)
    share = wrong / len(pairs)
    return Reason("output_lengths_off", "informative", message, share, informative) if share > informative else FINE


def _requested_output_tokens(facts: RunFacts, index: int) -> int | None:
    requests = facts.requests or ()
    return requests[index].output_tokens if 0 <= index < len(requests) else None


def input_lengths_off(facts: RunFacts) -> Finding:
    """Check that the server read whole prompts: a truncated prompt is less work. Extra tokens come from its template."""
    requests = facts.requests or ()
    pairs = [
        (record.input_tokens, sent_tokens)
        for record in filter_answered(facts.records)
        if record.input_tokens is not None
        and 0 <= record.index < len(requests)
        and (sent_tokens := requests[record.index].input_tokens) is not None
    ]
    if not pairs:
        return UNKNOWN
    short = sum(counted < sent_tokens for counted, sent_tokens in pairs)
    message = (
        f"the server counts fewer input tokens than were sent in {short} of {len(pairs)} requests: it truncates prompts"
    )
    return grade_figure("input_lengths_off", short / len(pairs), *limits.SHORTER_PROMPTS, message)


def unasked_cache_hits(facts: RunFacts) -> Finding:
    """Check that prompts without a shared prefix did not hit the cache after a warm-up or an earlier cycle."""
    reported = [
        (record.cached_tokens, record.input_tokens)
        for record in filter_answered(facts.records)
        if record.cached_tokens is not None and record.input_tokens
    ]
    if facts.shared_prefix is not False or not reported:
        return UNKNOWN
    share = sum(cached for cached, _ in reported) / sum(read for _, read in reported)
    message = (
        f"{share:.0%} of the input tokens came from the server's cache, but the workload shares "
        f"{f'{facts.shared_share:.0%} at most' if facts.shared_share else 'none'}: {_FILE_HINT if facts.from_file else _SEED_HINT}"
    )
    own = max(share - facts.shared_share, 0.0) / (1 - facts.shared_share)
    return grade_figure("unasked_cache_hits", own, *limits.CACHED_SHARE, message)


def stream_bunched(facts: RunFacts) -> Finding:
    """Check for about one token per event; otherwise gaps between events are not inter-token latencies."""
    streams = [record for record in filter_answered(facts.records) if record.events and (record.output_tokens or 0) > 1]
    if not streams:
        return UNKNOWN
    per_event = sum(record.output_tokens or 0 for record in streams) / sum(record.events for record in streams)
    if per_event <= limits.TOKENS_PER_EVENT:
        return FINE
    message = (
        f"{per_event:.1f} tokens per event: inter-token latency is measured between events; use time per output token"
    )
    return Reason("stream_bunched", "informative", message, per_event, limits.TOKENS_PER_EVENT)


def parity_broken(facts: RunFacts) -> Finding:
    """Check that both engines did the same work: the same tokens in, about the same model."""
    parity = facts.parity
    if parity is None:
        return UNKNOWN
    finding = pick_gravest(
        _check_prompts(parity), _check_logprob_distance(parity), _check_divergence(parity), _check_lengths(parity)
    )
    if not isinstance(finding, Reason) or not facts.parity_with:
        return finding
    return replace(finding, message=f"against {facts.parity_with}: {finding.message}")


def _check_prompts(parity: Parity) -> Finding:
    if parity.same_prompt_ids is None:
        return UNKNOWN
    message = "the engines got different prompt tokens, so their work differs"
    return FINE if parity.same_prompt_ids else Reason("parity_broken", "invalid", message, 0.0, 1.0)


def _check_logprob_distance(parity: Parity) -> Finding:
    if parity.logprob_distance is None:
        return UNKNOWN
    message = (
        f"log probabilities are {parity.logprob_distance:.2g} nats apart: different precision or a different model"
    )
    return grade_figure("parity_broken", parity.logprob_distance, *limits.LOGPROB_DISTANCE, message)


def _check_divergence(parity: Parity) -> Finding:
    """Used only without logprobs, since rounding alone makes long answers diverge."""
    if parity.greedy_agreement is None or parity.logprob_distance is not None:
        return UNKNOWN
    message = f"greedy answers agree in {parity.greedy_agreement:.0%} of their tokens; without logprobs this may be more than rounding"
    return grade_figure("parity_broken", 1 - parity.greedy_agreement, *limits.DIVERGENCE, message)


def _check_lengths(parity: Parity) -> Finding:
    if parity.output_length_ratio is None:
        return UNKNOWN
    off = abs(parity.output_length_ratio - 1)
    if off <= limits.PARITY_LENGTH:
        return FINE
    message = f"answers are {parity.output_length_ratio:.2f} times as long as the other engine's when the model decides the end"
    return Reason("parity_broken", "informative", message, off, limits.PARITY_LENGTH)
