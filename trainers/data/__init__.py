"""Data, from manifests to batches."""
