"""Commands that inspect or manage a running server."""
