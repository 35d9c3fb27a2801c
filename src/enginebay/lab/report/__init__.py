"""One self-contained HTML page about runs: verdicts first, then figures, plots and how to repeat them."""
