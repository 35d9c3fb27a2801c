"""Tensor parallelism: the rank group and the follower loop."""
