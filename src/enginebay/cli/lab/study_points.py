"""Builds the points of a study from a configuration: engine settings, workload, arrival profiles and request body."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebay.config.entries.config_entry import overlay
from enginebay.config.resolved_config import Config
from enginebay.errors import ConfigError

if TYPE_CHECKING:
    from enginebay.config.sweep_points import SweepPoint
    from enginebay.fleet.lifecycle.launch_plan import LaunchPlan
    from enginebay.lab.study.study_point import StudyPoint

DEFAULT_INPUT_TOKENS = 128
DEFAULT_OUTPUT_TOKENS = 128
_WORKLOAD_ALIASES = {
    "requests": "num_input_prompts",
    "input_tokens": "max_input_tokens",
    "max_input_tokens": "max_input_tokens",
    "output_tokens": "sampling.max_tokens",
}
# A measured server has one client, which may send everything at once.
_MEASURED_SERVER_LIMITS = {"queue": 1_000_000, "queue_timeout_s": 3600.0, "connections": 65536}


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """What is sent and when, as configured."""

    workload: dict[str, Any]
    profiles: list[dict[str, Any]]
    limits: dict[str, Any]


def build_engine_points(
    sweep_point: SweepPoint,
    model: str | None,
    tokenizer: str | None,
    say: Callable[[str], None],
    *,
    convert: bool = True,
) -> list[StudyPoint]:
    """Build the points of one engine and one set of swept values: one per profile."""
    from enginebay.fleet.lifecycle.launch_plan import make_launch_plan

    config = sweep_point.config
    plan = make_launch_plan(model or config.model, engine=sweep_point.engine, config=config, convert=convert, say=say)
    kind = plan.spec.kind
    common = {
        "engine": kind,
        "model": plan.model,
        "serve": build_serve_config(config, plan),
        "body": build_request_body(config.sampling_for(kind, plan.model)),
        "tokenizer": tokenizer or _get_tokenizer(plan),
        "source": _describe_source(plan),
        "warnings": list(dict.fromkeys([*map(str, config.warnings), *plan.warnings])),
        "varied": [name for key in sweep_point.changes for name in _match_setting(key, plan.spec.settings)],
    }
    name = sweep_point.label if sweep_point.engine == kind else sweep_point.label.replace(sweep_point.engine, kind, 1)
    return build_points(config, common, name)


def build_unchecked_points(sweep_point: SweepPoint, model: str | None, tokenizer: str | None) -> list[StudyPoint]:
    """Build the points of an engine that is not installed, to show them."""
    from enginebay.models import DEFAULT_MODEL

    config, name = sweep_point.config, model or sweep_point.config.model or DEFAULT_MODEL
    common = {
        "engine": sweep_point.engine,
        "model": name,
        "body": build_request_body(resolve_sampling(config, name)),
        "tokenizer": tokenizer,
    }
    return build_points(config, common, sweep_point.label)


def _match_setting(key: str, settings: Collection[str]) -> list[str]:
    """Return the engine setting that a key sets, with any prefix; empty if it sets none."""
    parts = key.split(".")
    tails = (".".join(parts[start:]) for start in range(len(parts)))
    return [tail for tail in tails if tail in settings][:1]


def build_url_points(config: Config, url: str, model: str, tokenizer: str | None) -> list[StudyPoint]:
    """Build the points of a running server: one per profile."""
    common = {
        "engine": "",
        "model": model,
        "url": url,
        "body": build_request_body(resolve_sampling(config, model)),
        "tokenizer": tokenizer,
    }
    return build_points(config, common, url)


def build_points(config: Config, common: dict[str, Any], name: str) -> list[StudyPoint]:
    from enginebay.lab.profiles.profile import profile_label
    from enginebay.lab.profiles.profile_config import profiles_from_dict
    from enginebay.lab.study.study_point import StudyPoint, plan_run

    sampling = resolve_sampling(config, common["model"])
    plan = read_workload_plan(config, sampling)
    experiment = config.experiment
    body, workload = drop_common_lengths(common["body"], plan.workload)
    points = []
    for profile in plan.profiles:
        (parsed,) = profiles_from_dict(profile)
        point = StudyPoint(
            **{**common, "body": body},
            label=f"{name} {profile_label(parsed)}",
            workload=workload,
            profile=profile,
            limits=plan.limits,
            seed=int(sampling.get("seed", 0)),
            arrivals_seed=experiment.traffic_simulation.seed,
            slo=experiment.slo,
            price_per_hour=experiment.price_per_hour,
            warmup=experiment.warmup,
            parity=experiment.parity,
        )
        plan_run(point)  # fail now, not after an hour
        points.append(point)
    return points


def read_workload_plan(config: Config, sampling: Mapping[str, Any]) -> WorkloadPlan:
    """Read workload, profiles and limits. Applies alias keys; paths are relative to the config file."""
    from enginebay.lab.profiles.profile import profile_to_dict
    from enginebay.lab.profiles.profile_config import parse_profile, profiles_from_dict
    from enginebay.lab.workload.workload_config import workload_from_dict, workload_to_dict

    experiment = config.experiment
    arrivals = experiment.effective_profile or {"kind": "offline"}
    profiles, own = parse_profile(arrivals) if isinstance(arrivals, str) else (profiles_from_dict(arrivals), {})
    merged = _merge_workload(config, sampling)
    if "requests" in own and config.find_origin("profile").rank > _get_requests_rank(config):
        merged.pop("requests", None)
    folder = config.path.absolute().parent if config.path else Path.cwd()
    workload = workload_to_dict(workload_from_dict(merged, folder))
    return WorkloadPlan(
        workload, [profile_to_dict(profile) for profile in profiles], {**(experiment.limits or {}), **own}
    )


def resolve_sampling(config: Config, model: str) -> dict[str, Any]:
    """Merge the sampling defaults of all models and of this one, for any engine."""
    own = config.models.get(model)
    entries = overlay(config.sampling_entries, own.sampling_entries if own else {})
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _merge_workload(config: Config, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `workload` over the alias keys, except aliases from a stronger source."""
    defaults, own = _build_default_workload(config, sampling), config.experiment.workload or {}
    rank = config.find_origin("workload").rank
    stronger = {name: value for name, value in defaults.items() if own and _get_alias_rank(config, name) > rank}
    return {**defaults, **own, **stronger}


