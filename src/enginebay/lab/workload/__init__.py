"""What is sent: synthetic prompts of exact lengths, files of prompts, recorded traces."""
