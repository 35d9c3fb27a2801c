"""Code that leans on vLLM's internals, each part with a version and signature check."""
