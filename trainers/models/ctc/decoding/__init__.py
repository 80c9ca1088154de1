"""Beam search of CTC outputs, with word lists and language models."""
