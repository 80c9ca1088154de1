"""Metrics that are always scored: a file each, and a line in `known_metrics`."""
