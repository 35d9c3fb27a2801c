"""Constraints on the output: written for llguidance, followed beside llama.cpp, continued after a worker died."""
