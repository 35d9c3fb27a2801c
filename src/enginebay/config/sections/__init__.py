"""The keys of each config section."""
