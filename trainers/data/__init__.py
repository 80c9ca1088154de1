"""From manifests to batches."""
