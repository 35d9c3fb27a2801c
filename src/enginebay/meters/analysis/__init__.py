"""Energy, power and CPU figures from meter samples."""
