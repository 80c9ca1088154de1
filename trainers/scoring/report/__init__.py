"""Presents a run: a page, which needs no torch, and the card of its model."""
