"""Writes engine output to clients, as JSON or as server-sent events. Knows no endpoint's schema."""
