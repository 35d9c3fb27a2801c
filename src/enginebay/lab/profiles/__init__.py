"""When requests are sent, for how long, and when a run is stable."""
