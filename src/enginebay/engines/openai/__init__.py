"""The openai engine: requests forwarded to a remote server that speaks OpenAI's API."""
