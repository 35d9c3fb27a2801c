"""The vllm engine: vLLM's AsyncLLM behind the engine contract."""
