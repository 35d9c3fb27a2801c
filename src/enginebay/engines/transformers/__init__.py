"""The transformers engine: Hugging Face models with continuous or static batching."""
