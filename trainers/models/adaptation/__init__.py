"""Adaptation: selection of the trained weights, and adapters."""
