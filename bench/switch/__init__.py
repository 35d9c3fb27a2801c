"""How long it takes to switch from one model to another, beside killing and starting the engine's own server."""
