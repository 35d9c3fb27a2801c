"""Terminal output: tables, progress, completion scripts."""
