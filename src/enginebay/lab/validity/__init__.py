"""Whether a run's numbers may be published: every run ends with a verdict and its reasons. Pure."""
