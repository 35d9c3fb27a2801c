"""Stored responses and conversations: one SQLite file, shared by server processes."""
