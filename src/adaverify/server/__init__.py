"""OpenAI-compatible HTTP server; knows the engine's public API and nothing behind it."""
