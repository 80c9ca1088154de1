"""Data sources: where utterances come from, each as one table a split."""
