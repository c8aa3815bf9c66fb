"""The engine: continuous batching of Hugging Face models with a paged KV store, step by step."""
