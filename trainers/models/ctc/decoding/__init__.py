"""Beam search over CTC outputs, with word lists and language models."""
