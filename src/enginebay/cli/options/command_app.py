"""What every command shares: its Typer settings and `--json`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

create_app = partial(typer.Typer, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output")]
