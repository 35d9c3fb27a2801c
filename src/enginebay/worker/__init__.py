"""Worker processes: one engine with one model each, and the protocol to reach them."""
