"""JSON Schema keywords that a schema walker must treat specially."""

from __future__ import annotations

# Hold arbitrary JSON, in which keywords have no meaning.
VALUE_KEYWORDS = frozenset({"const", "default", "enum", "example", "examples"})
# Map names to schemas. A name may look like a keyword.
SCHEMA_MAP_KEYWORDS = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
