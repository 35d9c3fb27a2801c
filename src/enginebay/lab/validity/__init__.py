"""Validity checks: every run gets a verdict with reasons. Pure."""