def _get_alias_rank(config: Config, name: str) -> int:
    """Return the source rank of the alias key for this workload key."""
    return config.find_origin(_WORKLOAD_ALIASES[name]).rank if name in _WORKLOAD_ALIASES else 0


def _get_requests_rank(config: Config) -> int:
    """Return the source rank of the request count."""
    inside = "requests" in (config.experiment.workload or {})
    return max(_get_alias_rank(config, "requests"), config.find_origin("workload").rank if inside else 0)


def _build_default_workload(config: Config, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Build the workload from the alias keys."""
    experiment = config.experiment
    kind = (experiment.workload or {}).get("kind", "synthetic")
    workload: dict[str, Any] = {"kind": kind}
    if experiment.num_input_prompts is not None:
        workload["requests"] = experiment.num_input_prompts
    if kind == "jsonl" and experiment.max_input_tokens is not None:
        workload["max_input_tokens"] = experiment.max_input_tokens
    if kind != "synthetic":
        return workload
    workload["input_tokens"] = experiment.max_input_tokens or DEFAULT_INPUT_TOKENS
    most = sampling.get("max_tokens", DEFAULT_OUTPUT_TOKENS)
    if sampling.get("min_tokens", most) > most:
        raise ConfigError("min_output_tokens exceeds max_output_tokens", "lower min_output_tokens")
    workload["output_tokens"] = most if sampling.get("min_tokens", most) == most else None
    return workload


def build_request_body(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Build the common request body. Greedy by default, so that all engines do the same work."""
    body = {name: list(value) if isinstance(value, tuple) else value for name, value in sampling.items()}
    if not {"temperature", "do_sample", "num_beams"} & set(body):
        body["temperature"] = 0
    return body


def drop_common_lengths(body: Mapping[str, Any], workload: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Drop common output lengths if each request has its own exact length."""
    exact = workload.get("output_tokens") is not None or workload["kind"] == "trace"
    return {name: value for name, value in body.items() if not exact or name not in ("max_tokens", "min_tokens")}, dict(
        workload
    )


def build_serve_config(config: Config, plan: LaunchPlan) -> dict[str, Any]:
    """Build a configuration for `bay serve`: this engine with exactly these settings."""
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
        plan.spec.kind: _nest_settings(load.settings),
        "server": {"limits": {**_MEASURED_SERVER_LIMITS, **limits}},
    }


def _nest_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted names: `{"speculative.method": "ngram"}` becomes `{"speculative": {"method": "ngram"}}`."""
    root: dict[str, Any] = {}
    for name, value in settings.items():
        *parents, last = name.split(".")
        section = root
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = list(value) if isinstance(value, tuple) else value
    return root


def _get_tokenizer(plan: LaunchPlan) -> str | None:
    from enginebay.lab.workload.byte_tokenizer import BYTE_TOKENIZER_NAME

    if plan.spec.byte_tokens:
        return BYTE_TOKENIZER_NAME
    return str(plan.source) if plan.source else None


def _describe_source(plan: LaunchPlan) -> dict[str, Any]:
    """Describe the model's files. Only stored models have a hash: hashing others takes too long."""
    from enginebay.fleet.engine_selection.tuned_engines import fingerprint_model
    from enginebay.models import ModelStore

    models = ModelStore().list_models() if plan.source else ()
    stored = next((model for model in models if model.path == plan.source), None)
    files = {} if stored is None else {"sha256": fingerprint_model(stored)}
    return {"path": plan.launch.load.path, "engine_version": plan.version, **files}
