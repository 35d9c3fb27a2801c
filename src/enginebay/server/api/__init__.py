"""Routes and endpoints, one folder per dialect."""
