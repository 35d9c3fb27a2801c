"""Chat messages to prompt text: message checks, chat templates and their sandbox."""
