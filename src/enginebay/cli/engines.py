"""`bay engines`: which engines there are, building and removing their environments, and why one is chosen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.admin_client import Json, Key, NoServer, Url, order
from enginebay.cli.output import emit_json, note, table
from enginebay.cli.stack_options import ConfigFile

if TYPE_CHECKING:
    from enginebay.contract import EngineSpec
    from enginebay.fleet.environments import Environment

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="List, install, remove and explain engines.",
)
_NO_SUCH_VERSION = "No matching distribution found"  # in pip's words


@app.command("list")
def list_engines(json: Json = False) -> None:
    """Every engine, and where it is installed."""
    from enginebay.engines import registry

    rows = [row for spec in registry.specs().values() for row in _rows(spec)]
    if json:
        emit_json(rows)
        return
    table(
        ["engine", "version", "models", "where"],
        [[r["kind"], r["version"] or "-", ", ".join(r["formats"]), r["where"]] for r in rows],
    )


def _rows(spec: EngineSpec) -> list[dict[str, Any]]:
    """One row for each installed version, or one that says how to install it."""
    from enginebay.errors import EnginebayError
    from enginebay.fleet.environments import environments, find, missing
    from enginebay.fleet.environments.probe import in_current

    built = environments(spec.kind)
    found: list[Environment] = list(built)
    if in_current(spec):
        try:
            here = find(spec.kind)
            found = [here, *built] if here.source == "current" else built
        except EnginebayError:
            pass  # what is wrong with it is `bay doctor`'s to say
    common = {"kind": spec.kind, "formats": list(spec.formats), "summary": spec.summary}
    if not found:
        hint = missing(spec).hint
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
    from enginebay.cli.install_progress import progress
    from enginebay.errors import FetchFailed, UsageError
    from enginebay.fleet.environments.build import Order
    from enginebay.fleet.environments.build import install as build
    from enginebay.fleet.host import read_gpus

    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--for {device} is not a kind of host", "use --for cpu or --for cuda")
    chosen = device or ("cuda" if read_gpus()[0] else "cpu")
    try:
        with progress(f"installing {engine}") as report:
            made = build(Order(engine, chosen, recreate, package, python or sys.executable), report)
    except FetchFailed as error:
        if not package and _NO_SUCH_VERSION in error.message:
            error.hint = "; ".join(filter(None, (_known_version(engine, chosen), error.hint)))
        raise
    note(f"{made.kind} {made.version} is installed in {made.path}")
    return made


def _known_version(engine: str, device: str) -> str:
    """Which version there is for sure, for someone who asked for another one; empty: no recipe names any. Pure."""
    from enginebay.engines import registry
    from enginebay.fleet.environments.recipe import recipe, target

    wanted = target(engine, registry.specs())
    if wanted.spec is None or wanted.version is None or not wanted.spec.recipes:
        return ""
    pinned = recipe(wanted.spec, device).version
    if wanted.version == pinned:
        return ""
    kind = wanted.spec.kind
    return f"{kind} {wanted.version} cannot be had; `bay engines install {kind}` takes {pinned}, which is known to work"


@app.command()
def upgrade(
    engine: Annotated[str, typer.Argument(metavar="KIND==VERSION", help="An engine, and the version to go over to")],
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Install a version beside the old one, and move a running server's models over to it without a failed request."""
    made = _install(engine)
    wanted = f"{made.kind}=={made.version}"
    try:
        found = order(url, key, "engines/upgrade", {"engine": wanted}, f"moving models over to {wanted}")
    except NoServer as missing:
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
    from enginebay.fleet.environments.lookup import removable
    from enginebay.fleet.environments.store import remove as remove_environment

    for path in removable(engine, every):
        remove_environment(path)
        note(f"removed {path.name}")


@app.command()
def matrix(
    json: Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The documentation page, as the engines declare it")
    ] = False,
    kind: Annotated[list[str] | None, typer.Option("--engine", help="Only this engine; may be repeated")] = None,
) -> None:
    """What each engine does with each request and load parameter, at its installed version."""
    from enginebay.engines import registry
    from enginebay.engines.effective import effective
    from enginebay.fleet import matrix as pure
    from enginebay.fleet.environments import installed

    if markdown:
        pure.main([])
        return
    probes = installed()
    chosen = [registry.spec(one) for one in kind] if kind else list(registry.specs().values())
    specs = [effective(spec, probes[spec.kind]) for spec in chosen]
    if json:
        emit_json({"versions": {k: p.version if p else None for k, p in probes.items()}, **pure.as_json(specs)})
        return
    heads = [_head(spec.kind, probes[spec.kind]) for spec in specs]
    table(["request parameter", *heads], [[row.name, *row.cells] for row in pure.request_rows(specs)])
    print()
    table(["load parameter", *heads], [[row.name, *row.cells] for row in pure.load_rows(specs)])


def _head(kind: str, probe: Any) -> str:
    return f"{kind} {probe.version}" if probe else f"{kind} (not installed)"


@app.command()
def why(
    model: Annotated[str, typer.Argument(help="A model's name")],
    engine: Annotated[str | None, typer.Option("--engine", "-e", help="As if this engine was asked for")] = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Which engine would run a model here, and why."""
    from enginebay.config.load import load_config
    from enginebay.fleet.decide import decide

    found = load_config(config)
    configured = found.models.get(model)
    source = configured.source if configured and configured.source else model
    decision = decide(source, engine or (found.engine_for(model) if configured else None))
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
