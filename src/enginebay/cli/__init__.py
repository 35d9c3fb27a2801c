"""The `bay` command line."""
