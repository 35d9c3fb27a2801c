"""`bay bundle`: take an engine, models and bay itself to a host without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.output import emit_json, note, table
from enginebay.wording import counted

if TYPE_CHECKING:
    from enginebay.bundle.manifest import Engine, Manifest

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Make, verify and install offline bundles.",
)

Json = Annotated[bool, typer.Option("--json", help="For programs")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder with bundle.json and the parts")]


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
    from enginebay.bundle.amounts import size_of
    from enginebay.bundle.create import Order, check_place
    from enginebay.bundle.create import create as make
    from enginebay.bundle.target import target
    from enginebay.bundle.trimming import find_trim
    from enginebay.bundle.wanted import provided_names, wanted
    from enginebay.cli.install_progress import progress
    from enginebay.engines import registry
    from enginebay.errors import UsageError

    if accelerator not in (None, "cpu", "cuda"):
        raise UsageError(f"--accelerator {accelerator} is not known", "use --accelerator cpu or --accelerator cuda")
    if not engine and not model:
        raise UsageError("there is nothing to pack", "give --engine, --model or both")
    chosen = accelerator or ("cuda" if trim else None)
    engines = tuple(wanted(one, registry.specs(), chosen) for one in engine or ())
    if trim and not engines:
        raise UsageError("--trim is for an engine, and none is given", "add --engine")
    order = Order(
        out=out.expanduser().absolute(),
        target=target(python, platform, arch, glibc),
        engines=engines,
        models=tuple(dict.fromkeys(model or ())),
        extras=tuple(extra or ()),
        provided=provided_names(provided or ()),
        trim=find_trim(trim, [one.spec.kind for one in engines]) if trim else None,
        split=size_of(split) if split else None,
    )
    check_place(order.out, force)
    with progress("bundle") as report:
        made = make(order, report, note)
    _describe_made(order.out, made)


def _describe_made(out: Path, made: Manifest) -> None:
    from enginebay.bundle.checking import fingerprint
    from enginebay.fleet.models.progress import amount

    parts = counted(len(made.parts), "part") if len(made.parts) > 1 else "one file"
    packages, models = counted(len(made.packages), "package"), counted(len(made.models), "model")
    note(f"{out}: {amount(made.size)} in {parts}, {packages}, {models}")
    note(f"fingerprint {fingerprint(made)}")
    note(f"on the other host: python{made.target['python']} {out.name}/install.py")


@app.command()
def verify(folder: Folder, json: Json = False) -> None:
    """Check that all parts are there and as they were made."""
    from enginebay.bundle.checking import fingerprint, not_usable, problems, read

    manifest = read(folder)
    found = problems(folder, manifest, note)
    if json:
        emit_json({"ok": not found, "problems": found, "fingerprint": fingerprint(manifest)})
    if found:
        raise not_usable(found)
    if not json:
        parts = "all {} parts are as they" if len(manifest.parts) > 1 else "the one part is as it"
        note(f"{parts.format(len(manifest.parts))} should be; fingerprint {fingerprint(manifest)}")


@app.command()
def install(
    folder: Folder,
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
    from enginebay.bundle.installing import Wish
    from enginebay.bundle.installing import install as put
    from enginebay.cli.install_progress import progress
    from enginebay.errors import UsageError

    if into not in ("own", "current"):
        raise UsageError(f"--into {into} is not known", "use --into own or --into current")
    if into == "current" and python is not None:
        raise UsageError(
            "--into current is for the Python that runs bay, and --python names one", "leave one of them out"
        )
    wish = Wish(folder.expanduser().absolute(), into == "current", python, recreate, models)
    with progress("bundle") as report:
        done = put(wish, report, note)
    for one in done.there:
        note(f"{one} is here already")
    for made in done.engines:
        note(f"{made.kind} {made.version} is installed in {made.path or 'this environment'}")
    for name in done.models:
        note(f"the model {name} is here")


@app.command()
def show(folder: Folder, json: Json = False) -> None:
    """What is in a bundle, for which host, and what was left out."""
    from enginebay.bundle.checking import fingerprint, read
    from enginebay.fleet.models.progress import amount

    manifest = read(folder)
    if json:
        emit_json({**manifest.to_json(), "fingerprint": fingerprint(manifest)})
        return
    target = manifest.target
    rows: list[tuple[str, Any]] = [
        ("for", f"{target['platform']} {target['arch']}, Python {target['python']}, glibc {target['glibc'] or 'any'}"),
        ("bay", " ".join([manifest.bay.version, *manifest.bay.extras])),
        *(("engine", f"{one.kind} {one.version} for {one.device}") for one in manifest.engines),
        *(("model", f"{one.name}, {amount(sum(file.size for file in one.files))}") for one in manifest.models),
        ("size", f"{amount(manifest.size)}, parts: {len(manifest.parts)}"),
        ("made", manifest.created),
        ("fingerprint", fingerprint(manifest)),
    ]
    table(("", ""), rows)
    for one in manifest.engines:
        _show_absent(one, manifest.trim)
    print()
    table(
        ("PACKAGE", "VERSION", "SIZE", "SHA256"),
        [
            (one.name, one.version + (" (trimmed)" if one.trimmed else ""), amount(one.file.size), one.file.sha256[:16])
            for one in manifest.packages
        ],
    )


def _show_absent(engine: Engine, trim: str) -> None:
    rows = [(requirement, f"of the host, for {', '.join(by)}") for requirement, by in (engine.expects or {}).items()]
    rows += [(name, f"left out: {why}") for name, why in (engine.left_out or {}).items()]
    if rows:
        print()
        table((f"NOT IN IT ({engine.kind}{f', trimmed for {trim}' if trim else ''})", ""), rows)
