"""Self-contained HTML report about runs: verdicts first, then figures, plots and how to reproduce them."""
