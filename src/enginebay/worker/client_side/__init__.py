"""The part of a worker that runs in the server: its process and its client."""
