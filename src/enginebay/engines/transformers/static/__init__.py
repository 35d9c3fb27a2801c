"""Static and dynamic batches, beam search and assisted generation through generate()."""
