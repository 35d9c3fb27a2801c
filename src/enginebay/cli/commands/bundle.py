"""`bay bundle`: pack engines, models and bay itself for a host without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json, note, print_table
from enginebay.util.text_format import pluralize

if TYPE_CHECKING:
    from enginebay.bundle.bundle_manifest import BundledEngine, BundleManifest

app = create_app(help="Create, verify and install offline bundles.", no_args_is_help=True)

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory with bundle.json and the parts")]


@app.command()
def create(
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Output directory")],
    engine: Annotated[
        list[str] | None, typer.Option("--engine", "-e", metavar="KIND[==VERSION]", help="Engine to pack; repeatable")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Model to pack, pulled first if needed; repeatable")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", help="Python version of the target host, such as 3.12 (default: the one that runs bay)"
        ),
    ] = None,
    platform: Annotated[str, typer.Option("--platform", help="Operating system of the target host")] = "linux",
    arch: Annotated[str | None, typer.Option("--arch", help="x86_64 or aarch64 (default: this host's)")] = None,
    glibc: Annotated[
        str | None, typer.Option("--glibc", help="Oldest glibc of the target host (default: 2.35)")
    ] = None,
    accelerator: Annotated[str | None, typer.Option("--accelerator", help="cpu or cuda")] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="SIZE", help="Maximum size of a part, such as 60MB")
    ] = None,
    trim: Annotated[
        str | None, typer.Option("--trim", metavar="GPU", help="Drop kernels of other GPU generations, such as sm90")
    ] = None,
    provided: Annotated[
        list[str] | None,
        typer.Option(
            "--provided", metavar="NAME,...", help="Packages that the target host already has, such as torch,triton"
        ),
    ] = None,
    extra: Annotated[
        list[str] | None, typer.Option("--extra", metavar="NAME", help="Enginebay extra to include, such as lab")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing bundle")] = False,
) -> None:
    """Pack engines, models and bay itself for a host without a network."""
    from enginebay.bundle.creation.archive import parse_part_size
    from enginebay.bundle.creation.create_bundle import BundleSpec, check_output_folder
    from enginebay.bundle.creation.create_bundle import create_bundle as make
    from enginebay.bundle.creation.engine_requirements import parse_provided, resolve_engine
    from enginebay.bundle.creation.target_platform import parse_target
    from enginebay.bundle.creation.trimming import find_trim
    from enginebay.cli.output.install_progress import show_progress
    from enginebay.engines import registry
    from enginebay.errors import UsageError

    if accelerator not in (None, "cpu", "cuda"):
        raise UsageError(
            f"unknown accelerator: --accelerator {accelerator}", "use --accelerator cpu or --accelerator cuda"
        )
    if not engine and not model:
        raise UsageError("nothing to pack", "pass --engine, --model or both")
    chosen = accelerator or ("cuda" if trim else None)
    engines = tuple(resolve_engine(name, registry.load_specs(), chosen) for name in engine or ())
    if trim and not engines:
        raise UsageError("--trim needs an engine", "add --engine")
    spec = BundleSpec(
        out=out.expanduser().absolute(),
        target=parse_target(python, platform, arch, glibc),
        engines=engines,
        models=tuple(dict.fromkeys(model or ())),
        extras=tuple(extra or ()),
        provided=parse_provided(provided or ()),
        trim=find_trim(trim, [resolved.spec for resolved in engines], registry.load_specs().values()) if trim else None,
        split=parse_part_size(split) if split else None,
    )
    check_output_folder(spec.out, force)
    with show_progress("bundle") as report:
        manifest = make(spec, report, note)
    _print_created(spec.out, manifest)


def _print_created(out: Path, manifest: BundleManifest) -> None:
    from enginebay.bundle.verification import compute_fingerprint
    from enginebay.util.number_format import format_bytes

    parts = pluralize(len(manifest.parts), "part") if len(manifest.parts) > 1 else "one file"
    packages, models = pluralize(len(manifest.packages), "package"), pluralize(len(manifest.models), "model")
    note(f"{out}: {format_bytes(manifest.size)} in {parts}, {packages}, {models}")
    note(f"fingerprint {compute_fingerprint(manifest)}")
    note(f"on the target host, run: python{manifest.target['python']} {out.name}/install.py")


@app.command()
def verify(folder: FolderArgument, json: JsonOption = False) -> None:
    """Check that all parts are present and intact."""
    from enginebay.bundle.verification import (
        compute_fingerprint,
        find_problems,
        incomplete_bundle_error,
        read_bundle_manifest,
    )

    manifest = read_bundle_manifest(folder)
    problems = find_problems(folder, manifest, note)
    if json:
        emit_json({"ok": not problems, "problems": problems, "fingerprint": compute_fingerprint(manifest)})
    if problems:
        raise incomplete_bundle_error(problems)
    if not json:
        note(f"{pluralize(len(manifest.parts), 'part')} verified; fingerprint {compute_fingerprint(manifest)}")


@app.command()
def install(
    folder: FolderArgument,
    into: Annotated[
        str,
        typer.Option(
            "--into", metavar="own|current", help="Install into the engine's own environment or the one bay runs in"
        ),
    ] = "own",
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="Python to build with; it must have the provided packages"),
    ] = None,
    recreate: Annotated[bool, typer.Option("--recreate", help="Rebuild the engine if it is already installed")] = False,
    models: Annotated[bool, typer.Option("--models/--no-models", help="Add the bundle's models to the store")] = True,
) -> None:
    """Install a bundle's engines and models on this host, without a network."""
    from enginebay.bundle.installation.install_bundle import BundleInstallOptions
    from enginebay.bundle.installation.install_bundle import install_bundle as put
    from enginebay.cli.output.install_progress import show_progress
    from enginebay.errors import UsageError

    if into not in ("own", "current"):
        raise UsageError(f"unknown target: --into {into}", "use --into own or --into current")
    if into == "current" and python is not None:
        raise UsageError(
            "--into current installs into the Python that runs bay, so --python does not apply", "remove one of them"
        )
    options = BundleInstallOptions(folder.expanduser().absolute(), into == "current", python, recreate, models)
    with show_progress("bundle") as report:
        result = put(options, report, note)
    for name in result.already_installed:
        note(f"{name} is already installed")
    for engine in result.engines:
        note(f"installed {engine.kind} {engine.version} in {engine.path or 'this environment'}")
    for name in result.models:
        note(f"added model {name}")


