"""Text processing without any engine's library: GGUF metadata, tokenization, chat templates, tool calls."""
