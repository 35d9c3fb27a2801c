"""HTTP/1.1 on asyncio and httptools: one connection, one exchange at a time, and nothing between a token and its socket."""
