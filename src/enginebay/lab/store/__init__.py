"""Runs on disk: one immutable folder each, complete or absent."""
