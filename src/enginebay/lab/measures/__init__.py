"""Figures of one run from its records: latencies, rates, goodput, energy and cost."""
