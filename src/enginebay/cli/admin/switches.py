"""`bay switches`: recent model switches of a server, phase by phase."""

from __future__ import annotations

from enginebay.cli.admin.admin_client import KeyFileOption, KeyOption, ServerConfigOption, UrlOption, get_admin
from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json, note, print_summary, print_table

app = create_app(help="Show recent model switches.")


@app.command()
def switches(
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Show recent loads and wake-ups on a running server: the starting state, models replaced, and time per phase."""
    from enginebay.cli.output.fleet_tables import build_switch_table, summarize_switches

    history = get_admin(url, key, "switches")
    if json:
        emit_json(history)
    elif history["switches"]:
        print_table(*build_switch_table(history))
        print_summary(summarize_switches(history))
    else:
        note("no model has been loaded yet")
