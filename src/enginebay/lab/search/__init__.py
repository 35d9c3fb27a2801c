"""Search the highest rate at which each engine meets an objective, for `bay choose`."""
