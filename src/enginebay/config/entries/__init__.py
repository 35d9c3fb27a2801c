"""Config values with their origin, and how they are parsed and checked."""
