"""Inference engines: the registry, shared helpers, and one package for each built-in kind."""
