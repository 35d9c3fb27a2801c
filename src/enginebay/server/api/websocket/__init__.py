"""Endpoints over WebSockets: each message is a request of its own."""
