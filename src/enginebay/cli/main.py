"""The entry point of `bay` and its command table. Imports only the chosen command's module, so `bay --help` stays instant."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

from enginebay import __version__

COMMANDS: dict[str, str] = {
    "run": "Answer one prompt in the terminal",
    "chat": "Chat with a model in the terminal",
    "serve": "Serve models over the OpenAI, Anthropic and Ollama APIs",
    "launch": "Start Codex, Claude Code, opencode or Continue on a running server",
    "batch": "Run a file of requests in batches, resumable",
    "models": "List, pull, show, verify and remove models",
    "engines": "List, install, remove and explain engines",
    "bundle": "Create, verify and install offline bundles",
    "keys": "Create, list and revoke API keys",
    "ps": "Show a server's models: state, memory, requests, last switch",
    "load": "Load a model on a running server",
    "sleep": "Put a model on a running server to sleep",
    "unload": "Unload a model from a running server",
    "switch": "Switch a running server from one model to another",
    "switches": "Show recent model switches, phase by phase",
    "adapters": "Add and remove LoRA adapters on a running server",
    "logs": "Show the last lines of a model's log",
    "reload": "Apply configuration changes to a running server",
    "top": "Watch a server's models live",
    "experiment": "Benchmark engines, or a running server, under one workload",
    "choose": "Find the engine that serves a model best within an SLO",
    "presets": "List and explain presets: settings for common purposes",
    "results": "List, show, compare, aggregate and export benchmark runs",
    "report": "Write benchmark runs as a self-contained HTML page",
    "config": "Validate and show the configuration",
    "doctor": "Check this host: what is installed, missing or broken",
    "completion": "Print the shell completion script",
}

# The subpackage of a command's module; the others are in `commands`.
_SUBPACKAGES = {
    **dict.fromkeys(
        ("ps", "load", "sleep", "unload", "switch", "switches", "adapters", "logs", "reload", "top"), "admin"
    ),
    "launch": "launch",
    **dict.fromkeys(("experiment", "choose", "results", "report"), "lab"),
}

# What users of other tools type, with what to run here.
_HINTS = {
    "bench": "did you mean `bay experiment`?",
    "benchmark": "did you mean `bay experiment`?",
    "generate": "did you mean `bay run`?",
    "install": "did you mean `bay engines install`?",
    "list": "did you mean `bay models list`?",
    "ls": "did you mean `bay models list`?",
    "pull": "did you mean `bay models pull`?",
    "rm": "did you mean `bay models remove`?",
    "show": "did you mean `bay models show`?",
    "start": "did you mean `bay serve`?",
    "up": "did you mean `bay serve`?",
    "stop": "to unload a model: `bay unload MODEL`; to stop a server: Ctrl-C or SIGTERM",
    "create": "to use your own files: `bay models pull PATH --name NAME`; for settings, list the model in a config file",
}

USAGE = """Usage: bay COMMAND [OPTIONS] [ARGS]...

Run any LLM on any engine behind one API.

Commands:
{commands}

Options:
  --version  Print the version
  --help     Show this help; `bay COMMAND --help` shows a command's help
"""


def main(argv: list[str] | None = None) -> int:
    """Run `bay` and return its exit code (0 success, 1 failure, 2 bad usage, 130 Ctrl-C, 143 SIGTERM)."""
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
    return _run_command(args[0], ["--help" if arg == "-h" else arg for arg in args[1:]])


def _report_unknown_command(name: str) -> int:
    from enginebay.util.text_format import find_nearest

    near = find_nearest(name, COMMANDS)
    hint = f"did you mean `bay {near[0]}`?" if near else "`bay --help` lists all commands"
    print(f"bay: unknown command {name!r}\n     {_HINTS.get(name, hint)}", file=sys.stderr)
    return 2


def _run_command(name: str, args: list[str]) -> int:
    # Python may swallow a Ctrl-C during an import. Nothing has started yet, so exit at once.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    import typer

    from enginebay.cli.output.console import print_error
    from enginebay.cli.termination import EXIT_INTERRUPTED, TerminationHandler
    from enginebay.errors import EnginebayError
    from enginebay.util.paths import prepare_home

    # Newer versions of Typer vendor click, so its exceptions are found through the names that Typer exports.
    click_exception: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    termination = TerminationHandler()
    try:
        command = typer.main.get_command(import_command(name).app)
        termination.install()
        if "--help" not in args:
            prepare_home()
        result = command.main(args=args, prog_name=f"bay {name}", standalone_mode=False)
        return termination.exit_code(result) if isinstance(result, int) else 0
    except EnginebayError as error:
        return print_error(error)
    except typer.Exit as stop:
        return int(stop.exit_code)
    except click_exception as error:
        error.show()
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print(file=sys.stderr)
        return termination.exit_code(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader closed the pipe. Discard the rest of the output without a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return print_error(
            EnginebayError(f"{where}{error.strerror or error}", "check that the path exists and is writable")
        )
    finally:
        termination.restore()


def import_command(name: str) -> Any:
    """Import the module of a command."""
    return import_module(f"enginebay.cli.{_SUBPACKAGES.get(name, 'commands')}.{name}")


def run() -> None:
    """Run as the console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
