"""The metrics that are always scored, and their interface."""
