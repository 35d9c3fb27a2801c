"""Meters: what reads joules, watts, bytes and processor time, and the sums over what was read."""
