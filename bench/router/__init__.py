"""Benchmark of routing between the replicas of a model."""
