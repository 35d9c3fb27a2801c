"""The llamacpp engine: GGUF models on llama.cpp, in process through xllamacpp."""
