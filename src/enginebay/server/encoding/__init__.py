"""What an engine makes, on its way to a client: whole or streamed, in the form of each endpoint."""
