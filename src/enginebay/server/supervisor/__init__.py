"""The supervisor: owns the fleet, runs server processes and admin commands."""
