"""Meters of energy, power, memory and CPU time, and the analysis of their samples."""
