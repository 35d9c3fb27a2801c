"""What `bay choose` is asked for: the objective, when requests are sent, and how long each run lasts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from enginebay.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from enginebay.config.experiment import Experiment
    from enginebay.lab.highest import Wish
    from enginebay.lab.profiles.profile import Profile

RATED = ("poisson", "constant", "gamma")
LIMITS = ("requests", "duration_s")
SECONDS = 15.0
FEWEST = 50  # requests of a run, where the objective needs no more


def read_wish(
    experiment: Experiment, slo: Sequence[str], profile: str | None, requests: int | None, seconds: float | None,
    resolution: float, most_runs: int,
) -> Wish:  # fmt: skip
    """From the flags, and the configuration where they say nothing."""
    from enginebay.lab.choosing import Rules
    from enginebay.lab.highest import Wish
    from enginebay.lab.measures.distribution import needed
    from enginebay.lab.measures.slo import read_slo

    objective = read_objective(slo, experiment.slo)
    sending, own = read_sending(profile, experiment.sending)
    percents = [one.percent for one in read_slo(objective).objectives]
    return Wish(
        slo=objective,
        profile=sending,
        requests=requests or own.get("requests") or max(FEWEST, *map(needed, percents)),
        seconds=seconds or own.get("duration_s") or SECONDS,
        rules=Rules(resolution=resolution, most_runs=most_runs),
    )


def read_objective(texts: Sequence[str], configured: Mapping[str, Any] | None) -> dict[str, float]:
    """`ttft_p95=0.8,tpot_p95=0.05`: what a run must keep, by name."""
    from enginebay.lab.measures.slo import parse_slo, read_slo

    if not texts and not configured:
        raise UsageError("an objective is needed", "for example --slo ttft_p95=0.8: 95% get their first token in 0.8 s")
    given = parse_slo(",".join(texts)) if texts else read_slo(configured or {})
    found = {one.name: one.limit_s for one in given.objectives}
    single = sorted(set(given.limits) - {one.metric for one in given.objectives})
    if single or not found:
        raise UsageError(
            f"{', '.join(f'{name}_s' for name in single)} is a limit of one request, and a run needs a share of them",
            f"for example --slo {single[0]}_p95={given.limits[single[0]]:g}: 95% of the requests keep it",
        )
    return found


def check_lengths(experiment: Experiment, lengths: Mapping[str, int]) -> None:
    """Raises `UsageError` where the flags give lengths and the prompts have their own."""
    kind = (experiment.workload or {}).get("kind", "synthetic")
    if lengths and kind != "synthetic":
        named = " and ".join(f"--{name.replace('_', '-')}" for name in lengths)
        raise UsageError(f"{named} cannot change a workload of kind {kind}", "leave it out, or change the workload")


def read_sending(
    text: str | None, configured: Mapping[str, Any] | str | None
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """A profile without its rate, and the limits that its short text may have."""
    from enginebay.lab.profiles.profile import profile_data
    from enginebay.lab.profiles.read import EXAMPLE, parse_profile

    if text is None:
        profiles = _configured(configured)
        rated = len(profiles) == 1 and profiles[0].kind in RATED
        return (_rateless(profile_data(profiles[0])) if rated else {"kind": RATED[0]}), {}
    kind, _, rest = text.partition(":")
    if kind not in RATED:
        raise ConfigError(
            f"the profile {kind!r} has no rate to look for", f"choose from {', '.join(RATED)}", param="profile"
        )
    parts = [part for part in rest.split(",") if part]
    if any(part.split("=")[0].strip() == "rate" for part in parts):
        raise ConfigError(
            "the rate is what is looked for", f"leave it out of the profile; {EXAMPLE} is for experiments", param="rate"
        )
    (profile,), limits = parse_profile(f"{kind}:{','.join(['rate=1', *parts])}")
    for name in limits:
        if name not in LIMITS:
            raise ConfigError(
                f"{name} is not for a search", f"a run of it ends by {' and '.join(LIMITS)}", param=f"profile.{name}"
            )
    return _rateless(profile_data(profile)), limits


def _configured(given: Mapping[str, Any] | str | None) -> list[Profile]:
    from enginebay.lab.profiles.read import parse_profile, read_profile

    if not given:
        return []
    return parse_profile(given)[0] if isinstance(given, str) else read_profile(given)


def _rateless(profile: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in profile.items() if name != "rate"}
