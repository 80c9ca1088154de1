"""Transcribes recordings with a finished model: one file, or a manifest over a cluster."""
