"""The Hugging Face Trainer of a rank, and what it is composed of."""
