"""Data sources, which read each split of utterances as one table."""
