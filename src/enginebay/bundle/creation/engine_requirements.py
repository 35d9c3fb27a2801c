"""Turns an engine's recipe into requirements for one pip run, and the dependencies to drop. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from enginebay.contract import EngineSpec, Recipe
from enginebay.environments.dist_requirements import canonicalize_name
from enginebay.environments.install_recipe import WORKER_REQUIREMENTS, fill_step, parse_target, select_recipe
from enginebay.errors import UsageError


@dataclass(frozen=True, slots=True)
class EngineRequirements:
    """A requested engine and its requirements, for one kind of device."""

    spec: EngineSpec
    version: str
    device: str
    requirements: tuple[str, ...]
    drop: dict[str, list[str]] = field(default_factory=dict)  # distribution: dependencies not to follow; "*" for all


def resolve_engine(requested: str, specs: dict[str, EngineSpec], accelerator: str | None) -> EngineRequirements:
    """Resolve `KIND[==VERSION]` for a device. Raises `UsageError`."""
    target = parse_target(requested, specs)
    if target.spec is None:
        raise UsageError(f"{requested} cannot be bundled", "use KIND or KIND==VERSION; see: bay engines list")
    device = accelerator or _infer_device(target.spec, target.version)
    recipe = select_recipe(target.spec, device)
    version = target.version or recipe.version
    requirements, drop = flatten_recipe(recipe, version)
    return EngineRequirements(target.spec, version, device, requirements, drop)


def _infer_device(spec: EngineSpec, version: str | None) -> str:
    """Return the only device of the engine, or the only one of this version. Raises `UsageError` if ambiguous."""
    devices = {recipe.when for recipe in spec.recipes}
    if len(devices) > 1:
        devices = {recipe.when for recipe in spec.recipes if version is not None and recipe.version == version}
    if not spec.recipes:
        select_recipe(spec, "cpu")  # raises
    if len(devices) != 1:
        raise UsageError(
            f"{spec.kind} has different builds for CPU and CUDA", "add --accelerator cpu or --accelerator cuda"
        )
    (device,) = devices
    return "cpu" if device == "any" else device


def flatten_recipe(recipe: Recipe, version: str) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Merge a recipe's steps into one. A --no-deps step keeps dependencies that a later `{requires}` step installs."""
    requires_later = any("{requires}" in step for step in recipe.steps)
    requirements: list[str] = []
    drop: dict[str, list[str]] = {}
    for step in recipe.steps:
        arguments = fill_step(step, version)
        no_deps = "--no-deps" in arguments
        for argument in arguments:
            if argument == "--no-deps":
                continue
            if argument.startswith("-"):
                raise UsageError(
                    f"this engine cannot be bundled: its recipe uses pip's {argument}", "bundle another engine"
                )
            requirements.append(argument)
            if no_deps:
                drop[parse_requirement_name(argument)] = list(recipe.drop) if requires_later else ["*"]
    return (*requirements, *WORKER_REQUIREMENTS), drop


def parse_requirement_name(requirement: str) -> str:
    """Return the canonical name in a requirement."""
    for mark in "=<>!~[; @":
        requirement = requirement.partition(mark)[0]
    return canonicalize_name(requirement)


def collect_host_requirements(
    engine: EngineRequirements, provided: Sequence[str], unmet: Sequence[tuple[str, str]]
) -> dict[str, tuple[str, ...]]:
    """Return each requirement on a provided package, and who has it. `unmet` are pairs of who and requirement."""
    names = {parse_requirement_name(text) for text in provided}
    users: dict[str, set[str]] = {text: {"as asked"} for text in provided if text != parse_requirement_name(text)}
    for text in engine.requirements:
        if parse_requirement_name(text) in names:
            users.setdefault(text, set()).add(engine.spec.kind)
    for user, text in unmet:
        if parse_requirement_name(text) in names:
            users.setdefault(text, set()).add(user)
    return {text: tuple(sorted(users[text])) for text in sorted(users)}


def parse_provided(values: Iterable[str]) -> tuple[str, ...]:
    """Parse values such as `torch,triton` or `torch==2.11.0` into sorted requirements."""
    texts = [text.strip() for value in values for text in value.split(",") if text.strip()]
    return tuple(
        sorted(
            {
                parse_requirement_name(text)
                if text.replace("_", "-").replace(".", "-").lower() == parse_requirement_name(text)
                else text
                for text in texts
            }
        )
    )
