"""`bay launch AGENT`: start a coding agent that uses a running server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from enginebay.cli.admin.admin_client import (
    KeyFileOption,
    ServerConfigOption,
    ServerUnreachable,
    UrlOption,
    fetch,
    to_response_error,
)
from enginebay.cli.admin.server_address import ServerAddress, resolve_server
from enginebay.cli.launch.agent_settings import AGENTS, Agent, AgentSettings, ModelTarget
from enginebay.cli.launch.foreground import run_in_foreground
from enginebay.cli.options.command_app import create_app
from enginebay.cli.options.key_options import resolve_key
from enginebay.cli.output.console import note
from enginebay.errors import EnginebayError, UnknownModel, UsageError
from enginebay.util.text_format import find_nearest

app = create_app(help="Start a coding agent that uses a running server.")
_NO_KEY = "none"  # agents require one
_PRINTED_KEY = "YOUR_API_KEY"

LaunchKeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="API key for the agent, if the server requires one; prefer --key-file or the environment variable",
        envvar="ENGINEBAY_API_KEY",
        show_envvar=True,
        callback=resolve_key,
    ),
]


@app.command()
def launch(
    agent: Annotated[str, typer.Argument(metavar="|".join(AGENTS), show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]...", help="Arguments for the agent, after --")
    ] = None,
    *,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model (default: the server's only one)")] = None,
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: LaunchKeyOption = None,
    key_file: KeyFileOption = None,
    print_: Annotated[bool, typer.Option("--print", help="Print the settings instead of starting the agent")] = False,
) -> int:
    """Start a coding agent that uses a running server. Your own configuration of the agent is left unchanged.

    The settings last as long as the agent runs. `bay launch codex -- exec "explain this folder"` passes arguments on.
    """
    chosen = _find_agent(agent)
    server = resolve_server(url)
    served = find_model(server, key, model)
    _warn_of_small_context(chosen, served)
    if print_:
        _print_settings(chosen, replace(served, key=_PRINTED_KEY if key else _NO_KEY))
        return 0
    program = shutil.which(chosen.command)
    if program is None:
        raise EnginebayError(
            f"{chosen.title} is not installed: there is no `{chosen.command}` on the PATH",
            f"install it: npm install -g {chosen.package}",
        )
    with tempfile.TemporaryDirectory(prefix="bay-launch-") as directory:  # only its owner may enter it
        settings = chosen.configure(served, Path(directory))
        for name, text in settings.files.items():
            (Path(directory) / name).write_text(text)
        env = build_environment(settings, os.environ, server)
        return run_in_foreground([program, *settings.arguments, *(arguments or ())], env)


def build_environment(settings: AgentSettings, environ: Mapping[str, str], server: ServerAddress) -> dict[str, str]:
    """Return the variables of this process with those of the settings. Pure.

    An agent runs commands, so it gets no admin key. It reaches a local server without a proxy, as `bay` itself does.
    """
    removed = {*settings.removed_env, "ENGINEBAY_ADMIN_KEY"}
    env = {name: value for name, value in environ.items() if name not in removed}
    if server.is_local and any(name.lower().endswith("_proxy") for name in env):
        direct = env.get("no_proxy") or env.get("NO_PROXY")
        hosts = ",".join(filter(None, (direct, urlsplit(server.url).hostname)))
        env |= {"no_proxy": hosts, "NO_PROXY": hosts}
    return {**env, **settings.env}


def _find_agent(name: str) -> Agent:
    agent = AGENTS.get(name.lower())
    if agent is None:
        near = find_nearest(name, AGENTS)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(AGENTS)}"
        raise UsageError(f"unknown agent {name!r}", hint, param="agent")
    return agent


def find_model(server: ServerAddress, key: str | None, name: str | None) -> ModelTarget:
    """Ask the server for the model; None: its only one. Raises if it has no such model, or one without chat."""
    try:
        names = [str(entry["id"]) for entry in _get(server, key, "v1/models")["data"]]
    except ServerUnreachable as error:
        raise ServerUnreachable(
            error.message, f"start one in another terminal: bay serve {name or 'MODEL'}; or pass --url"
        ) from None
    if not names:
        raise UsageError(
            f"the server at {server.url} has no models",
            "add one to the configuration's models, then `bay reload`; or start another server: bay serve MODEL",
            param="model",
        )
    if name is None and len(names) != 1:
        raise UsageError(
            f"the server has {len(names)} models", f"pass -m with one of {', '.join(names)}", param="model"
        )
    name = names[0] if name is None else name
    if name not in names:
        near = find_nearest(name, names)
        raise UnknownModel(
            f"the server at {server.url} has no model {name!r}",
            f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}",
            param="model",
        )
    described = _get(server, key, f"v1/models/{quote(name, safe='')}")
    details = described.get("enginebay") or {}
    if details.get("task", "generate") != "generate":
        raise UsageError(f"{name} cannot chat: its task is {details['task']}", "pass another model", param="model")
    context_length = details.get("context_length") or described.get("max_model_len")
    return ModelTarget(server.url, key or _NO_KEY, name, context_length)


def _get(server: ServerAddress, key: str | None, path: str) -> Any:
    status, body = fetch(server, path, key)
    if status in (401, 403):
        raise UsageError(
            f"the server at {server.url} requires an API key ({status})",
            "pass --key-file or set ENGINEBAY_API_KEY; create a key with `bay keys create NAME`",
            param="key",
        )
    if status != 200:
        raise to_response_error(server.url, status, body)
    try:
        return json.loads(body)
    except ValueError:
        raise EnginebayError(f"{server.url}/{path} did not return JSON", "is this an Enginebay server?") from None


def _warn_of_small_context(agent: Agent, model: ModelTarget) -> None:
    if model.context_length is not None and model.context_length < agent.min_context:
        note(
            f"warning: {model.name} has a context of {model.context_length} tokens, but {agent.title} needs "
            f"{agent.min_context} or more: its instructions and tools alone may not fit"
        )


def _print_settings(agent: Agent, model: ModelTarget) -> None:
    """Print what a shell needs to start the agent the same way."""
    directory = Path("enginebay-launch")
    settings = agent.configure(model, directory)
    for name, text in settings.files.items():
        print(f"# {directory / name}:\n{text}")
    if settings.removed_env:
        print(f"unset {' '.join(settings.removed_env)}")
    for name, value in settings.env.items():
        print(f"export {name}={shlex.quote(value)}")
    print(shlex.join([agent.command, *settings.arguments]))
