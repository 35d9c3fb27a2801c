"""Every line that depends on vLLM's internals: `declarations.py` says what each patch needs, `compatibility.py` when it applies."""
