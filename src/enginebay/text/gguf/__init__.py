"""Reads the metadata of GGUF files."""
