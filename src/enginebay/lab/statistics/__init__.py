"""Statistics over several runs: confidence intervals and engine comparisons."""
