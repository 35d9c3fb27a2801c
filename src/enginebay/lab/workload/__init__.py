"""Request content: synthetic prompts of exact lengths, prompt files, recorded traces."""