@app.command()
def show(folder: FolderArgument, json: JsonOption = False) -> None:
    """Show what a bundle contains, its target host, and what it leaves out."""
    from enginebay.bundle.verification import compute_fingerprint, read_bundle_manifest
    from enginebay.util.number_format import format_bytes

    manifest = read_bundle_manifest(folder)
    if json:
        emit_json({**manifest.to_json(), "fingerprint": compute_fingerprint(manifest)})
        return
    target = manifest.target
    rows: list[tuple[str, Any]] = [
        ("for", f"{target['platform']} {target['arch']}, Python {target['python']}, glibc {target['glibc'] or 'any'}"),
        ("bay", " ".join([manifest.bay.version, *manifest.bay.extras])),
        *(("engine", f"{engine.kind} {engine.version} for {engine.device}") for engine in manifest.engines),
        *(
            ("model", f"{model.name}, {format_bytes(sum(file.size for file in model.files))}")
            for model in manifest.models
        ),
        ("size", f"{format_bytes(manifest.size)}, parts: {len(manifest.parts)}"),
        ("created", manifest.created),
        ("fingerprint", compute_fingerprint(manifest)),
    ]
    print_table(("field", "value"), rows)
    for engine in manifest.engines:
        _show_excluded(engine, manifest.trim)
    print()
    print_table(
        ("package", "version", "size", "sha256"),
        [
            (
                package.name,
                package.version + (" (trimmed)" if package.trimmed else ""),
                format_bytes(package.file.size),
                package.file.sha256[:16],
            )
            for package in manifest.packages
        ],
    )


def _show_excluded(engine: BundledEngine, trim: str) -> None:
    rows = [(requirement, f"from the host, for {', '.join(by)}") for requirement, by in (engine.expects or {}).items()]
    rows += [(name, f"left out: {reason}") for name, reason in (engine.left_out or {}).items()]
    if rows:
        print()
        print(f"not included ({engine.kind}{f', trimmed for {trim}' if trim else ''}):")
        print_table(("package", "why"), rows)
