"""Helpers below every other package: child processes, files and locks, hardware facts, number and text formats."""
