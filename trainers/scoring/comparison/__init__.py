"""Compares recognizers on the same utterances, with significance tests. Imports no torch."""
