"""One request on its way through the server, whatever its dialect: find the model, wait, retry, generate."""
