"""From a configuration to the points of a study: engines with their settings, loads, and what every request says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebay.config.model import Config
from enginebay.config.tree import overlay
from enginebay.errors import ConfigError

if TYPE_CHECKING:
    from enginebay.config.points import Point as Choice
    from enginebay.fleet.plan import Plan
    from enginebay.lab.points import Point

USUAL_INPUT_TOKENS = 128
USUAL_OUTPUT_TOKENS = 128
_GUIDE = {
    "requests": "num_input_prompts",
    "input_tokens": "max_input_tokens",
    "max_input_tokens": "max_input_tokens",
    "output_tokens": "sampling.max_tokens",
}
# A server that is measured has one client, which may ask for everything at once.
_SERVER_LIMITS = {"queue": 1_000_000, "queue_timeout_s": 3600.0, "connections": 65536}


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent and when, as the configuration says it."""

    workload: dict[str, Any]
    profiles: list[dict[str, Any]]
    limits: dict[str, Any]


def engine_points(
    choice: Choice, model: str | None, tokenizer: str | None, say: Callable[[str], None], *, convert: bool = True
) -> list[Point]:
    """The points of one engine and one choice of swept values: one for each profile."""
    from enginebay.fleet.plan import make_plan

    config = choice.config
    plan = make_plan(model or config.model, engine=choice.engine, config=config, convert=convert, say=say)
    kind = plan.spec.kind
    common = {
        "engine": kind,
        "model": plan.model,
        "serve": serve_config(config, plan),
        "body": request_body(config.sampling_for(kind, plan.model)),
        "tokenizer": tokenizer or _tokenizer(plan),
        "source": _source(plan),
        "warnings": list(dict.fromkeys([*map(str, config.warnings), *plan.warnings])),
        "varied": [name for key in choice.changes for name in _setting(key, plan.spec.settings)],
    }
    name = choice.label if choice.engine == kind else choice.label.replace(choice.engine, kind, 1)
    return with_loads(config, common, name)


def _setting(key: str, settings: Collection[str]) -> list[str]:
    """The engine's setting that a key stands for, whoever the key says it belongs to; none where it is no setting of the engine."""
    parts = key.split(".")
    tails = (".".join(parts[place:]) for place in range(len(parts)))
    return [tail for tail in tails if tail in settings][:1]


def url_points(config: Config, url: str, model: str, tokenizer: str | None) -> list[Point]:
    """The points of a server that already runs: one for each profile."""
    common = {
        "engine": "",
        "model": model,
        "url": url,
        "body": request_body(sampling_of(config, model)),
        "tokenizer": tokenizer,
    }
    return with_loads(config, common, url)


def with_loads(config: Config, common: dict[str, Any], name: str) -> list[Point]:
    from enginebay.lab.points import Point, read_plan
    from enginebay.lab.profiles.profile import label
    from enginebay.lab.profiles.read import read_profile

    sampling = sampling_of(config, common["model"])
    load = read_load(config, sampling)
    experiment = config.experiment
    body, workload = fitted(common["body"], load.workload)
    found = []
    for profile in load.profiles:
        (read,) = read_profile(profile)
        point = Point(
            **{**common, "body": body},
            label=f"{name} {label(read)}",
            workload=workload,
            profile=profile,
            limits=load.limits,
            seed=int(sampling.get("seed", 0)),
            arrivals_seed=experiment.traffic_simulation.seed,
            slo=experiment.slo,
            price_per_hour=experiment.price_per_hour,
            warmup=experiment.warmup,
            parity=experiment.parity,
        )
        read_plan(point)  # what is wrong with it is said now, not after an hour
        found.append(point)
    return found


def read_load(config: Config, sampling: Mapping[str, Any]) -> Load:
    """Workload, profiles and limits, with the guide's keys in their place and paths beside the config file."""
    from enginebay.lab.profiles.profile import profile_data
    from enginebay.lab.profiles.read import parse_profile, read_profile
    from enginebay.lab.workload.read import read_workload, workload_data

    experiment = config.experiment
    sending = experiment.sending or {"kind": "offline"}
    profiles, own = parse_profile(sending) if isinstance(sending, str) else (read_profile(sending), {})
    given = _given_workload(config, sampling)
    if "requests" in own and config.origin("profile").rank > _requests_rank(config):
        given.pop("requests", None)
    folder = config.path.absolute().parent if config.path else Path.cwd()
    workload = workload_data(read_workload(given, folder))
    return Load(workload, [profile_data(profile) for profile in profiles], {**(experiment.limits or {}), **own})


