"""State, sampling, constraints and output of one sequence, shared by both kinds of batching."""
