"""The Ollama API: /api/*. Translates to a chat, and back to lines of JSON."""
