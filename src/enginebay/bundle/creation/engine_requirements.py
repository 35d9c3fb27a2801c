"""From an engine's recipe to one question for pip: which requirements, and which dependencies are not followed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from enginebay.contract import EngineSpec, Recipe
from enginebay.environments.dist_requirements import canonicalize_name
from enginebay.environments.install_recipe import WORKER_REQUIREMENTS, fill_step, parse_target, select_recipe
from enginebay.errors import UsageError


@dataclass(frozen=True, slots=True)
class EngineRequirements:
    """An engine as asked for, for one kind of host."""

    spec: EngineSpec
    version: str
    device: str
    requirements: tuple[str, ...]
    drop: dict[str, list[str]] = field(default_factory=dict)  # distribution: what it does not get; "*" for all


def resolve_engine(asked: str, specs: dict[str, EngineSpec], accelerator: str | None) -> EngineRequirements:
    """What `KIND[==VERSION]` means on such a host. Raises `UsageError`."""
    found = parse_target(asked, specs)
    if found.spec is None:
        raise UsageError(
            f"{asked} is not an engine that can be bundled", "give KIND or KIND==VERSION; see: bay engines list"
        )
    device = accelerator or _infer_device(found.spec, found.version)
    chosen = select_recipe(found.spec, device)
    version = found.version or chosen.version
    requirements, drop = flatten_recipe(chosen, version)
    return EngineRequirements(found.spec, version, device, requirements, drop)


def _infer_device(spec: EngineSpec, version: str | None) -> str:
    """The kind of host that needs no saying: the only one, or the only one of this version."""
    devices = {one.when for one in spec.recipes}
    if len(devices) > 1:
        devices = {one.when for one in spec.recipes if version is not None and one.version == version}
    if not spec.recipes:
        select_recipe(spec, "cpu")  # says that there is none
    if len(devices) != 1:
        raise UsageError(
            f"{spec.kind} is built differently for a CPU and for CUDA", "add --accelerator cpu or --accelerator cuda"
        )
    (device,) = devices
    return "cpu" if device == "any" else device


def flatten_recipe(chosen: Recipe, version: str) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """A recipe's steps as one. A step without dependencies keeps those that a later step asks for by `{requires}`."""
    asks_later = any("{requires}" in step for step in chosen.steps)
    requirements: list[str] = []
    drop: dict[str, list[str]] = {}
    for step in chosen.steps:
        arguments = fill_step(step, version)
        alone = "--no-deps" in arguments
        for one in arguments:
            if one == "--no-deps":
                continue
            if one.startswith("-"):
                raise UsageError(f"the recipe uses pip's {one}, which a bundle cannot", "this engine cannot be bundled")
            requirements.append(one)
            if alone:
                drop[parse_requirement_name(one)] = list(chosen.drop) if asks_later else ["*"]
    return (*requirements, *WORKER_REQUIREMENTS), drop


def parse_requirement_name(requirement: str) -> str:
    """The name in a requirement."""
    for mark in "=<>!~[; @":
        requirement = requirement.partition(mark)[0]
    return canonicalize_name(requirement)


def collect_host_requirements(
    one: EngineRequirements, provided: Sequence[str], wishes: Sequence[tuple[str, str]]
) -> dict[str, tuple[str, ...]]:
    """What the host must have: each requirement on a provided package, and who has it (`wishes`: who, requirement)."""
    names = {parse_requirement_name(text) for text in provided}
    found: dict[str, set[str]] = {text: {"as asked"} for text in provided if text != parse_requirement_name(text)}
    for text in one.requirements:
        if parse_requirement_name(text) in names:
            found.setdefault(text, set()).add(one.spec.kind)
    for who, text in wishes:
        if parse_requirement_name(text) in names:
            found.setdefault(text, set()).add(who)
    return {text: tuple(sorted(found[text])) for text in sorted(found)}


def parse_provided(given: Iterable[str]) -> tuple[str, ...]:
    """`torch,triton` and `torch==2.11.0`, as they may be written, to a sorted list of requirements."""
    texts = [text.strip() for one in given for text in one.split(",") if text.strip()]
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
