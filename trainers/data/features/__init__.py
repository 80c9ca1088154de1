"""A model's input, computed from stored samples when it is needed."""
