"""The layers that make up a config, and the canonical spelling of their keys."""
