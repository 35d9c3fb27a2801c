"""`bay engines`: list, install, upgrade and remove engines, and explain which one `auto` picks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.admin.admin_client import (
    KeyFileOption,
    KeyOption,
    ServerConfigOption,
    ServerUnreachable,
    UrlOption,
    post_admin,
)
from enginebay.cli.options.command_app import ConfigOption, JsonOption, create_app
from enginebay.cli.output.console import emit_json, note, print_table
from enginebay.cli.output.table_layout import Column

if TYPE_CHECKING:
    from enginebay.contract import EngineSpec
    from enginebay.environments import Environment

app = create_app(help="List, show, install, upgrade, remove and explain engines.", no_args_is_help=True)
_NOT_APPLIED = {None: "", False: "does not apply: "}
_PIP_NOT_FOUND = "No matching distribution found"  # in pip's output


@app.command("list")
def list_engines(json: JsonOption = False) -> None:
    """List every engine and where it is installed."""
    from enginebay.engines import registry

    rows = [row for spec in registry.load_specs().values() for row in _build_rows(spec)]
    if json:
        emit_json(rows)
        return
    print_table(
        ("engine", "version", "models", "where"),
        [[r["kind"], r["version"] or "-", ", ".join(r["formats"]), r["where"]] for r in rows],
    )


def _build_rows(spec: EngineSpec) -> list[dict[str, Any]]:
    """Build one row per installed version, or one with the install hint."""
    from enginebay.environments import build_missing_error, find_environment, list_environments
    from enginebay.environments.engine_probe import is_in_current_environment
    from enginebay.errors import EnginebayError

    built = list_environments(spec.kind)
    environments: list[Environment] = list(built)
    if is_in_current_environment(spec):
        try:
            current = find_environment(spec.kind)
            environments = [current, *built] if current.source == "current" else built
        except EnginebayError:
            pass  # `bay doctor` reports what is wrong with it
    common = {"kind": spec.kind, "formats": list(spec.formats), "summary": spec.summary}
    if not environments:
        hint = build_missing_error(spec).hint
        return [{**common, "version": None, "library": None, "python": None, "installed": False, "where": hint}]
    return [
        {
            **common,
            "version": environment.version,
            "library": environment.probe.version,
            "python": str(environment.python),
            "installed": True,
            "where": str(environment.path) if environment.path else "this environment",
        }
        for environment in environments
    ]


@app.command()
def install(
    engine: Annotated[
        str,
        typer.Argument(
            metavar="KIND[==VERSION]", help="Engine, or the path or requirement of a package that provides one"
        ),
    ],
    recreate: Annotated[bool, typer.Option("--recreate", help="Rebuild it if it is already installed")] = False,
    device: Annotated[
        str | None, typer.Option("--for", metavar="cpu|cuda", help="Build for this kind of host (default: detected)")
    ] = None,
    package: Annotated[bool, typer.Option("--package", help="KIND is a package name, not an engine")] = False,
    python: Annotated[
        str | None, typer.Option("--python", help="Python to build with (default: the one that runs bay)")
    ] = None,
) -> None:
    """Build an engine's environment with pip. It replaces an existing one only after it passes its checks."""
    _install(engine, device, recreate, package, python)


def _install(
    engine: str, device: str | None = None, recreate: bool = False, package: bool = False, python: str | None = None
) -> Environment:
    from enginebay.cli.output.install_progress import show_progress
    from enginebay.environments.environment_build import InstallRequest
    from enginebay.environments.environment_build import install_engine as build
    from enginebay.errors import FetchFailed, UsageError
    from enginebay.util.hardware import find_gpus

    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"unknown kind of host: --for {device}", "use --for cpu or --for cuda")
    chosen = device or ("cuda" if find_gpus().gpus else "cpu")
    try:
        with show_progress(f"installing {engine}") as report:
            environment = build(InstallRequest(engine, chosen, recreate, package, python or sys.executable), report)
    except FetchFailed as error:
        if not package and _PIP_NOT_FOUND in error.message:
            error.hint = "; ".join(filter(None, (_suggest_version(engine, chosen), error.hint)))
        raise
    note(f"installed {environment.kind} {environment.version} in {environment.path}")
    return environment


def _suggest_version(engine: str, device: str) -> str:
    """Suggest the version of the recipe when another one was requested; empty: no recipe pins one. Pure."""
    from enginebay.engines import registry
    from enginebay.environments.install_recipe import parse_target, select_recipe

    target = parse_target(engine, registry.load_specs())
    if target.spec is None or target.version is None or not target.spec.recipes:
        return ""
    pinned = select_recipe(target.spec, device).version
    if target.version == pinned:
        return ""
    kind = target.spec.kind
    return f"{kind} {target.version} is not available; `bay engines install {kind}` installs {pinned}, which is tested"