def sampling_of(config: Config, model: str) -> dict[str, Any]:
    """What is configured for all models and for this one, on whatever engine."""
    own = config.models.get(model)
    entries = overlay(config.sampling_entries, own.sampling_entries if own else {})
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _given_workload(config: Config, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """`workload` over the guide's keys, except those that a later source has."""
    usual, own = _usual_workload(config, sampling), config.experiment.workload or {}
    rank = config.origin("workload").rank
    later = {name: value for name, value in usual.items() if own and _guide_rank(config, name) > rank}
    return {**usual, **own, **later}


def _guide_rank(config: Config, name: str) -> int:
    """Of the guide's key that says this one of the workload."""
    return config.origin(_GUIDE[name]).rank if name in _GUIDE else 0


def _requests_rank(config: Config) -> int:
    """Of what says how many requests the workload has."""
    inside = "requests" in (config.experiment.workload or {})
    return max(_guide_rank(config, "requests"), config.origin("workload").rank if inside else 0)


def _usual_workload(config: Config, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """What the guide's keys say of the workload."""
    experiment = config.experiment
    kind = (experiment.workload or {}).get("kind", "synthetic")
    found: dict[str, Any] = {"kind": kind}
    if experiment.num_input_prompts is not None:
        found["requests"] = experiment.num_input_prompts
    if kind == "jsonl" and experiment.max_input_tokens is not None:
        found["max_input_tokens"] = experiment.max_input_tokens
    if kind != "synthetic":
        return found
    found["input_tokens"] = experiment.max_input_tokens or USUAL_INPUT_TOKENS
    most = sampling.get("max_tokens", USUAL_OUTPUT_TOKENS)
    if sampling.get("min_tokens", most) > most:
        raise ConfigError("min_output_tokens is above max_output_tokens", "lower it")
    found["output_tokens"] = most if sampling.get("min_tokens", most) == most else None
    return found


def request_body(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """What every request says. Greedy unless the configuration says otherwise, so that engines do the same work."""
    body = {name: list(value) if isinstance(value, tuple) else value for name, value in sampling.items()}
    if not {"temperature", "do_sample", "num_beams"} & set(body):
        body["temperature"] = 0
    return body


def fitted(body: Mapping[str, Any], workload: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where each request has its own exact length, no common one may overrule it."""
    exact = workload.get("output_tokens") is not None or workload["kind"] == "trace"
    return {name: value for name, value in body.items() if not exact or name not in ("max_tokens", "min_tokens")}, dict(
        workload
    )


def serve_config(config: Config, plan: Plan) -> dict[str, Any]:
    """A whole configuration for `bay serve`: this engine with exactly these settings."""
    load = plan.launch.load
    model: dict[str, Any] = {"trust_remote_code": load.trust_remote_code, "loras": dict(load.loras), "task": load.task}
    configured = config.models.get(plan.model)
    if configured is not None and configured.source:
        model["source"] = configured.source
    limits = {
        name.removeprefix("limits."): entry.value
        for name, entry in config.section_entries.get("server", {}).items()
        if name.startswith("limits.") and entry.value is not None
    }
    return {
        "engine": plan.spec.kind,
        "offline": config.offline,
        "models": {plan.model: {name: value for name, value in model.items() if value}},
        plan.spec.kind: _nested(load.settings),
        "server": {"limits": {**_SERVER_LIMITS, **limits}},
    }


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`{"speculative.method": "ngram"}` becomes `{"speculative": {"method": "ngram"}}`."""
    whole: dict[str, Any] = {}
    for name, value in settings.items():
        *way, last = name.split(".")
        place = whole
        for part in way:
            place = place.setdefault(part, {})
        place[last] = list(value) if isinstance(value, tuple) else value
    return whole


def _tokenizer(plan: Plan) -> str | None:
    from enginebay.lab.workload.byte_tokenizer import NAME

    if plan.spec.byte_tokens:
        return NAME
    return str(plan.source) if plan.source else None


def _source(plan: Plan) -> dict[str, Any]:
    """Where the model lies and what it is. One that is used where it lies has no hash: reading all of it takes too long."""
    from enginebay.fleet.choices import model_print
    from enginebay.fleet.models import Store

    stored = next((one for one in Store().models() if one.path == plan.source), None) if plan.source else None
    files = {} if stored is None else {"sha256": model_print(stored)}
    return {"path": plan.launch.load.path, "engine_version": plan.version, **files}
