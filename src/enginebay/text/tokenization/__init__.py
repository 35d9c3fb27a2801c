"""Tokenizers, the conversion of GGUF vocabularies, and streaming detokenization."""
