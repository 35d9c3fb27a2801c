"""Meters of GPUs, CPUs and processes."""
