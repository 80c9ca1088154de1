"""Computes a model's input from stored samples, on demand."""
