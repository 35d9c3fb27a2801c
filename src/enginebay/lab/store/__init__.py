"""Runs on disk: one immutable folder each, written as it goes and whole or not there at all."""
