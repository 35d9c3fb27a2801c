"""The parts of the page, one module each, all written as HTML before any script runs."""
