"""`bay completion SHELL`: print a completion script, built from the command table and the commands' parsers.

The script is static: pressing Tab starts no Python.
"""

from __future__ import annotations

from enum import EnumMeta
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from enginebay.cli.main import COMMANDS, import_command
from enginebay.cli.options.command_app import create_app
from enginebay.cli.output.completion_scripts import SCRIPTS, CompletionCommand, CompletionOption

app = create_app(help="Print the shell completion script.", no_args_is_help=True)


@app.command()
def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish")]) -> None:
    """Print the completion script for a shell. Its first lines explain how to load it."""
    from enginebay.errors import UsageError

    if shell not in SCRIPTS:
        raise UsageError(f"no completion for shell {shell!r}", f"supported shells: {', '.join(SCRIPTS)}")
    print(SCRIPTS[shell](build_command_tree()), end="")


def build_command_tree() -> CompletionCommand:
    from enginebay.engines.registry import BUILT_IN

    children = [_describe_top_level(name, text, tuple(BUILT_IN)) for name, text in COMMANDS.items()]
    options = (
        CompletionOption(("--help",), "List all commands"),
        CompletionOption(("--version",), "Print the version"),
    )
    return CompletionCommand("bay", "", options, tuple(children))


def _describe_top_level(name: str, text: str, kinds: tuple[str, ...]) -> CompletionCommand:
    try:
        app = import_command(name).app
    except ImportError:  # its extra is not installed: complete the name only
        return CompletionCommand(name, text)
    command = _describe_command(name, typer.main.get_command(app), kinds)
    return CompletionCommand(name, text, command.options, command.children, command.words)


def _describe_command(name: str, command: Any, kinds: tuple[str, ...]) -> CompletionCommand:
    """Describe a command's options and subcommands from its parser."""
    children = tuple(_describe_command(child, sub, kinds) for child, sub in getattr(command, "commands", {}).items())
    options = tuple(
        _describe_option(param, kinds)
        for param in command.params
        if param.param_type_name == "option" and not param.hidden
    )
    words = tuple(
        word for param in command.params if param.param_type_name == "argument" for word in _list_values(param, kinds)
    )
    help_option = (
        ()
        if any("--help" in option.flags for option in options)
        else (CompletionOption(("--help",), "Show this command's help"),)
    )
    return CompletionCommand(name, _get_first_line(command.help), (*options, *help_option), children, words)


def _describe_option(option: Any, kinds: tuple[str, ...]) -> CompletionOption:
    flags = tuple(flag for flag in (*option.opts, *option.secondary_opts) if flag.startswith("-"))
    takes_value = not (option.is_flag or option.count)
    return CompletionOption(
        flags, _get_first_line(option.help), takes_value, _list_values(option, kinds) if takes_value else ()
    )


def _list_values(parameter: Any, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """List the known values of a parameter: choices, engines, or `a|b` in the metavar."""
    choices = _list_choices(parameter)
    if choices:
        return choices
    metavar = parameter.metavar or ""
    if parameter.name == "engine" or "--engine" in parameter.opts or metavar.startswith("KIND"):
        return kinds
    return tuple(metavar.split("|")) if "|" in metavar and "[" not in metavar else ()


def _list_choices(parameter: Any) -> tuple[str, ...]:
    """List the choices of an enum or Literal. Depending on its version, typer keeps the annotation or a click type."""
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if isinstance(annotation, EnumMeta):
        return tuple(str(getattr(choice, "value", choice)) for choice in annotation)  # type: ignore[var-annotated]
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    choices = getattr(getattr(parameter, "type", None), "choices", ())
    return tuple(str(getattr(choice, "value", choice)) for choice in choices)


def _get_first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
