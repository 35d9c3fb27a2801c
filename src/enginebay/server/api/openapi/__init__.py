"""The OpenAPI document: request bodies from the structs, the rest from tables."""
