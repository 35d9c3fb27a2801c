"""`bay launch`: coding agents configured for a running server."""
