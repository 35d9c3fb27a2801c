"""What the server costs: a load client, a fast upstream, and the peers it is measured beside."""
