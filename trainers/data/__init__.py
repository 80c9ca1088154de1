"""Prepares data, and reads it from manifests to batches."""
