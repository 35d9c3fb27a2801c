"""Replicas and their workers: launch, transitions, health, crashes and rolling updates."""
