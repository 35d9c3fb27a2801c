"""Models as clients request them: variants, prompt encoding and the client of a loaded model."""
