"""Decides which models are loaded: planner, eviction, wait queue and wait estimates."""
