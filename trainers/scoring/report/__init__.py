"""Presents a run as a page, which needs no torch, and as the card of its model."""
