"""Beam search of CTC outputs."""
