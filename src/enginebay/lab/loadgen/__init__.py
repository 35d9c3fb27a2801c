"""The load client: sends what it should when it should, and stamps what comes back before it looks at it."""
