"""What `bay chat` reads: messages and commands."""
