"""The description of the API as an OpenAPI document: request bodies from the structs, the rest from tables."""
