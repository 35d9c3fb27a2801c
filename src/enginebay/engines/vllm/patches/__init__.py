"""Every line that leans on vLLM's internals: `declarations.py` says what each patch needs, `compatibility.py` when it applies."""
