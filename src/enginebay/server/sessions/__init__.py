"""The models that a server process serves, and its sessions with their workers."""
