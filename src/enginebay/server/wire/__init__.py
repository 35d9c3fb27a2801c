"""The bodies of requests as clients send them."""
