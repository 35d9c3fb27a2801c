"""`bay reload`: apply configuration changes to a running server."""

from __future__ import annotations

from enginebay.cli.admin.admin_client import KeyFileOption, KeyOption, ServerConfigOption, UrlOption, post_admin
from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json
from enginebay.util.text_format import pluralize

app = create_app(help="Apply configuration changes to a running server.")


@app.command()
def reload(
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Apply configuration changes and reload API keys, without dropping a request.

    An invalid configuration is rejected as a whole; the keys are reloaded either way.
    """
    changes = post_admin(url, key, "reload", {}, "reloading the configuration")
    if json:
        emit_json(changes)
        return
    keys = changes.pop("keys", None)
    for change, names in changes.items():
        if names:
            print(f"{change}: {', '.join(names)}")
    if not any(changes.values()):
        print("configuration reloaded; no model changed")
    if keys is not None:  # an older server does not report it
        print(
            f"{pluralize(keys, 'API key')} loaded"
            if keys
            else "no API keys: anyone who can reach the server can use it"
        )
