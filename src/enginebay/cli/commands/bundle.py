"""`bay bundle`: take an engine, models and bay itself to a host without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.output.console import emit_json, note, print_table
from enginebay.util.text_format import pluralize

if TYPE_CHECKING:
    from enginebay.bundle.bundle_manifest import BundledEngine, BundleManifest

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Make, verify and install offline bundles.",
)

JsonOption = Annotated[bool, typer.Option("--json", help="For programs")]
FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder with bundle.json and the parts")]


@app.command()
def create(
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Where the bundle goes")],
    engine: Annotated[
        list[str] | None, typer.Option("--engine", "-e", metavar="KIND[==VERSION]", help="An engine; may be repeated")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A model, pulled first if it is not here; may be repeated")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="The host's Python, as in 3.12; default: this one's")
    ] = None,
    platform: Annotated[str, typer.Option("--platform", help="The host's system")] = "linux",
    arch: Annotated[str | None, typer.Option("--arch", help="x86_64 or aarch64; default: this host's")] = None,
    glibc: Annotated[str | None, typer.Option("--glibc", help="The host's C library at least; default: 2.35")] = None,
    accelerator: Annotated[str | None, typer.Option("--accelerator", help="cpu or cuda")] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="SIZE", help="The largest a part may be: 60MB")
    ] = None,
    trim: Annotated[
        str | None, typer.Option("--trim", metavar="GPU", help="Leave out kernels of other GPU generations: sm90")
    ] = None,
    provided: Annotated[
        list[str] | None,
        typer.Option("--provided", metavar="NAME,...", help="Packages that the host's Python has: torch,triton"),
    ] = None,
    extra: Annotated[
        list[str] | None, typer.Option("--extra", metavar="NAME", help="An extra of enginebay, such as lab")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a bundle that is there")] = False,
) -> None:
    """Pack an engine, models and bay itself for a host that reaches no network."""
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
        raise UsageError(f"--accelerator {accelerator} is not known", "use --accelerator cpu or --accelerator cuda")
    if not engine and not model:
        raise UsageError("there is nothing to pack", "give --engine, --model or both")
    chosen = accelerator or ("cuda" if trim else None)
    engines = tuple(resolve_engine(one, registry.load_specs(), chosen) for one in engine or ())
    if trim and not engines:
        raise UsageError("--trim is for an engine, and none is given", "add --engine")
    order = BundleSpec(
        out=out.expanduser().absolute(),
        target=parse_target(python, platform, arch, glibc),
        engines=engines,
        models=tuple(dict.fromkeys(model or ())),
        extras=tuple(extra or ()),
        provided=parse_provided(provided or ()),
        trim=find_trim(trim, [one.spec.kind for one in engines]) if trim else None,
        split=parse_part_size(split) if split else None,
    )
    check_output_folder(order.out, force)
    with show_progress("bundle") as report:
        made = make(order, report, note)
    _print_created(order.out, made)


def _print_created(out: Path, made: BundleManifest) -> None:
    from enginebay.bundle.verification import compute_fingerprint
    from enginebay.util.progress import format_bytes

    parts = pluralize(len(made.parts), "part") if len(made.parts) > 1 else "one file"
    packages, models = pluralize(len(made.packages), "package"), pluralize(len(made.models), "model")
    note(f"{out}: {format_bytes(made.size)} in {parts}, {packages}, {models}")
    note(f"fingerprint {compute_fingerprint(made)}")
    note(f"on the other host: python{made.target['python']} {out.name}/install.py")


@app.command()
def verify(folder: FolderArgument, json: JsonOption = False) -> None:
    """Check that all parts are there and as they were made."""
    from enginebay.bundle.verification import (
        compute_fingerprint,
        find_problems,
        incomplete_bundle_error,
        read_bundle_manifest,
    )

    manifest = read_bundle_manifest(folder)
    found = find_problems(folder, manifest, note)
    if json:
        emit_json({"ok": not found, "problems": found, "fingerprint": compute_fingerprint(manifest)})
    if found:
        raise incomplete_bundle_error(found)
    if not json:
        parts = "all {} parts are as they" if len(manifest.parts) > 1 else "the one part is as it"
        note(f"{parts.format(len(manifest.parts))} should be; fingerprint {compute_fingerprint(manifest)}")


@app.command()
def install(
    folder: FolderArgument,
    into: Annotated[
        str,
        typer.Option(
            "--into", metavar="own|current", help="An environment of the engine's own, or the one bay runs in"
        ),
    ] = "own",
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="The Python to build with, which has what is provided"),
    ] = None,
    recreate: Annotated[bool, typer.Option("--recreate", help="Build the engine anew even if it is there")] = False,
    models: Annotated[bool, typer.Option("--models/--no-models", help="Put the bundle's models into the store")] = True,
) -> None:
    """Install a bundle's engines and models here, without a network."""
    from enginebay.bundle.installation.install_bundle import BundleInstallOptions
    from enginebay.bundle.installation.install_bundle import install_bundle as put
    from enginebay.cli.output.install_progress import show_progress
    from enginebay.errors import UsageError

    if into not in ("own", "current"):
        raise UsageError(f"--into {into} is not known", "use --into own or --into current")
    if into == "current" and python is not None:
        raise UsageError(
            "--into current is for the Python that runs bay, and --python names one", "leave one of them out"
        )
    wish = BundleInstallOptions(folder.expanduser().absolute(), into == "current", python, recreate, models)
    with show_progress("bundle") as report:
        done = put(wish, report, note)
    for one in done.already_installed:
        note(f"{one} is here already")
    for made in done.engines:
        note(f"{made.kind} {made.version} is installed in {made.path or 'this environment'}")
    for name in done.models:
        note(f"the model {name} is here")


