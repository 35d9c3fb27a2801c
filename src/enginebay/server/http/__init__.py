"""HTTP/1.1 on asyncio and httptools, with no extra layer between a token and its socket."""
