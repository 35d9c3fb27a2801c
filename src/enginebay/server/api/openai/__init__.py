"""The OpenAI dialect: request schemas, endpoints and response encoders."""
