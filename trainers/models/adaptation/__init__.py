"""Adapts models: selects the weights to train, and adds adapters."""
