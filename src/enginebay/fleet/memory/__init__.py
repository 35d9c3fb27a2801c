"""Memory of models: estimates, observations and the budget of each pool."""
