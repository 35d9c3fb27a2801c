"""Checks that regexes and JSON schemas for guided output are safe to compile."""
