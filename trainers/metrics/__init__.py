"""Metrics that are always scored: one file each, and a line in `known_metrics`."""
