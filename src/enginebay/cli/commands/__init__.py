"""Commands that run on this host: run, serve, models, engines, config and others."""
