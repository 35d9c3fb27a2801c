"""`--key` and `--key-file` of the commands that talk to a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from enginebay.cli.output.console import note
from enginebay.errors import UsageError

_MAX_KEY_BYTES = 16_384
_FROM_FILE = "enginebay.key"


def _read_key_file(context: typer.Context, file: Path | None) -> Path | None:
    """Remember the key of the file for `--key`, which is processed later."""
    if file is not None:
        context.meta[_FROM_FILE] = read_key(file)
    return file


def resolve_key(context: typer.Context, key: str | None) -> str | None:
    source = context.get_parameter_source("key")
    given = key is not None and source is not None and source.name == "COMMANDLINE"
    if given and key and not hide_argument(key):
        note("warning: other users can see --key in the process list; use --key-file, or set ENGINEBAY_ADMIN_KEY")
    if given and _FROM_FILE in context.meta:
        raise UsageError("--key and --key-file are mutually exclusive", "pass one of them", param="key")
    from_file: str | None = context.meta.get(_FROM_FILE)
    return from_file or key


KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="API key, if the server requires one; prefer --key-file or the environment variable",
        envvar=["ENGINEBAY_ADMIN_KEY", "ENGINEBAY_API_KEY"],
        show_envvar=True,
        callback=resolve_key,
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file", help="File with the API key; - reads standard input", callback=_read_key_file, is_eager=True
    ),
]


def read_key(file: Path) -> str:
    """Return the key in a file, or on standard input for `-`."""
    try:
        if str(file) == "-":
            text = sys.stdin.read(_MAX_KEY_BYTES)
        else:
            with file.open(encoding="utf-8") as opened:
                text = opened.read(_MAX_KEY_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read the key file {file}: {reason}", "check --key-file", param="key-file") from None
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{file} does not hold an API key", "it must be one line of ASCII", param="key-file")
    return key


def hide_argument(text: str) -> bool:
    """Overwrite a command line argument of this process, so that `ps` does not show it. Return whether that worked."""
    try:
        if text.encode() not in Path("/proc/self/cmdline").read_bytes():
            return True
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            line = memory.read(end - start)
            memory.seek(start)
            memory.write(line.replace(text.encode(), b"*" * len(text.encode())))
        return text.encode() not in Path("/proc/self/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False
