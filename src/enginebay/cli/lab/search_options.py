"""What `bay choose` is asked for: the objective, when requests are sent, and how long each run lasts. Pure."""

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
MIN_REQUESTS = 50  # requests of a run, where the objective needs no more


def parse_search_options(
    experiment: ExperimentConfig, slo: Sequence[str], profile: str | None, requests: int | None, seconds: float | None,
    resolution: float, most_runs: int,
) -> SearchGoal:  # fmt: skip
    """From the flags, and the configuration where they say nothing."""
    from enginebay.lab.measures.distribution import count_needed
    from enginebay.lab.measures.slo import slo_from_dict
    from enginebay.lab.search.rate_bisection import SearchRules
    from enginebay.lab.search.rate_search import SearchGoal

    objective = parse_objective(slo, experiment.slo)
    sending, own = parse_profile_option(profile, experiment.effective_profile)
    percents = [one.percent for one in slo_from_dict(objective).objectives]
    return SearchGoal(
        slo=objective,
        profile=sending,
        requests=requests or own.get("requests") or max(MIN_REQUESTS, *map(count_needed, percents)),
        seconds=seconds or own.get("duration_s") or DEFAULT_RUN_S,
        rules=SearchRules(resolution=resolution, most_runs=most_runs),
    )


def parse_objective(texts: Sequence[str], configured: Mapping[str, Any] | None) -> dict[str, float]:
    """`ttft_p95=0.8,tpot_p95=0.05`: what a run must keep, by name."""
    from enginebay.lab.measures.slo import parse_slo, slo_from_dict

    if not texts and not configured:
        raise UsageError("an objective is needed", "for example --slo ttft_p95=0.8: 95% get their first token in 0.8 s")
    given = parse_slo(",".join(texts)) if texts else slo_from_dict(configured or {})
    found = {one.name: one.limit_s for one in given.objectives}
    single = sorted(set(given.limits) - {one.metric for one in given.objectives})
    if single or not found:
        raise UsageError(
            f"{', '.join(f'{name}_s' for name in single)} is a limit of one request, and a run needs a share of them",
            f"for example --slo {single[0]}_p95={given.limits[single[0]]:g}: 95% of the requests keep it",
        )
    return found


def check_token_lengths(experiment: ExperimentConfig, lengths: Mapping[str, int]) -> None:
    """Raises `UsageError` where the flags give lengths and the prompts have their own."""
    kind = (experiment.workload or {}).get("kind", "synthetic")
    if lengths and kind != "synthetic":
        named = " and ".join(f"--{name.replace('_', '-')}" for name in lengths)
        raise UsageError(f"{named} cannot change a workload of kind {kind}", "leave it out, or change the workload")


def parse_profile_option(
    text: str | None, configured: Mapping[str, Any] | str | None
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """A profile without its rate, and the limits that its short text may have."""
    from enginebay.lab.profiles.profile import profile_to_dict
    from enginebay.lab.profiles.profile_config import PROFILE_EXAMPLE, parse_profile

    if text is None:
        profiles = _read_configured_profiles(configured)
        rated = len(profiles) == 1 and profiles[0].kind in RATE_PROFILES
        return (_drop_rate(profile_to_dict(profiles[0])) if rated else {"kind": RATE_PROFILES[0]}), {}
    kind, _, rest = text.partition(":")
    if kind not in RATE_PROFILES:
        raise ConfigError(
            f"the profile {kind!r} has no rate to look for", f"choose from {', '.join(RATE_PROFILES)}", param="profile"
        )
    parts = [part for part in rest.split(",") if part]
    if any(part.split("=")[0].strip() == "rate" for part in parts):
        raise ConfigError(
            "the rate is what is looked for",
            f"leave it out of the profile; {PROFILE_EXAMPLE} is for experiments",
            param="rate",
        )
    (profile,), limits = parse_profile(f"{kind}:{','.join(['rate=1', *parts])}")
    for name in limits:
        if name not in RUN_LIMITS:
            raise ConfigError(
                f"{name} is not for a search",
                f"a run of it ends by {' and '.join(RUN_LIMITS)}",
                param=f"profile.{name}",
            )
    return _drop_rate(profile_to_dict(profile)), limits


def _read_configured_profiles(given: Mapping[str, Any] | str | None) -> list[Profile]:
    from enginebay.lab.profiles.profile_config import parse_profile, profiles_from_dict

    if not given:
        return []
    return parse_profile(given)[0] if isinstance(given, str) else profiles_from_dict(given)


def _drop_rate(profile: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in profile.items() if name != "rate"}
