"""Sections of the report, one module each, rendered as HTML without scripts."""
