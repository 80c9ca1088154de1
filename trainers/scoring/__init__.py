"""Recognizes prepared sets, computes error rates from hypotheses, and reports them."""
