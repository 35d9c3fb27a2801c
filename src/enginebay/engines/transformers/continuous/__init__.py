"""Continuous batching: scheduler, KV cache, attention and CUDA graphs."""
