"""Load options, model loading and quantized weights."""
