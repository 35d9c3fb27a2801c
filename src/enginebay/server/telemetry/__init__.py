"""Metrics, logs, traces and host meters of the server."""
