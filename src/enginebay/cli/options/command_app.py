"""What every command shares: its Typer settings, `--json` and `--config`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

create_app = partial(typer.Typer, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Config file (default: ./enginebay.yaml, else config.yaml in ENGINEBAY_HOME)"),
]


def pick_config_file(file: Path | None, config: Path | None) -> Path | None:
    """Return the file, given as an argument or with --config."""
    if file is not None and config is not None:
        raise typer.BadParameter("pass the file once, as FILE or with --config")
    return file if file is not None else config
