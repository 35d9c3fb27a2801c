"""Benchmarks of the lab itself: the accuracy of the load generator and of the statistics."""
