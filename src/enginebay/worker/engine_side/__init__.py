"""The part of a worker that runs in the engine's environment."""
