"""Compares a training with the weights that it begins with: scores, gates, interpolation, timestamps."""
