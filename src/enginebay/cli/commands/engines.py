"""`bay engines`: which engines there are, building and removing their environments, and why one is chosen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.admin.admin_client import JsonOption, KeyOption, ServerUnreachable, UrlOption, post_admin
from enginebay.cli.options.stack_options import ConfigOption
from enginebay.cli.output.console import emit_json, note, print_table

if TYPE_CHECKING:
    from enginebay.contract import EngineSpec
    from enginebay.environments import Environment

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="List, install, remove and explain engines.",
)
_PIP_NOT_FOUND = "No matching distribution found"  # in pip's words


@app.command("list")
def list_engines(json: JsonOption = False) -> None:
    """Every engine, and where it is installed."""
    from enginebay.engines import registry

    rows = [row for spec in registry.load_specs().values() for row in _build_rows(spec)]
    if json:
        emit_json(rows)
        return
    print_table(
        ["engine", "version", "models", "where"],
        [[r["kind"], r["version"] or "-", ", ".join(r["formats"]), r["where"]] for r in rows],
    )


def _build_rows(spec: EngineSpec) -> list[dict[str, Any]]:
    """One row for each installed version, or one that says how to install it."""
    from enginebay.environments import build_missing_error, find_environment, list_environments
    from enginebay.environments.engine_probe import is_in_current_environment
    from enginebay.errors import EnginebayError

    built = list_environments(spec.kind)
    found: list[Environment] = list(built)
    if is_in_current_environment(spec):
        try:
            here = find_environment(spec.kind)
            found = [here, *built] if here.source == "current" else built
        except EnginebayError:
            pass  # what is wrong with it is `bay doctor`'s to say
    common = {"kind": spec.kind, "formats": list(spec.formats), "summary": spec.summary}
    if not found:
        hint = build_missing_error(spec).hint
        return [{**common, "version": None, "library": None, "python": None, "installed": False, "where": hint}]
    return [
        {
            **common,
            "version": one.version,
            "library": one.probe.version,
            "python": str(one.python),
            "installed": True,
            "where": str(one.path) if one.path else "this environment",
        }
        for one in found
    ]


@app.command()
def install(
    engine: Annotated[
        str,
        typer.Argument(
            metavar="KIND[==VERSION]", help="An engine; or a path or requirement of a package that brings one"
        ),
    ],
    recreate: Annotated[bool, typer.Option("--recreate", help="Build it anew even if it is there")] = False,
    device: Annotated[
        str | None,
        typer.Option("--for", metavar="cpu|cuda", help="Build for this kind of host, not for what is found here"),
    ] = None,
    package: Annotated[bool, typer.Option("--package", help="KIND is a package's name, not an engine's")] = False,
    python: Annotated[
        str | None, typer.Option("--python", help="The Python to build with; default: the one that runs bay")
    ] = None,
) -> None:
    """Build an engine's environment with pip, in place only when all of it is proven."""
    _install(engine, device, recreate, package, python)


def _install(
    engine: str, device: str | None = None, recreate: bool = False, package: bool = False, python: str | None = None
) -> Environment:
    from enginebay.cli.output.install_progress import show_progress
    from enginebay.environments.environment_build import InstallRequest
    from enginebay.environments.environment_build import install_engine as build
    from enginebay.errors import FetchFailed, UsageError
    from enginebay.util.hardware import read_gpus

    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--for {device} is not a kind of host", "use --for cpu or --for cuda")
    chosen = device or ("cuda" if read_gpus()[0] else "cpu")
    try:
        with show_progress(f"installing {engine}") as report:
            made = build(InstallRequest(engine, chosen, recreate, package, python or sys.executable), report)
    except FetchFailed as error:
        if not package and _PIP_NOT_FOUND in error.message:
            error.hint = "; ".join(filter(None, (_suggest_version(engine, chosen), error.hint)))
        raise
    note(f"{made.kind} {made.version} is installed in {made.path}")
    return made


