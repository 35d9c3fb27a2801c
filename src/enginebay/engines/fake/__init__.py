"""The fake engine: a toy model with scripted output, delays and failures, for tests."""
