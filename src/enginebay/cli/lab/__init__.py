"""Commands that benchmark engines and report the results."""
