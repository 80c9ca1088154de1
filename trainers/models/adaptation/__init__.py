"""Adaptation: which of a model's weights are trained, and adapters next to them."""
