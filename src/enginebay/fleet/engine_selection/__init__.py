"""Chooses the engine for a model."""
