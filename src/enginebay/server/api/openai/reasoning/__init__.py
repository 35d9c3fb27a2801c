"""Reasoning of chats: the request's switches, the two phases of a constrained answer, and items of Responses."""
