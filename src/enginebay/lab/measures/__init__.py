"""What one run measured: latencies, rates, goodput, energy and cost, from its records."""
