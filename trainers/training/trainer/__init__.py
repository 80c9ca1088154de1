"""The Hugging Face Trainer of a rank, and its components."""
