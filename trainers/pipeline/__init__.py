"""A run from start to end: prepare, train, evaluate, export; on Ray or in one process."""
