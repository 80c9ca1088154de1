"""Computes error rates from hypotheses."""
