"""Lists the table of fields as Markdown.

`python -m enginebay.server.api.fields.field_listing --write docs/server.md` updates the documentation page; a test fails when it is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from enginebay.server.api.fields.field_rules import FieldRule, Treatment
from enginebay.server.api.fields.field_table import FIELD_TABLE

_ENDPOINTS = {
    "ChatBody": "chat",
    "CompletionBody": "completions",
    "ResponsesBody": "responses",
    "CompactBody": "compact",
    "MessagesBody": "messages",
    "CountTokensBody": "count_tokens",
    "EmbeddingBody": "embeddings",
    "OllamaChatBody": "/api/chat",
    "OllamaGenerateBody": "/api/generate",
}
_START, _END = "<!-- fields: start -->\n", "<!-- fields: end -->\n"
_ORDER = (Treatment.TRANSLATED, Treatment.IGNORED, Treatment.REFUSED)


def render_fields() -> str:
    """Return a table with one row per rule, and the endpoints that it applies to."""
    rows: dict[tuple[Treatment, str, str], list[str]] = {}
    for body, rule_set in FIELD_TABLE.items():
        for rule in rule_set.rules.values():
            rows.setdefault((rule.treatment, rule.name, _describe(rule)), []).append(_ENDPOINTS.get(body, body))
    ordered = sorted(rows.items(), key=lambda row: (_ORDER.index(row[0][0]), row[0][1]))
    lines = [f"| `{name}` | {', '.join(names)} | {treatment} | {text} |" for (treatment, name, text), names in ordered]
    return "\n".join(["| field | endpoints | is | details |", "|---|---|---|---|", *lines, ""])


def _describe(rule: FieldRule) -> str:
    text = f"{rule.detail}; {rule.hint}" if rule.hint else rule.detail
    return text.replace("|", "\\|")


def update_page(text: str) -> str:
    """Return the page with the table as it is now."""
    before, _, rest = text.partition(_START)
    _, _, after = rest.partition(_END)
    return f"{before}{_START}{render_fields()}{_END}{after}"


if __name__ == "__main__":
    page = Path(sys.argv[sys.argv.index("--write") + 1])
    page.write_text(update_page(page.read_text()))
