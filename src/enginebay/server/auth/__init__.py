"""API keys, access control and rate limits."""
