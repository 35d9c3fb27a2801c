"""The fleet: loads, evicts and restarts the models of this host."""