def _suggest_version(engine: str, device: str) -> str:
    """Which version there is for sure, for someone who asked for another one; empty: no recipe names any. Pure."""
    from enginebay.engines import registry
    from enginebay.environments.install_recipe import parse_target, select_recipe

    wanted = parse_target(engine, registry.load_specs())
    if wanted.spec is None or wanted.version is None or not wanted.spec.recipes:
        return ""
    pinned = select_recipe(wanted.spec, device).version
    if wanted.version == pinned:
        return ""
    kind = wanted.spec.kind
    return f"{kind} {wanted.version} cannot be had; `bay engines install {kind}` takes {pinned}, which is known to work"


@app.command()
def upgrade(
    engine: Annotated[str, typer.Argument(metavar="KIND==VERSION", help="An engine, and the version to go over to")],
    url: UrlOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Install a version beside the old one, and move a running server's models over to it without a failed request."""
    made = _install(engine)
    wanted = f"{made.kind}=={made.version}"
    try:
        found = post_admin(url, key, "engines/upgrade", {"engine": wanted}, f"moving models over to {wanted}")
    except ServerUnreachable as missing:
        note(f"{missing.message}; nothing is to be moved over")
        found = {"engine": made.kind, "version": made.version, "models": []}
    else:
        moved = ", ".join(found["models"])
        note(f"moved over: {moved}" if moved else f"no model of the server runs on another version of {made.kind}")
    if json:
        emit_json(found)


@app.command()
def remove(
    engine: Annotated[str, typer.Argument(metavar="KIND[==VERSION]")],
    every: Annotated[bool, typer.Option("--all", help="All versions")] = False,
) -> None:
    """Remove an engine's environment."""
    from enginebay.environments.environment_lookup import find_removable
    from enginebay.environments.environment_store import remove_environment as remove_environment

    for path in find_removable(engine, every):
        remove_environment(path)
        note(f"removed {path.name}")


@app.command()
def matrix(
    json: JsonOption = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The documentation page, as the engines declare it")
    ] = False,
    kind: Annotated[list[str] | None, typer.Option("--engine", help="Only this engine; may be repeated")] = None,
) -> None:
    """What each engine does with each request and load parameter, at its installed version."""
    from enginebay.engines import capability_matrix as pure
    from enginebay.engines import registry
    from enginebay.engines.effective_spec import apply_probe
    from enginebay.environments import get_installed_engines

    if markdown:
        pure.main([])
        return
    probes = get_installed_engines()
    chosen = [registry.get_spec(one) for one in kind] if kind else list(registry.load_specs().values())
    specs = [apply_probe(spec, probes[spec.kind]) for spec in chosen]
    if json:
        emit_json({"versions": {k: p.version if p else None for k, p in probes.items()}, **pure.to_json(specs)})
        return
    heads = [_format_heading(spec.kind, probes[spec.kind]) for spec in specs]
    print_table(["request parameter", *heads], [[row.name, *row.cells] for row in pure.build_request_rows(specs)])
    print()
    print_table(["load parameter", *heads], [[row.name, *row.cells] for row in pure.build_load_rows(specs)])


def _format_heading(kind: str, probe: Any) -> str:
    return f"{kind} {probe.version}" if probe else f"{kind} (not installed)"


@app.command()
def why(
    model: Annotated[str, typer.Argument(help="A model's name")],
    engine: Annotated[str | None, typer.Option("--engine", "-e", help="As if this engine was asked for")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Which engine would run a model here, and why."""
    from enginebay.config.loader import load_config
    from enginebay.fleet.engine_selection.engine_resolver import decide_engine

    found = load_config(config)
    configured = found.models.get(model)
    source = configured.source if configured and configured.source else model
    decision = decide_engine(source, engine or (found.engine_for(model) if configured else None))
    if json:
        emit_json(
            {
                "model": model,
                "engine": decision.kind,
                "installed": decision.installed,
                "dense": decision.dense,
                "reasons": list(decision.reasons),
            }
        )
        return
    print(decision.kind)
    for reason in decision.reasons:
        print(f"  {reason}")
