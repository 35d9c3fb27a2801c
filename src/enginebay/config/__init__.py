"""Configuration: read, merge, validate and show it."""
