"""The command table. Only the chosen command's module is imported, so `bay --help` stays instant."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

from enginebay import __version__

COMMANDS: dict[str, str] = {
    "run": "Answer one prompt in the terminal",
    "chat": "Talk to a model, with history",
    "serve": "Serve models over the OpenAI-compatible API",
    "batch": "Run a file of requests at full batching, resumable",
    "models": "List, pull, show, verify and remove models",
    "engines": "List, install, remove and explain engines",
    "bundle": "Make, verify and install offline bundles",
    "keys": "Create, list and revoke API keys of the server",
    "ps": "Show a server's models: state, memory, requests, last switch",
    "load": "Load a model of a running server",
    "sleep": "Put a model of a running server to sleep",
    "unload": "Unload a model of a running server",
    "switch": "Switch a running server from one model to another",
    "switches": "Show the last model switches, phase by phase",
    "adapters": "Add and remove LoRA adapters of a running server",
    "logs": "Show the end of a model's log",
    "reload": "Have a running server take in its changed configuration",
    "top": "Watch a server's models live",
    "experiment": "Measure engines, or a server that runs, under one load",
    "choose": "Find the engine that serves a model best within an objective",
    "presets": "List and explain settings for common purposes",
    "results": "List, show, compare, aggregate and export runs",
    "report": "Make a page of runs that opens offline",
    "config": "Validate and show the configuration",
    "doctor": "Show what this host has and what is missing",
    "completion": "Print the shell completion script",
}

# Which room a command's module is in; the rest are in `commands`.
_ROOMS = {
    **dict.fromkeys(("ps", "load", "sleep", "unload", "switch", "switches", "adapters", "logs", "reload", "top"), "admin"),
    **dict.fromkeys(("experiment", "choose", "results", "report"), "lab"),
}

# What other tools call it.
_ALTERNATIVE_NAMES = {
    "bench": "experiment", "benchmark": "experiment", "generate": "run", "install": "engines install", "list": "models list",
    "ls": "models list", "pull": "models pull", "rm": "models remove", "start": "serve", "stop": "unload",
}  # fmt: skip

USAGE = """Usage: bay COMMAND [OPTIONS] [ARGS]...

Run any LLM on any engine behind one API.

Commands:
{commands}

Options:
  --version  Print the version
  --help     Show this page; `bay COMMAND --help` shows a command's own
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of `bay`: gives back the exit code (0 fine, 1 failed, 2 bad usage, 130 Ctrl-C, 143 SIGTERM)."""
    args = sys.argv[1:] if argv is None else argv
    if args and args[0] == "help" and len(args) > 1 and args[1] in COMMANDS:
        args = [args[1], "--help"]
    if not args or args[0] in ("--help", "-h", "help"):
        width = max(map(len, COMMANDS))
        print(USAGE.format(commands="\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())))
        return 0
    if args[0] in ("--version", "-V", "version"):
        print(f"bay {__version__}")
        return 0
    if args[0] not in COMMANDS:
        return _report_unknown_command(args[0])
    return _run_command(args[0], ["--help" if one == "-h" else one for one in args[1:]])


def _report_unknown_command(name: str) -> int:
    from difflib import get_close_matches

    near = [_ALTERNATIVE_NAMES[name]] if name in _ALTERNATIVE_NAMES else get_close_matches(name, COMMANDS, n=1)
    print(f"bay: there is no command {name!r}", file=sys.stderr)
    print(f"     {f'did you mean `bay {near[0]}`?' if near else '`bay --help` lists them'}", file=sys.stderr)
    return 2


def _run_command(name: str, args: list[str]) -> int:
    # Python may swallow a Ctrl-C that comes in the middle of an import; nothing has been started yet, so just leave.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    import typer

    from enginebay.cli.output.console import print_error
    from enginebay.cli.termination import EXIT_INTERRUPTED, TerminationHandler
    from enginebay.errors import EnginebayError

    # Typer carries its own copy of click in newer versions: its exceptions are reached through the names it exports.
    wrong_usage: Any = next(one for one in typer.BadParameter.__mro__ if one.__name__ == "ClickException")
    stopping = TerminationHandler()
    try:
        command = typer.main.get_command(import_command(name).app)
        stopping.install()
        result = command.main(args=args, prog_name=f"bay {name}", standalone_mode=False)
        return stopping.exit_code(result) if isinstance(result, int) else 0
    except EnginebayError as error:
        return print_error(error)
    except typer.Exit as stop:
        return int(stop.exit_code)
    except wrong_usage as error:
        error.show()
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print(file=sys.stderr)
        return stopping.exit_code(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; the rest of it has nowhere to go, and that is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return print_error(
            EnginebayError(f"{where}{error.strerror or error}", "check that the place exists and may be written to")
        )
    finally:
        stopping.restore()


def import_command(name: str) -> Any:
    """Import the module of a command."""
    return import_module(f"enginebay.cli.{_ROOMS.get(name, 'commands')}.{name}")


def run() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
