"""Data sources: each split of utterances as one table."""
