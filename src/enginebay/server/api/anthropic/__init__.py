"""Anthropic's Messages API. A request becomes a chat; a response is encoded in Anthropic's form."""