@app.command()
def show(folder: FolderArgument, json: JsonOption = False) -> None:
    """What is in a bundle, for which host, and what was left out."""
    from enginebay.bundle.verification import compute_fingerprint, read_bundle_manifest
    from enginebay.util.progress import format_bytes

    manifest = read_bundle_manifest(folder)
    if json:
        emit_json({**manifest.to_json(), "fingerprint": compute_fingerprint(manifest)})
        return
    target = manifest.target
    rows: list[tuple[str, Any]] = [
        ("for", f"{target['platform']} {target['arch']}, Python {target['python']}, glibc {target['glibc'] or 'any'}"),
        ("bay", " ".join([manifest.bay.version, *manifest.bay.extras])),
        *(("engine", f"{one.kind} {one.version} for {one.device}") for one in manifest.engines),
        *(("model", f"{one.name}, {format_bytes(sum(file.size for file in one.files))}") for one in manifest.models),
        ("size", f"{format_bytes(manifest.size)}, parts: {len(manifest.parts)}"),
        ("made", manifest.created),
        ("fingerprint", compute_fingerprint(manifest)),
    ]
    print_table(("", ""), rows)
    for one in manifest.engines:
        _show_excluded(one, manifest.trim)
    print()
    print_table(
        ("PACKAGE", "VERSION", "SIZE", "SHA256"),
        [
            (
                one.name,
                one.version + (" (trimmed)" if one.trimmed else ""),
                format_bytes(one.file.size),
                one.file.sha256[:16],
            )
            for one in manifest.packages
        ],
    )


def _show_excluded(engine: BundledEngine, trim: str) -> None:
    rows = [(requirement, f"of the host, for {', '.join(by)}") for requirement, by in (engine.expects or {}).items()]
    rows += [(name, f"left out: {why}") for name, why in (engine.left_out or {}).items()]
    if rows:
        print()
        print_table((f"NOT IN IT ({engine.kind}{f', trimmed for {trim}' if trim else ''})", ""), rows)
