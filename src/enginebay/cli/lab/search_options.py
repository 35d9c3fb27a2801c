"""Parses the options of `bay choose`: objective, arrival profile and length of each run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from enginebay.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from enginebay.config.sections.experiment_section import ExperimentConfig
    from enginebay.lab.profiles.profile import Profile
    from enginebay.lab.search.rate_search import SearchGoal

RATE_PROFILES = ("poisson", "constant", "gamma")
RUN_LIMITS = ("requests", "duration_s")
DEFAULT_RUN_S = 15.0
MIN_REQUESTS = 50  # per run, unless the objective needs more


def parse_search_options(
    experiment: ExperimentConfig, slo: Sequence[str], profile: str | None, requests: int | None, seconds: float | None,
    resolution: float, most_runs: int,
) -> SearchGoal:  # fmt: skip
    """Build the search goal from the flags, falling back to the configuration."""
    from enginebay.lab.measures.distribution import count_needed
    from enginebay.lab.measures.slo import slo_from_dict
    from enginebay.lab.search.rate_bisection import SearchRules
    from enginebay.lab.search.rate_search import SearchGoal

    objective = parse_objective(slo, experiment.slo)
    arrivals, limits = parse_profile_option(profile, experiment.effective_profile)
    percents = [target.percent for target in slo_from_dict(objective).objectives]
    return SearchGoal(
        slo=objective,
        profile=arrivals,
        requests=requests or limits.get("requests") or max(MIN_REQUESTS, *map(count_needed, percents)),
        seconds=seconds or limits.get("duration_s") or DEFAULT_RUN_S,
        rules=SearchRules(resolution=resolution, most_runs=most_runs),
    )


def parse_objective(texts: Sequence[str], configured: Mapping[str, Any] | None) -> dict[str, float]:
    """Parse `ttft_p95=0.8,tpot_p95=0.05` into limits by name."""
    from enginebay.lab.measures.slo import parse_slo, slo_from_dict

    if not texts and not configured:
        raise UsageError(
            "no objective",
            "pass one, for example --slo ttft_p95=0.8: 95% of requests get their first token within 0.8 s",
        )
    parsed = parse_slo(",".join(texts)) if texts else slo_from_dict(configured or {})
    objective = {target.name: target.limit_s for target in parsed.objectives}
    single = sorted(set(parsed.limits) - {target.metric for target in parsed.objectives})
    if single or not objective:
        raise UsageError(
            f"{', '.join(f'{name}_s' for name in single)} limits a single request, but a run needs a percentile",
            f"for example --slo {single[0]}_p95={parsed.limits[single[0]]:g}: 95% of requests meet it",
        )
    return objective


def check_token_lengths(experiment: ExperimentConfig, lengths: Mapping[str, int]) -> None:
    """Raise `UsageError` if flags set token lengths of a workload with its own prompts."""
    kind = (experiment.workload or {}).get("kind", "synthetic")
    if lengths and kind != "synthetic":
        named = " and ".join(f"--{name.replace('_', '-')}" for name in lengths)
        raise UsageError(f"{named} cannot change a workload of kind {kind}", "remove it, or change the workload")


def parse_profile_option(
    text: str | None, configured: Mapping[str, Any] | str | None
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Parse a profile without a rate, and the run limits in its short form."""
    from enginebay.lab.profiles.profile import profile_to_dict
    from enginebay.lab.profiles.profile_config import PROFILE_EXAMPLE, parse_profile

    if text is None:
        profiles = _read_configured_profiles(configured)
        rated = len(profiles) == 1 and profiles[0].kind in RATE_PROFILES
        return (_drop_rate(profile_to_dict(profiles[0])) if rated else {"kind": RATE_PROFILES[0]}), {}
    kind, _, rest = text.partition(":")
    if kind not in RATE_PROFILES:
        raise ConfigError(
            f"profile {kind!r} has no rate to search for", f"use one of {', '.join(RATE_PROFILES)}", param="profile"
        )
    parts = [part for part in rest.split(",") if part]
    if any(part.split("=")[0].strip() == "rate" for part in parts):
        raise ConfigError(
            "bay choose searches for the rate",
            f"remove it from the profile; {PROFILE_EXAMPLE} is for experiments",
            param="rate",
        )
    (profile,), limits = parse_profile(f"{kind}:{','.join(['rate=1', *parts])}")
    for name in limits:
        if name not in RUN_LIMITS:
            raise ConfigError(
                f"{name} does not apply to a search",
                f"its runs end by {' and '.join(RUN_LIMITS)}",
                param=f"profile.{name}",
            )
    return _drop_rate(profile_to_dict(profile)), limits


def _read_configured_profiles(configured: Mapping[str, Any] | str | None) -> list[Profile]:
    from enginebay.lab.profiles.profile_config import parse_profile, profiles_from_dict

    if not configured:
        return []
    return parse_profile(configured)[0] if isinstance(configured, str) else profiles_from_dict(configured)


def _drop_rate(profile: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in profile.items() if name != "rate"}
