"""What leans on vLLM's internals. `step_outputs` and `mixed_graphs` check version and signatures and fall back; the others do not yet."""
