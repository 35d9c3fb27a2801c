"""Benchmark of model switches against restarting the engine's own server."""