@app.command()
def upgrade(
    engine: Annotated[str, typer.Argument(metavar="KIND==VERSION", help="Engine and version to upgrade to")],
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Install a version beside the old one, and move a running server's models to it without failing a request."""
    installed = _install(engine)
    target = f"{installed.kind}=={installed.version}"
    try:
        result = post_admin(url, key, "engines/upgrade", {"engine": target}, f"moving models to {target}")
    except ServerUnreachable as missing:
        note(f"{missing.message}; no models to move")
        result = {"engine": installed.kind, "version": installed.version, "models": []}
    else:
        moved = ", ".join(result["models"])
        note(f"moved: {moved}" if moved else f"no model on the server runs on another version of {installed.kind}")
    if json:
        emit_json(result)


@app.command()
def remove(
    engine: Annotated[str, typer.Argument(metavar="KIND[==VERSION]")],
    every: Annotated[bool, typer.Option("--all", help="Remove all versions")] = False,
) -> None:
    """Remove an engine's environment."""
    from enginebay.environments.environment_lookup import find_removable
    from enginebay.environments.environment_store import remove_environment

    for path in find_removable(engine, every):
        remove_environment(path)
        note(f"removed {path.name}")


@app.command()
def show(kind: Annotated[str, typer.Argument(help="Engine")], json: JsonOption = False) -> None:
    """Show one engine: where it is installed, and which of Enginebay's patches to its library apply to the installed version."""
    from dataclasses import asdict

    from enginebay.engines import registry
    from enginebay.environments import get_installed_engines

    spec = registry.get_spec(kind)
    rows, probe = _build_rows(spec), get_installed_engines()[spec.kind]
    reasons = probe.patches if probe else {}
    patches = [{**asdict(patch), "applies": None, "reason": "not installed"} for patch in spec.patches]
    for patch in patches if probe else ():
        reason = reasons.get(patch["name"], "not probed")
        patch.update(applies=not reason, reason=reason)
    if json:
        emit_json({"kind": spec.kind, "summary": spec.summary, "installed": rows, "patches": patches})
        return
    print_table(("engine", "version", "where"), [[row["kind"], row["version"] or "-", row["where"]] for row in rows])
    if patches:
        print()
        print_table(
            ("patch", "state", "tested with", "setting", Column("what it does", detail=True)),
            [
                [
                    patch["name"],
                    "applies" if patch["applies"] else f"{_NOT_APPLIED[patch['applies']]}{patch['reason']}",
                    " to ".join(dict.fromkeys(patch["versions"])),
                    patch["setting"],
                    patch["summary"],
                ]
                for patch in patches
            ],
        )


@app.command()
def matrix(
    json: JsonOption = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the documentation page, generated from the engines' declarations")
    ] = False,
    kind: Annotated[list[str] | None, typer.Option("--engine", help="Only this engine; repeatable")] = None,
) -> None:
    """Show which request and load parameters each engine supports, at its installed version."""
    from enginebay.engines import capability_matrix, registry
    from enginebay.engines.effective_spec import apply_probe
    from enginebay.environments import get_installed_engines

    if markdown:
        capability_matrix.main([])
        return
    probes = get_installed_engines()
    chosen = [registry.get_spec(name) for name in kind] if kind else list(registry.load_specs().values())
    specs = [apply_probe(spec, probes[spec.kind]) for spec in chosen]
    if json:
        emit_json(
            {"versions": {k: p.version if p else None for k, p in probes.items()}, **capability_matrix.to_json(specs)}
        )
        return
    heads = [
        Column(f"{spec.kind} {probe.version if (probe := probes[spec.kind]) else '(not installed)'}", rank=1)
        for spec in specs
    ]
    requests, loads = capability_matrix.build_request_rows(specs), capability_matrix.build_load_rows(specs)
    print_table(("request parameter", *heads), [(row.name, *row.cells) for row in requests])
    print()
    print_table(("load parameter", *heads), [(row.name, *row.cells) for row in loads])


@app.command()
def why(
    model: Annotated[str, typer.Argument(help="Model name")],
    engine: Annotated[str | None, typer.Option("--engine", "-e", help="Explain for this engine")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show which engine would run a model on this host, and why."""
    from enginebay.config.loader import load_config
    from enginebay.fleet.engine_selection.engine_resolver import decide_engine

    loaded = load_config(config)
    configured = loaded.models.get(model)
    source = configured.source if configured and configured.source else model
    decision = decide_engine(source, engine or (loaded.engine_for(model) if configured else None))
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
