"""The load generator: sends requests on schedule, and timestamps responses before parsing them."""
