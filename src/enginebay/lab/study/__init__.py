"""Studies: measure points in cycles, and resume a study that was interrupted."""
