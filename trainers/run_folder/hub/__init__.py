"""Pushes a run's model to the Hugging Face Hub."""
