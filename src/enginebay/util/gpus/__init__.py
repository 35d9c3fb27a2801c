"""The GPUs of this host, and how workers get them."""
