"""The echo engine, an example of a third-party Enginebay engine."""
