"""Which keywords of JSON Schema hold what, for whoever goes through a schema."""

from __future__ import annotations

VALUE_KEYWORDS = frozenset(
    {"const", "default", "enum", "example", "examples"}
)  # JSON of the author's, where no keyword counts
SCHEMA_MAP_KEYWORDS = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)  # schemas by names, which may look like keywords
